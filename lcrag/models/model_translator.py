"""A model that follows instructions as a translator: a second checkpoint, or one behind an endpoint."""

import re
from collections.abc import Sequence

from lcrag.data.languages import LANGUAGES
from lcrag.episodes.host_services import Completer, Translated
from lcrag.episodes.requests import TranslationFailure
from lcrag.errors import UserError
from lcrag.sampling import SamplingParameters

_PROMPT = (
    "Translate the text{source} to {target}. Keep numbers, dates, mathematical notation and the letters of options"
    " exactly as they are, use the usual {target} form of a name, add nothing, and do not answer the question if it is"
    " one. Write only the translation, between <translation> and </translation>.\n\nText: {text}"
)
_ANSWER = re.compile(r"<translation>\s*(\S.*?)\s*</translation>", re.DOTALL)
_STOP = ("</translation>",)


class ModelTranslator:
    """Asks a model for each text, and again, less soberly, where its answer has no translation.

    Args:
      model: Completes prompts.
      attempts: Answers asked for a text at most.
      max_tokens: Longest answer.
      temperature: Of the second answer and all later ones; the first is greedy.
      seed: Of sampling.

    Raises:
      UserError: no attempt is allowed.
    """

    def __init__(
        self, model: Completer, attempts: int = 4, max_tokens: int = 1024, temperature: float = 0.7, seed: int = 0
    ):
        if attempts < 1:
            raise UserError(f"ModelTranslator.attempts is {attempts}: give it a value of 1 or more")
        self._model, self._attempts = model, attempts
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """The texts in the language `target`; failures where `lcrag.data.languages` does not know a language.

        Raises:
          UserError: the model is away.
        """
        if unknown := [code for code in (source, target) if code is not None and code not in LANGUAGES]:
            return [TranslationFailure(f"the model is asked for no language {unknown[0]!r}")] * len(texts)
        prompts = [translation_prompt(text, source, target) for text in texts]
        answers: list[Translated] = [TranslationFailure("it was not asked")] * len(texts)
        missing = list(range(len(texts)))
        for attempt in range(self._attempts):
            asked = [(prompts[place], self._generation(attempt, place)) for place in missing]
            for place, completion in zip(missing, self._model(asked) if asked else (), strict=True):
                answers[place] = translation_in(completion.text)
            missing = [place for place in missing if isinstance(answers[place], TranslationFailure)]
        return answers

    def _generation(self, attempt: int, place: int) -> SamplingParameters:
        return SamplingParameters(
            stop=_STOP,
            max_tokens=self._max_tokens,
            temperature=self._temperature if attempt else 0.0,
            seed=self._seed + attempt,
            episode=place,
        )


def translation_prompt(text: str, source: str | None, target: str) -> str:
    """What a model is asked; without a source the prompt names none."""
    known = f" from {LANGUAGES[source].name}" if source is not None else ""
    return _PROMPT.format(source=known, target=LANGUAGES[target].name, text=text)


def translation_in(said: str) -> Translated:
    """The translation in what a model said."""
    found = _ANSWER.search(said)
    return found[1] if found else TranslationFailure(f"the model does not translate, it says {said[:200]!r}")

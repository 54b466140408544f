"""Translators: a model, a service, exact ones of constructed languages and of known questions, and combinations.

Each is an `lcrag.episodes.Translator`. The protocol of `POST /translate`, which `lcrag serve` offers with a translator:
a request is `{"texts", "source", "target"}`, where a null source is detected; an answer is `{"translations": [...]}`,
each `{"text"}` or `{"failure", "unavailable"}`.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import gin
import pydantic

from lcrag.data.constructed import CONSTRUCTED, ENGLISH, substitution, words_of
from lcrag.data.questions import LANGUAGES, Question
from lcrag.episodes import Completer, GenerationFailure, Translated, TranslationFailure, Translator
from lcrag.errors import Count, UserError, first_problem, typed
from lcrag.models.completers import LOCAL, EndpointCompleter, complete_prompts
from lcrag.retries import USUAL_PATIENCE, Patience, ServiceRefusal
from lcrag.retrieval.remote import HttpService, LatestAnswers
from lcrag.sampling import SamplingParameters

_PROMPT = (
    "Translate the text{source} to {target}. Keep numbers, dates, mathematical notation and the letters of options"
    " exactly as they are, use the usual {target} form of a name, add nothing, and do not answer the question if it is"
    " one. Write only the translation, between <translation> and </translation>.\n\nText: {text}"
)
_ANSWER = re.compile(r"<translation>\s*(\S.*?)\s*</translation>", re.DOTALL)
_STOP = ("</translation>",)
# A text is in the language to which most of its words belong, if they are at least this share; names belong to none.
MIN_SHARE = 0.5
PATH = "/translate"


@gin.register
@typed
class ModelTranslator:
    """Asks a model to translate each text.

    The first attempt is greedy; if its answer has no translation, later ones sample at `temperature`.
    """

    def __init__(
        self,
        model: Completer,
        attempts: Count = 4,
        max_tokens: int = 1024,
        temperature: float = 0.7,
        seed: int = 0,
    ):
        getattr(model, "check", lambda: None)()  # reports a mistake before anything is sampled
        self._model, self._attempts = model, attempts
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts; fails for languages that `lcrag.data.questions` does not know."""
        if unknown := [code for code in (source, target) if code is not None and code not in LANGUAGES]:
            return [TranslationFailure(f"the model is asked for no language {unknown[0]!r}")] * len(texts)
        answers: list[Translated] = [TranslationFailure("it was not asked")] * len(texts)
        known = f" from {LANGUAGES[source].name}" if source is not None else ""
        name = LANGUAGES[target].name
        missing = {n: _PROMPT.format(source=known, target=name, text=text) for n, text in enumerate(texts)}
        for attempt in range(self._attempts):
            generation = SamplingParameters(
                stop=_STOP,
                max_tokens=self._max_tokens,
                temperature=self._temperature if attempt else 0.0,
                seed=self._seed + attempt,
            )
            for place, reply in complete_prompts(self._model, missing, generation).items():
                if isinstance(reply, GenerationFailure):
                    answers[place] = TranslationFailure(reply.reason, unavailable=True)
                elif match := _ANSWER.search(reply):
                    answers[place] = match[1]
                else:
                    answers[place] = TranslationFailure(f"the model does not translate, it says {reply[:200]!r}")
            missing = {n: prompt for n, prompt in missing.items() if isinstance(answers[n], TranslationFailure)}
        return answers


@gin.register
@typed
class EndpointTranslator(ModelTranslator):
    """A `ModelTranslator` over a `ChatEndpoint`, whose arguments it takes."""

    def __init__(
        self,
        model: str,
        url: str = LOCAL,
        concurrency: int = 32,
        attempts: int = 4,
        seconds: float = 120.0,
        max_tokens: int = 1024,
    ):
        completer = EndpointCompleter(model, url, concurrency=concurrency, attempts=attempts, seconds=seconds)
        super().__init__(completer, attempts=attempts, max_tokens=max_tokens)


@gin.register
@typed
class LookUpTranslator:
    """Translates between English and the constructed languages, exactly.

    Texts in other languages fail, and `FirstTranslator` passes them to the next translator. The languages have words
    for the English ones of `vocabulary`.
    """

    def __init__(self, vocabulary: Iterable[str], codes: Sequence[str] = tuple(CONSTRUCTED)):
        words = list(vocabulary)
        self._tables = {code: substitution(code, words) for code in codes}
        self._words = {ENGLISH: {word for table in self._tables.values() for word in table.words}} | {
            code: set(table.words.values()) for code, table in self._tables.items()
        }

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self._words)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts; without `source` each text's language is detected."""
        answers: list[Translated] = []
        for text in texts:
            language = self.language_of(text) if source is None else source
            if language is None or not {language, target} <= self._words.keys():
                known = ", ".join(self._words)
                answers.append(TranslationFailure(f"a look-up translates between {known} only"))
            elif language == target:
                answers.append(text)
            else:
                english = text if language == ENGLISH else self._tables[language].english(text)
                answers.append(english if target == ENGLISH else self._tables[target].constructed(english))
        return answers

    def language_of(self, text: str) -> str | None:
        """Returns the language of a text, English if it has no words; None if it is in none of `languages`."""
        words = words_of(text)
        known = {code: sum(word in of_language for word in words) for code, of_language in self._words.items()}
        best = max(known, key=lambda code: known[code])
        return best if known[best] >= MIN_SHARE * len(words) else None


@gin.register
@typed
class TranslationMemory:
    """Translates questions by looking up their versions in other languages, which have the same `coupling`.

    Other texts fail, and so do questions without a version in the target language; `FirstTranslator` passes them to the
    next translator.
    """

    def __init__(self, questions: Iterable[Question]):
        self._versions: dict[str, dict[str, str]] = {}
        self._couplings: dict[str, str] = {}
        for question in questions:
            self._versions.setdefault(question.coupling, {})[question.language] = question.text
            self._couplings[question.text.strip()] = question.coupling

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts, whose language is known from the memory; `source` is not used."""
        answers: list[Translated] = []
        for text in texts:
            versions = self._versions.get(self._couplings.get(text.strip(), ""), {})
            if target in versions:
                answers.append(versions[target])
            elif versions:
                known = ", ".join(versions)
                answers.append(TranslationFailure(f"the translation memory holds this text in {known}, not {target}"))
            else:
                answers.append(TranslationFailure("the translation memory does not hold this text"))
        return answers


@gin.register
@typed
class RememberedTranslator:
    """Asks another translator once for each text: remembers the latest `texts` translations, and no failure."""

    def __init__(self, translator: Translator, texts: Count = 1 << 16):
        self._translator = translator
        self._known: LatestAnswers[tuple[str | None, str, str], str] = LatestAnswers(texts)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        known = self._known.known((source, target, text) for text in texts)
        answers: dict[str, Translated] = {text: answer for (*_, text), answer in known.items()}
        missing = [text for text in dict.fromkeys(texts) if text not in answers]
        if missing:
            answers |= zip(missing, self._translator(missing, source, target), strict=True)
            made = {(source, target, text): answers[text] for text in missing}
            self._known.keep({key: answer for key, answer in made.items() if isinstance(answer, str)})
        return [answers[text] for text in texts]


@gin.register
@typed
class FirstTranslator:
    """Asks several translators in turn: each gets the texts on which the previous ones failed.

    Constructed languages are looked up this way, and all others translated by a model.
    """

    def __init__(self, translators: Sequence[Translator]):
        if not translators:
            raise UserError("FirstTranslator.translators is empty: name at least one translator")
        self._translators = tuple(translators)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts; a text on which all fail has the last one's failure."""
        answers: list[Translated] = list(self._translators[0](texts, source, target))
        for translator in self._translators[1:]:
            places = [place for place, answer in enumerate(answers) if isinstance(answer, TranslationFailure)]
            if not places:
                break
            again = translator([texts[place] for place in places], source, target)
            for place, answer in zip(places, again, strict=True):
                answers[place] = answer
        return answers


class Translation(pydantic.BaseModel):
    """The translation of a text, or the reason for its failure and whether the translator itself failed."""

    text: str | None = None
    failure: str | None = None
    unavailable: bool | None = None

    @pydantic.model_validator(mode="after")
    def _has_exactly_one(self) -> "Translation":
        if (self.text is None) == (self.failure is None):
            raise ValueError("a translation has either a text or a failure")
        return self


class TranslateAnswer(pydantic.BaseModel):
    """The answer: one translation per text, in order."""

    translations: list[Translation]


@gin.configurable
class RemoteTranslator:
    """Sends texts to the translation service at `url`, `http://HOST:PORT`: at most `texts` in a request."""

    def __init__(self, url: str, patience: Patience = USUAL_PATIENCE, texts: int = 64, connections: int = 8):
        self._url, self._texts = url.rstrip("/").removesuffix(PATH) + PATH, texts
        self._service = HttpService("the translation service", self._url, patience, connections)
        try:
            self._ask([], None, "en", patience.at_the_start())
        except ServiceRefusal as error:
            raise UserError(f"{error}: it refuses even an empty request, so look into its log") from error
        self._executor = ThreadPoolExecutor(connections, thread_name_prefix="remote translation")

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts; raises `ServiceRefusal` if the service refuses one of the requests."""
        parts = [list(texts[start : start + self._texts]) for start in range(0, len(texts), self._texts)]
        answers = self._executor.map(lambda part: self._ask(part, source, target), parts)
        return list(itertools.chain.from_iterable(answers))

    def _ask(
        self, texts: list[str], source: str | None, target: str, patience: Patience | None = None
    ) -> list[Translated]:
        asked = {"texts": texts, "source": source, "target": target}
        response = self._service.request("POST", self._url, patience=patience, json=asked)
        try:
            translations = TranslateAnswer.model_validate_json(response.content).translations
            if len(translations) != len(texts):
                raise ValueError(f"it answers {len(translations)} texts of {len(texts)}")
        except ValueError as error:
            problem = first_problem(error) if isinstance(error, pydantic.ValidationError) else str(error)
            raise UserError(
                f"{self._service.name} does not speak the /translate API ({problem}): check its address"
            ) from error
        return [
            TranslationFailure(answer.failure or "", bool(answer.unavailable)) if answer.text is None else answer.text
            for answer in translations
        ]

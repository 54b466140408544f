"""Translators: a model that follows instructions, exact ones of constructed languages and of questions, combinations.

Each is an `lcrag.episodes.Translator`.
"""

import re
import threading
from collections.abc import Iterable, Sequence

import cachetools
import gin

from lcrag.data.constructed import CONSTRUCTED, ENGLISH, substitution, words_of
from lcrag.data.languages import LANGUAGES
from lcrag.data.questions import Question
from lcrag.episodes import Completer, GenerationFailure, Translated, TranslationFailure, Translator
from lcrag.errors import UserError, typed
from lcrag.models.completers import LOCAL, EndpointCompleter, complete_prompts
from lcrag.sampling import SamplingParameters

_PROMPT = (
    "Translate the text{source} to {target}. Keep numbers, dates, mathematical notation and the letters of options"
    " exactly as they are, use the usual {target} form of a name, add nothing, and do not answer the question if it is"
    " one. Write only the translation, between <translation> and </translation>.\n\nText: {text}"
)
_ANSWER = re.compile(r"<translation>\s*(\S.*?)\s*</translation>", re.DOTALL)
_STOP = ("</translation>",)
# A text is in the language to which most of its words belong, if they are at least this share; names belong to none.
LEAST_SHARE = 0.5


@gin.register
@typed
class ModelTranslator:
    """Asks a model to translate each text, and retries at a higher temperature if its answer has no translation.

    Args:
      model: Completes prompts.
      attempts: Most requests for a text.
      max_tokens: Longest answer, in tokens.
      temperature: Temperature of the second and later attempts; the first is greedy.
      seed: Seed of sampling.

    Raises:
      UserError: no attempt is allowed.
    """

    def __init__(
        self,
        model: Completer,
        attempts: int = 4,
        max_tokens: int = 1024,
        temperature: float = 0.7,
        seed: int = 0,
    ):
        if attempts < 1:
            raise UserError("ModelTranslator.attempts is 0: set it to 1 or more")
        getattr(model, "check", lambda: None)()  # reports a mistake before anything is sampled
        self._model, self._attempts = model, attempts
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts; fails for languages that `lcrag.data.languages` does not know."""
        if unknown := [code for code in (source, target) if code is not None and code not in LANGUAGES]:
            return [TranslationFailure(f"the model is asked for no language {unknown[0]!r}")] * len(texts)
        answers: list[Translated] = [TranslationFailure("it was not asked")] * len(texts)
        missing = {place: translation_prompt(text, source, target) for place, text in enumerate(texts)}
        for attempt in range(self._attempts):
            generation = SamplingParameters(
                stop=_STOP,
                max_tokens=self._max_tokens,
                temperature=self._temperature if attempt else 0.0,
                seed=self._seed + attempt,
            )
            for place, text in complete_prompts(self._model, missing, generation).items():
                answers[place] = translation_in(text)
            missing = {n: prompt for n, prompt in missing.items() if isinstance(answers[n], TranslationFailure)}
        return answers


def translation_prompt(text: str, source: str | None, target: str) -> str:
    """Returns the model's prompt, which names the source language only if it is known."""
    known = f" from {LANGUAGES[source].name}" if source is not None else ""
    return _PROMPT.format(source=known, target=LANGUAGES[target].name, text=text)


def translation_in(reply: str | GenerationFailure) -> Translated:
    """Returns the translation in a model's reply."""
    if isinstance(reply, GenerationFailure):
        return TranslationFailure(reply.reason, unavailable=True)
    found = _ANSWER.search(reply)
    return found[1] if found else TranslationFailure(f"the model does not translate, it says {reply[:200]!r}")


@gin.register
@typed
class EndpointTranslator:
    """A `ModelTranslator` over a `ChatEndpoint`, whose arguments it takes.

    Args:
      attempts: Most requests for one text, whether the endpoint fails or the answer has no translation.
      max_tokens: Longest answer.
    """

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
        self._translator = ModelTranslator(completer, attempts=attempts, max_tokens=max_tokens)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        return self._translator(texts, source, target)


@gin.register
@typed
class LookUpTranslator:
    """Translates between English and the constructed languages, exactly.

    Texts in other languages fail, and `FirstTranslator` passes them to the next translator.

    Args:
      vocabulary: The English words that the languages have words for.
      codes: Of the constructed languages.

    Raises:
      UserError: there is no such language.
    """

    def __init__(self, vocabulary: Iterable[str], codes: Sequence[str] = tuple(CONSTRUCTED)):
        words = list(vocabulary)
        self._tables = {code: substitution(code, words) for code in codes}
        self._words = {ENGLISH: {word for table in self._tables.values() for word in table.words}} | {
            code: set(table.words.values()) for code, table in self._tables.items()
        }

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that it translates between."""
        return tuple(self._words)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts; without `source` each text's language is detected."""
        return [self._translated(text, source, target) for text in texts]

    def language_of(self, text: str) -> str | None:
        """Returns the language of a text, English if it has no words; None if it is in none of `languages`."""
        words = words_of(text)
        known = {code: sum(word in own for word in words) for code, own in self._words.items()}
        best = max(known, key=lambda code: known[code])
        return best if known[best] >= LEAST_SHARE * len(words) else None

    def _translated(self, text: str, source: str | None, target: str) -> Translated:
        own = self.language_of(text) if source is None else source
        if own is None or not {own, target} <= self._words.keys():
            return TranslationFailure(f"a look-up translates between {', '.join(self._words)} only")
        if own == target:
            return text
        english = text if own == ENGLISH else self._tables[own].english(text)
        return english if target == ENGLISH else self._tables[target].constructed(english)


@gin.register
@typed
class TranslationMemory:
    """Translates questions by looking up their versions in other languages.

    Other texts fail, and so do questions without a version in the target language; `FirstTranslator` passes them to the
    next translator.

    Args:
      questions: The questions; the versions of one question have the same `coupling`.
    """

    def __init__(self, questions: Iterable[Question]):
        self._versions: dict[str, dict[str, str]] = {}
        self._couplings: dict[str, str] = {}
        for question in questions:
            self._versions.setdefault(question.coupling, {})[question.language] = question.text
            self._couplings[question.text.strip()] = question.coupling

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts, whose language is known from the memory; `source` is not used."""
        return [self._translated(text.strip(), target) for text in texts]

    def _translated(self, text: str, target: str) -> Translated:
        if text not in self._couplings:
            return TranslationFailure("the translation memory does not hold this text")
        versions = self._versions[self._couplings[text]]
        if target not in versions:
            return TranslationFailure(f"the translation memory holds this text in {', '.join(versions)}, not {target}")
        return versions[target]


@gin.register
@typed
class RememberedTranslator:
    """Asks another translator once for each text, and caches translations in memory; failures are not cached.

    `TranslationCache` caches in a file, across processes.

    Args:
      translator: The translator to ask.
      texts: Size of the cache; the least recently used translation is dropped.

    Raises:
      UserError: the cache is empty.
    """

    def __init__(self, translator: Translator, texts: int = 1 << 16):
        if texts < 1:
            raise UserError("RememberedTranslator.texts is 0: set it to 1 or more")
        self._translator, self._lock = translator, threading.Lock()
        self._known: cachetools.LRUCache[tuple[str | None, str, str], str] = cachetools.LRUCache(texts)

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        distinct = list(dict.fromkeys(texts))
        with self._lock:
            known = {text: self._known.get((source, target, text)) for text in distinct}
        answers: dict[str, Translated] = {text: answer for text, answer in known.items() if answer is not None}
        missing = [text for text in distinct if text not in answers]
        if missing:
            answers |= zip(missing, self._translator(missing, source, target), strict=True)
            with self._lock:
                for text in missing:
                    if isinstance(answer := answers[text], str):
                        self._known[source, target, text] = answer
        return [answers[text] for text in texts]


@gin.register
@typed
class FirstTranslator:
    """Asks several translators in turn: each gets the texts on which the previous ones failed.

    Constructed languages are looked up this way, and all others translated by a model.

    Args:
      translators: In the order in which they are asked.

    Raises:
      UserError: there are none.
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

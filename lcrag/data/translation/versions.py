"""Every question in every language (LcRL, Section 3.1: parallel data that data sets lack is made by translation)."""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from lcrag.data.languages import language_of
from lcrag.data.questions import Question, with_question_mark
from lcrag.episodes import Translated, TranslationFailure, Translator
from lcrag.errors import UserError


def parallel_versions(
    questions: Iterable[Question], languages: Sequence[str], translator: Translator
) -> list[Question]:
    """Each question with its versions in all `languages`, together, under its one id.

    A version that is there is kept; the others are translated from the first one, question and answers, and say so in
    `extra["translated_from"]`. An answer without letters (a year, a number) is left as it is.

    Raises:
      UserError: an unknown language, or a text that is not translated.
    """
    for language in languages:
        language_of(language)
    versions: dict[str, dict[str, Question]] = {}
    for question in questions:
        versions.setdefault(question.coupling, {})[question.language] = question
    translated = _translations(_wanted(versions.values(), languages), translator)
    return [
        by_language.get(language) or _version(next(iter(by_language.values())), language, translated)
        for by_language in versions.values()
        for language in languages
    ]


_Direction = tuple[str, str]  # source, target


def _wanted(versions: Iterable[dict[str, Question]], languages: Sequence[str]) -> dict[_Direction, list[str]]:
    """What must be translated, each text once for every direction."""
    wanted: dict[_Direction, dict[str, None]] = collections.defaultdict(dict)
    for by_language in versions:
        first = next(iter(by_language.values()))
        for language in languages:
            if language not in by_language:
                texts = (first.text, *filter(_has_letters, first.answers))
                wanted[first.language, language].update(dict.fromkeys(texts))
    return {direction: list(texts) for direction, texts in wanted.items()}


def _translations(wanted: dict[_Direction, list[str]], translator: Translator) -> dict[_Direction, dict[str, str]]:
    return {
        (source, target): dict(zip(texts, whole(translator(texts, source, target)), strict=True))
        for (source, target), texts in wanted.items()
    }


def whole(translations: Sequence[Translated]) -> list[str]:
    """Translations of which none may be missing.

    Raises:
      UserError: one is.
    """
    texts = [each for each in translations if isinstance(each, str)]
    if failure := next((each for each in translations if isinstance(each, TranslationFailure)), None):
        raise UserError(f"a text is not translated: {failure.reason}; mend or change the translator, and begin again")
    return texts


def _version(question: Question, language: str, translated: dict[_Direction, dict[str, str]]) -> Question:
    texts = translated[question.language, language]
    answers = dict.fromkeys(texts.get(answer, answer) for answer in question.answers)
    return dataclasses.replace(
        question,
        language=language,
        text=with_question_mark(texts[question.text]),
        answers=tuple(answers),
        extra=question.extra | {"translated_from": question.language},
    )


def _has_letters(text: str) -> bool:
    return any(character.isalpha() for character in text)

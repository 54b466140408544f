"""Which versions of a question make one coupled group (LcRL, Section 3.1)."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from lcrag.data.batches import Coupled, coupled
from lcrag.data.languages import LANGUAGES
from lcrag.data.questions import Question


def parallel(questions: Iterable[Question]) -> list[Coupled]:
    """Each question in all its languages, asked and answered in its own (the paper's coupled group)."""
    return coupled(questions)


def pivot(questions: Iterable[Question], languages: Sequence[str], size: int = 3) -> list[Coupled]:
    """Each question of each language with its versions in pivot languages, all answered in the native language.

    The versions are the native one, English and the related language (`Language.relative`); where these coincide or
    the question is not asked in one, other languages fill the group, so that all groups have the same size. A version
    keeps the native golden answers, and names their language in `extra["answer_language"]`.

    Args:
      questions: Parallel questions.
      languages: Languages to be native ones in turn, and from which groups are filled, in order.
      size: Versions in a group.
    """
    groups = []
    for versions in coupled(questions):
        by_language = {question.language: question for question in versions}
        for native in (by_language[code] for code in languages if code in by_language):
            wanted = dict.fromkeys((native.language, "en", LANGUAGES[native.language].relative, *languages))
            chosen = [by_language[code] for code in wanted if code in by_language][:size]
            groups.append(tuple(_answering_as(version, native) for version in chosen))
    return groups


def _answering_as(version: Question, native: Question) -> Question:
    extra: Mapping = version.extra | {"answer_language": native.language}
    return dataclasses.replace(version, id=f"{native.id}@{native.language}", answers=native.answers, extra=dict(extra))

"""Pivot coupling: groups of one question in several languages, all answered in the same language."""

import dataclasses
from collections.abc import Iterable, Sequence

from lcrag.data.batches import Coupled, coupled
from lcrag.data.languages import LANGUAGES
from lcrag.data.questions import Question


def pivot(questions: Iterable[Question], languages: Sequence[str], size: int = 3) -> list[Coupled]:
    """Groups each question of each language with its versions in pivot languages, all answered in the native language.

    This is a mode of the authors' code; the paper couples the versions of `lcrag.data.batches.coupled`. The versions
    are the native one, English and the related language (`Language.relative`). If these coincide or the question is not
    asked in one of them, other languages fill the group, so all groups have the same size. Every version keeps the
    native golden answers and names their language in `extra["answer_language"]`.

    Args:
      questions: Parallel questions.
      languages: The native languages, which also fill groups, in order.
      size: Versions in a group.
    """
    groups = []
    for versions in coupled(questions):
        by_language = {question.language: question for question in versions}
        for native in (by_language[code] for code in languages if code in by_language):
            wanted = dict.fromkeys((native.language, "en", LANGUAGES[native.language].relative, *languages))
            chosen = [by_language[code] for code in wanted if code in by_language][:size]
            groups.append(tuple(_answered_as(native, version) for version in chosen))
    return groups


def _answered_as(native: Question, version: Question) -> Question:
    extra = version.extra | {"answer_language": native.language}
    return dataclasses.replace(version, id=f"{native.id}@{native.language}", answers=native.answers, extra=extra)

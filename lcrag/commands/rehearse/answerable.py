"""Counts the questions whose gold answer occurs in a passage of the collections."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lcrag.data.questions import Question
from lcrag.evaluation.answerable import held_golds
from lcrag.retrieval import Collections, Passage, SearchableCollections


def passages_here(searched: SearchableCollections) -> dict[str, Sequence[Passage]] | None:
    """Returns the passages of each language, or None if they are on another machine."""
    if not isinstance(searched, Collections):
        return None
    return {language: searched.collection(language).corpus for language in searched.languages}


def rows_of(passages: Sequence[Passage], most_passages: int) -> range:
    """Returns all rows of a collection, or at most `most_passages` of them at equal distances."""
    return range(0, len(passages), -(-len(passages) // most_passages))


def answerable(
    questions: Sequence[Question], passages: Mapping[str, Sequence[Passage]], most_passages: int
) -> dict[str, dict[str, Any]]:
    """Returns the number of questions in each language, and the share with a gold answer in some passage.

    Args:
      questions: The questions.
      passages: The passages of each language.
      most_passages: Maximum number of passages to scan; for larger collections the shares are lower bounds.

    Returns:
      Language -> "questions", and the shares "native" (in the collection of the question's language), "anywhere", and
      both with "_exact": a gold as written.
    """
    golds = {gold for question in questions for gold in question.answers}
    held = {
        code: held_golds((own[row] for row in rows_of(own, most_passages)), golds) for code, own in passages.items()
    }
    found: dict[str, list[tuple[bool, ...]]] = {}
    for question in questions:
        native = held.get(question.language, {})
        forms = [
            any(gold in own for own in places for gold in question.answers if not exact or own.get(gold))
            for places in ([native], held.values())
            for exact in (False, True)
        ]
        found.setdefault(question.language, []).append(tuple(forms))
    names = ("native", "native_exact", "anywhere", "anywhere_exact")
    return {
        code: {"questions": len(rows)} | dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
        for code, rows in found.items()
    }

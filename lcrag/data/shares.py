"""Part of a data set: a share, as the study of data scale trains on (LcRL, figure 4), or a number of questions."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from lcrag.data.batches import coupled
from lcrag.data.questions import Question
from lcrag.data.seeded_order import seeded_order
from lcrag.errors import UserError


def share_of(questions: Iterable[Question], share: float, *, seed: int) -> list[Question]:
    """A share of the questions, every question in all its languages or in none, in the order in which they came.

    With one seed a smaller share is a part of every larger one.

    Args:
      questions: All questions.
      share: In (0, 1].
      seed: Names the order from whose beginning they are taken.

    Raises:
      UserError: the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise UserError(f"a share of {share:g} of the questions does not exist: give one above 0, and at most 1")
    table = {versions[0].coupling: versions for versions in coupled(questions)}
    kept = set(seeded_order(table, seed)[: max(1, round(share * len(table)))])
    return [question for name, versions in table.items() if name in kept for question in versions]


def limited(questions: Sequence[Question], limit: int | None, *, seed: int) -> list[Question]:
    """At most `limit` questions of each language, in the order in which they came.

    Which ones depends on their ids and the seed alone: the versions of a question go together where every language has
    all questions, and a smaller number is a part of every larger one.

    Args:
      questions: All questions.
      limit: How many of each language; None: all.
      seed: Names the order from whose beginning they are taken.
    """
    if limit is None:
        return list(questions)
    ids: dict[str, list[str]] = defaultdict(list)
    for question in questions:
        ids[question.language].append(question.id)
    kept = {(language, each) for language, own in ids.items() for each in seeded_order(own, seed)[:limit]}
    return [question for question in questions if (question.language, question.id) in kept]

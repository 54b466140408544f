"""Which trajectories of a teacher are right, and which are worth imitating."""

from collections.abc import Sequence

from lcrag.episodes import EpisodeRecord
from lcrag.errors import UserError
from lcrag.rewards import ANSWER_TERMS

KEPT = "kept"
CONTEXT_FULL, NO_ANSWER, WRONG = "the context was full", "no answer", "a wrong answer"
INVALID, TOO_MANY, EMPTY = "an invalid action", "a query too many", "an empty query"
VERDICTS = (KEPT, WRONG, NO_ANSWER, CONTEXT_FULL, INVALID, TOO_MANY, EMPTY)


def right(records: Sequence[EpisodeRecord], answer: str) -> list[bool]:
    """Whether each episode's answer is a golden one.

    Args:
      records: Finished episodes.
      answer: Name of the answer reward that compares them; an answer is right where it earns the whole of it.

    Raises:
      UserError: there is no such answer reward.
    """
    if answer not in ANSWER_TERMS:
        raise UserError(f"no answer reward is called {answer!r}: choose one of {', '.join(ANSWER_TERMS)}")
    scores = ANSWER_TERMS[answer](
        [each.outcome.answer for each in records], [each.question.answers for each in records]
    )
    return [score >= 1.0 for score in scores.tolist()]


def verdict(record: EpisodeRecord, correct: bool) -> str:
    """`KEPT`, or the first reason why an episode is not to be imitated.

    A right answer is not enough: a demonstration also keeps to the program's format.
    """
    if not record.finished:
        return CONTEXT_FULL
    if record.outcome.answer is None:
        return NO_ANSWER
    if not correct:
        return WRONG
    if record.outcome.invalid_actions:
        return INVALID
    if record.outcome.counts.get("dropped_queries"):
        return TOO_MANY
    return EMPTY if record.outcome.counts.get("empty_queries") else KEPT

"""Which questions reinforcement learning is given: hard ones that can be answered, and some easy ones (RAG-R1, 3.2)."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lcrag.data.questions import Question
from lcrag.data.seeded_order import seeded_order
from lcrag.errors import UserError

WRONG_AT_FIRST, RIGHT_AT_FIRST = "wrong at first", "right at first"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selected:
    """A question for reinforcement learning.

    Attributes:
      question: The question.
      because: "wrong at first" or "right at first".
      rollouts: Stochastic rollouts up to the first right one; 0 where none was needed, and where none was right.
    """

    question: Question
    because: str
    rollouts: int


def select(
    questions: Iterable[Question],
    first_right: Mapping[str, bool],
    rollouts_to_right: Mapping[str, int],
    *,
    easy_share: float,
    seed: int,
) -> list[Selected]:
    """The questions worth training on, in the order given.

    Args:
      questions: All that were demonstrated.
      first_right: Whether the demonstration of each (by `Question.key`) was right.
      rollouts_to_right: Of those that were wrong and then answered, how many stochastic rollouts that took.
      easy_share: Share of the questions right at first that is kept, drawn at random.
      seed: Of the draw.

    Raises:
      UserError: the share is not in [0, 1].
    """
    if not 0 <= easy_share <= 1:
        raise UserError(f"selection.easy_share is {easy_share:g}: give a share between 0 and 1")
    right = [key for key, correct in first_right.items() if correct]
    easy = set(seeded_order(right, seed)[: round(easy_share * len(right))])
    selected = []
    for question in questions:
        key = question.key
        if key in easy:
            selected.append(Selected(question=question, because=RIGHT_AT_FIRST, rollouts=0))
        elif key in rollouts_to_right:
            rollouts = rollouts_to_right[key]
            selected.append(Selected(question=question, because=WRONG_AT_FIRST, rollouts=rollouts))
    return selected


def split(selected: Sequence[Selected], validation_share: float, seed: int) -> tuple[list[Selected], list[Selected]]:
    """(training, validation), all language versions of a question on one side.

    Args:
      selected: All of them.
      validation_share: Of the questions.
      seed: Of the split.

    Raises:
      UserError: the share is not in (0, 1), or one side would be empty.
    """
    if not 0 < validation_share < 1:
        raise UserError(f"selection.validation_share is {validation_share:g}: give a share between 0 and 1")
    topics = seeded_order({each.question.coupling for each in selected}, seed)
    held_out = set(topics[: max(1, round(validation_share * len(topics)))])
    if len(held_out) >= len(topics):
        raise UserError(f"{len(topics)} questions were selected, too few to keep some for validation: give it more")
    sides: tuple[list[Selected], list[Selected]] = ([], [])
    for each in selected:
        sides[each.question.coupling in held_out].append(each)
    return sides


def unfiltered(
    questions: Iterable[Question],
    first_right: Mapping[str, bool],
    rollouts_to_right: Mapping[str, int],
    held_out: Iterable[Selected],
    *,
    easy_share: float,
    seed: int,
) -> list[Selected]:
    """What would be trained on without stochastic rollouts (table 4, "w/o Filter"): all that was wrong at first.

    With it the same easy questions as in `select`, and nothing of the validation questions.

    Args:
      questions: As in `select`.
      first_right: As in `select`.
      rollouts_to_right: As in `select`.
      held_out: The questions kept for validation.
      easy_share: As in `select`.
      seed: As in `select`.
    """
    wrong = dict.fromkeys((key for key, correct in first_right.items() if not correct), 0)
    everything = select(questions, first_right, wrong | dict(rollouts_to_right), easy_share=easy_share, seed=seed)
    kept_apart = {each.question.coupling for each in held_out}
    return [each for each in everything if each.question.coupling not in kept_apart]


def question_row(selected: Selected) -> dict[str, Any]:
    """A line that `lcrag.data.jsonl_questions` reads."""
    question = selected.question
    why = {"selected_because": selected.because, "rollouts_to_right": selected.rollouts}
    return {
        "id": question.id,
        "language": question.language,
        "question": question.text,
        "answers": list(question.answers),
        "extra": question.extra | why,
    }

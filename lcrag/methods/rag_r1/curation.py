"""Training data of RAG-R1's stages: segmented trajectories for SFT (section 3.1.2), questions for RL (3.2.1)."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lcrag.data.questions import Question, seeded_order
from lcrag.data.rows import question_row
from lcrag.episodes import Invalid, SearchAction, parse_action
from lcrag.errors import UserError

# What a row's history ends with, and its target.
KINDS = ("question_to_answer", "question_to_search", "information_to_search", "information_to_answer", "completion")
WRONG_AT_FIRST, RIGHT_AT_FIRST = "wrong at first", "right at first"
_OPENING = ("dataset", "question_id", "language", "prompt", "system", "opening")


def segments(episode: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Cuts an episode at every retrieval into rows that `lcrag.data.demonstrations` reads, one for each step.

    The target of a row is a search or the answer; everything before it, retrieved text included, is its history and is
    not a target. Turns that are neither search nor answer are only part of histories. Completions outside the dialogue,
    in programs such as D-RAG's, are one row each.

    Args:
      episode: A row of `lcrag.episodes.episode_json`, without invalid actions.

    Returns:
      Rows with their `kind`, one of `KINDS`.
    """
    opening = {name: episode[name] for name in _OPENING if name in episode}
    rows, history = [], list[dict[str, Any]]()
    for turn in episode["turns"]:
        if turn["by"] != "policy":
            history.append(dict(turn))
            continue
        action = parse_action(turn["text"])
        if not isinstance(action, Invalid):
            target = "search" if isinstance(action, SearchAction) else "answer"
            kind = f"{'information' if history else 'question'}_to_{target}"
            rows.append({**opening, "kind": kind, "turns": [*history, {"by": "policy", "text": turn["text"]}]})
        history.append({**turn, "learn": False})
    for completion in episode.get("completions", ()):
        if completion["model"] is None:  # the policy's; without the system message of the dialogue
            prompt = completion["prompt"]
            asked = {"prompt": prompt, "opening": [completion["opening"] or prompt], "system": None}
            turns = [{"by": "policy", "text": completion["text"]}]
            rows.append({**opening, **asked, "kind": "completion", "turns": turns})
    return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selected:
    """A question for reinforcement learning.

    Attributes:
      because: `WRONG_AT_FIRST` or `RIGHT_AT_FIRST`.
      rollouts: Stochastic rollouts up to the first right one; 0 if none was needed or none was right.
    """

    question: Question
    because: str
    rollouts: int

    def row(self) -> dict[str, Any]:
        """Returns a line that `lcrag.data.rows` reads."""
        return question_row(self.question, extra={"selected_because": self.because, "rollouts_to_right": self.rollouts})


def select(
    questions: Iterable[Question],
    first_right: Mapping[str, bool],
    rollouts_to_right: Mapping[str, int],
    *,
    easy_share: float,
    seed: int,
) -> list[Selected]:
    """Selects hard questions that can be answered, and a random share of the easy ones, in the order given.

    Args:
      questions: All questions that were demonstrated.
      first_right: Whether the demonstration of each (by `Question.key`) was right.
      rollouts_to_right: For questions wrong at first and answered later, how many stochastic rollouts that took.
      easy_share: Share of the questions right at first to keep.
      seed: Seed of that random share.
    """
    if not 0 <= easy_share <= 1:
        raise UserError(f"selection.easy_share is {easy_share:g}: give a share between 0 and 1")
    right = [key for key, correct in first_right.items() if correct]
    easy = set(seeded_order(right, seed)[: round(easy_share * len(right))])
    selected = []
    for question in questions:
        if question.key in easy:
            selected.append(Selected(question=question, because=RIGHT_AT_FIRST, rollouts=0))
        elif question.key in rollouts_to_right:
            rollouts = rollouts_to_right[question.key]
            selected.append(Selected(question=question, because=WRONG_AT_FIRST, rollouts=rollouts))
    return selected


def split(selected: Sequence[Selected], validation_share: float, seed: int) -> tuple[list[Selected], list[Selected]]:
    """Splits questions into (training, validation), all language versions of a question on one side."""
    if not 0 < validation_share < 1:
        raise UserError(f"selection.validation_share is {validation_share:g}: give a share between 0 and 1")
    topics = seeded_order({choice.question.coupling for choice in selected}, seed)
    held_out = set(topics[: max(1, round(validation_share * len(topics)))])
    if len(held_out) >= len(topics):
        raise UserError(f"{len(topics)} questions were selected, too few to keep some for validation: give it more")
    sides: tuple[list[Selected], list[Selected]] = ([], [])
    for choice in selected:
        sides[choice.question.coupling in held_out].append(choice)
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
    """Selects for the ablation "w/o Filter" (table 4): all questions wrong at first, answerable or not.

    The easy questions are those of `select`. Questions in `held_out`, the validation side, are left out.
    """
    wrong = dict.fromkeys((key for key, correct in first_right.items() if not correct), 0)
    everything = select(questions, first_right, wrong | dict(rollouts_to_right), easy_share=easy_share, seed=seed)
    kept_apart = {choice.question.coupling for choice in held_out}
    return [choice for choice in everything if choice.question.coupling not in kept_apart]

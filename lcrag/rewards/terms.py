"""A method's reward: named, weighted terms, then adjustments that look at whole groups."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from lcrag.errors import UserError
from lcrag.methods.lcrl import rewards as coupling
from lcrag.rewards import matching
from lcrag.rewards.mixed_segmentation import mixed_f1

Values: TypeAlias = Float[np.ndarray, " episodes"]
Schedule: TypeAlias = Callable[[int], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episodes:
    """What rewards may know of a batch of finished episodes, one entry an episode.

    Attributes:
      answers: The answers, None where an episode gave none.
      golds: The golden answers of each, aliases included.
      group_ids: Names each episode's group.
      languages: The language each was to be answered in.
      questions: What was asked.
      extra: What a method's own terms need (evidence, plans, calls, ...).
      known: What the data set knows of each question beside its answers (golden plans, tier, ...): `Question.extra`.
      step: The training step, for scheduled weights.
    """

    answers: Sequence[str | None]
    golds: Sequence[tuple[str, ...]]
    group_ids: Int[np.ndarray, " episodes"]
    languages: Sequence[str]
    questions: Sequence[str] = ()
    extra: Sequence[dict[str, Any]] = ()
    known: Sequence[dict[str, Any]] = ()
    step: int = 0


Reward: TypeAlias = Callable[[Episodes], dict[str, Values]]
Adjustment: TypeAlias = Callable[[Episodes, Values], tuple[Values, dict[str, Values]]]
# (name of a question, what its data set knows of it: `Question.extra`) raises a UserError if it cannot be scored
Check: TypeAlias = Callable[[str, Mapping[str, Any]], None]
# (samples of the largest group) raises a UserError if these are too few for an adjustment
GroupCheck: TypeAlias = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Term:
    """One summand of a reward.

    Attributes:
      name: What it is logged as, `reward/<name>`, unweighted.
      score: Computes it.
      weight: Its factor, or a function from the step to it.
    """

    name: str
    score: Callable[[Episodes], Values]
    weight: float | Schedule = 1.0


@dataclasses.dataclass(frozen=True)
class TermSum:
    """The weighted sum of terms, then each adjustment of that total in turn.

    Calling it returns every term under its name, what the adjustments name, and "total".

    Attributes:
      terms: What is summed.
      adjustments: What then looks at whole groups.
      models: Frozen models that terms ask, by what they do: a result depends on what they are made of.
      checks: Find a question that cannot be scored, before anything is sampled for it.
      group_checks: Find groups that are too small.
    """

    terms: tuple[Term, ...]
    adjustments: tuple[Adjustment, ...] = ()
    models: Mapping[str, object] = dataclasses.field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    group_checks: tuple[GroupCheck, ...] = ()

    def check(self, name: str, known: Mapping[str, Any]) -> None:
        """Refuses a question that cannot be scored.

        Args:
          name: Of the question, for messages.
          known: What the data set knows of it.

        Raises:
          UserError: its data set does not say what a term needs.
        """
        for check in self.checks:
            check(name, known)

    def check_groups(self, samples: int) -> None:
        """Refuses groups in which an adjustment could never do anything.

        Args:
          samples: Of the largest group.

        Raises:
          UserError: they are too few.
        """
        for check in self.group_checks:
            check(samples)

    def __call__(self, episodes: Episodes) -> dict[str, Values]:
        values = {term.name: term.score(episodes) for term in self.terms}
        total = sum((_weight(term, episodes.step) * values[term.name] for term in self.terms), np.zeros(()))
        for adjust in self.adjustments:
            total, named = adjust(episodes, total)
            values |= named
        return {"total": total} | values


ANSWER_TERMS: dict[str, Callable[..., Values]] = {
    "c3_recall": matching.c3_recall,
    "c3_recall_bergen": matching.c3_recall_bergen,
    "exact_match": matching.exact_match,
    "flexible_exact_match": matching.flexible_exact_match,
    "mixed_f1": mixed_f1,
    "squad_accuracy": matching.squad_accuracy,
    "squad_exact_match": matching.squad_exact_match,
    "token_f1": matching.token_f1,
}


def answer_term(name: str, **options: Any) -> Term:
    """A term that compares answers with golds.

    Raises:
      UserError: there is no such comparison.
    """
    if name not in ANSWER_TERMS:
        raise UserError(f"no answer reward is called {name!r}: choose one of {', '.join(ANSWER_TERMS)}")
    compare = ANSWER_TERMS[name]
    return Term(name, lambda episodes: compare(episodes.answers, episodes.golds, **options))


def answer_only(answer: str = "exact_match") -> Reward:
    """The answer reward alone, as in Search-R1 (Jin et al., 2025, section 3.4: exact match).

    Args:
      answer: Its name, a key of `ANSWER_TERMS`.

    Raises:
      UserError: there is no such answer reward.
    """
    return TermSum(terms=(answer_term(answer),))


def language_coupled(
    answer: str = "c3_recall",
    weight: float = 0.02,
    threshold: float = 0.4,
    margin: float = 0.5,
    floor: float | None = 0.0,
    short_gold: str = "whole",
) -> Reward:
    """LcRL's reward (Section 3.3): an answer reward and the anti-consistency penalty of its coupled group.

    Ablations of Table 2 by binding alone: `weight = 0` is "w/o Lc reward" (the penalty is still
    logged), `answer = "exact_match"` is "w/o c3Recall".

    Args:
      answer: Name of the answer reward, a key of `ANSWER_TERMS`.
      weight: lambda, the penalty's factor.
      threshold: tau_bad, the answer reward below which an answer is bad.
      margin: gamma, the similarity between bad answers that goes unpunished.
      floor: The least total reward; None: no floor.
      short_gold: How c3 recall treats strings of one or two characters, here and in the similarity.

    Returns:
      A reward that names "total", the answer reward and "anti_consistency".

    Raises:
      UserError: an unknown answer reward, a negative weight or an unknown `short_gold`.
    """
    if weight < 0:
        raise UserError(
            f"language_coupled.weight is {weight}: the penalty is negative already, give a weight of 0 or more"
        )
    if short_gold not in ("whole", "zero"):
        raise UserError(f'language_coupled.short_gold is {short_gold!r}: choose "whole" or "zero"')

    def couple(episodes: Episodes, total: Values) -> tuple[Values, dict[str, Values]]:
        penalties = coupling.anti_consistency(
            episodes.answers, total, episodes.group_ids, threshold, margin, short_gold
        )
        adjusted = coupling.language_coupled_reward(total, penalties, weight, floor)
        return adjusted, {"anti_consistency": penalties}

    options = {"short_gold": short_gold} if answer == "c3_recall" else {}
    return TermSum(terms=(answer_term(answer, **options),), adjustments=(couple,))


def _weight(term: Term, step: int) -> float:
    return term.weight(step) if callable(term.weight) else term.weight

"""Rewards as named, weighted terms, followed by adjustments over whole groups."""

import dataclasses
import functools
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from lcrag.errors import UserError, excerpt, lookup
from lcrag.rewards import matching

Values: TypeAlias = Float[np.ndarray, " episodes"]
Schedule: TypeAlias = Callable[[int], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episodes:
    """The inputs of a reward: a batch of finished episodes, one entry per episode."""

    answers: Sequence[str | None]  # None where an episode gave none
    golds: Sequence[tuple[str, ...]]  # golden answers, aliases included
    group_ids: Int[np.ndarray, " episodes"]
    languages: Sequence[str]  # the required language of each answer
    questions: Sequence[str] = ()  # their texts
    extra: Sequence[dict[str, Any]] = ()  # `Outcome.extra`, for terms of a method (evidence, plans, calls, ...)
    known: Sequence[dict[str, Any]] = ()  # `Question.extra` (golden plans, tier, ...)
    step: int = 0  # training step, for scheduled weights

    def reported(self, name: str, by: str) -> list[Any]:
        """Returns an entry of each episode's `extra`, which the program `by` reports."""
        if len(self.extra) != len(self.answers) or not all(name in extra for extra in self.extra):
            raise UserError(
                f"the reward needs {name} of each episode, which the program does not report: bind Method.program ="
                f" @{by}()"
            )
        return [extra[name] for extra in self.extra]

    def at(self, places: Int[np.ndarray, " chosen"] | Sequence[int]) -> "Episodes":
        """Returns some of the episodes."""
        columns = ("answers", "golds", "languages", "questions", "extra", "known")
        chosen: dict[str, Any] = {
            name: [column[place] for place in places] for name in columns if (column := getattr(self, name))
        }
        return dataclasses.replace(self, **chosen, group_ids=self.group_ids[places])


Reward: TypeAlias = Callable[[Episodes], dict[str, Values]]
Adjustment: TypeAlias = Callable[[Episodes, Values], tuple[Values, dict[str, Values]]]
# (name of a question, its `Question.extra`) -> anything; raises a UserError if the question cannot be scored.
Check: TypeAlias = Callable[[str, Mapping[str, Any]], object]
# (size of the largest group) -> None; raises a UserError if that is too small for an adjustment.
GroupCheck: TypeAlias = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Term:
    """One summand of a reward."""

    name: str  # logged as `reward/<name>`, unweighted
    score: Callable[[Episodes], Values]  # one value per episode; NaN where another model that it asks fails
    weight: float | Schedule = 1.0  # a factor, or a function from the training step to a factor


@dataclasses.dataclass(frozen=True)
class TermSum:
    """Computes the weighted sum of terms, then applies each adjustment to that total in turn.

    Calling it returns every term and every value of the adjustments under its name, and "total". An episode with a NaN
    among its terms could not be scored: its total is NaN, and adjustments see only the other episodes.
    """

    terms: tuple[Term, ...]
    adjustments: tuple[Adjustment, ...] = ()  # functions of whole groups, applied to the sum
    # Frozen models that the terms use, by role; results depend on their content hashes.
    models: Mapping[str, object] = dataclasses.field(default_factory=dict)
    checks: tuple[Check, ...] = ()  # reject questions that cannot be scored, before anything is sampled
    group_checks: tuple[GroupCheck, ...] = ()  # reject groups that are too small
    # Settings that the method's program must have for the terms to mean what they say: {"evidence": True}.
    needs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    couples_languages: bool = False  # whether an adjustment compares the answers to one question in several languages
    # Computes rewards of single turns of the policy (numbered from 0), in addition to each episode's total. They are
    # used only with a critic (PPO).
    turn_rewards: Callable[[Episodes], Sequence[Mapping[int, float]]] | None = None

    def check(self, name: str, known: Mapping[str, Any]) -> None:
        """Raises a UserError if a term cannot score the question `name`.

        `known` is its `Question.extra`, with its golden answers as `answers`.
        """
        for check in self.checks:
            check(name, known)

    def check_groups(self, samples: int) -> None:
        """Raises a UserError if the largest group is too small for an adjustment to have an effect."""
        for check in self.group_checks:
            check(samples)

    def __call__(self, episodes: Episodes) -> dict[str, Values]:
        values = {
            term.name: checked_values(term.name, called(term.name, term.score, episodes), episodes)
            for term in self.terms
        }
        total = np.zeros(())
        for term in self.terms:
            weight = term.weight
            if callable(weight):
                weight = called(f"{term.name}, in its weight,", weight, episodes.step)
            if _finite(weight) is None or math.isnan(weight):
                raise UserError(f"the weight of the reward term {term.name} is {weight} at step {episodes.step}")
            total = total + weight * values[term.name]
        places = np.flatnonzero(~np.isnan(total))
        scored = episodes if len(places) == len(episodes.answers) else episodes.at(places)

        def spread(some: Float[np.ndarray, " chosen"]) -> Values:
            """Returns the values of the scored episodes at their places, and NaN at the others."""
            spread = np.full(len(episodes.answers), np.nan)
            spread[places] = some
            return spread

        for adjust in self.adjustments if len(places) else ():
            returned = called("total", functools.partial(adjust, scored), total[places])
            if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
                raise UserError(
                    f"an adjustment of the reward returned {excerpt(repr(returned))}: return the adjusted totals and a"
                    " dict of values by name"
                )
            adjusted, named = returned
            total = spread(checked_values("total", adjusted, scored))
            values |= {name: spread(checked_values(name, value, scored)) for name, value in named.items()}
        return {"total": checked_values("total", total, episodes)} | values


def called(name: str, score: Callable[[Any], Any], given: Any) -> Any:
    """Returns what a reward term returns; a UserError says where it failed, as it may be a user's own."""
    try:
        return score(given)
    except Exception as error:
        if type(error).__module__.startswith("lcrag"):  # says what is wrong itself, or ends the run
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(
            f"the reward term {name} raised {type(error).__name__}: {excerpt(error)} ({place.filename}, line"
            f" {place.lineno}): correct it; --traceback shows the calls"
        ) from error


def checked_values(name: str, values: Any, episodes: Episodes) -> Values:
    """Returns the values of a reward term as an array; a UserError names the first that is no score.

    A score is a finite number of float32, or NaN for an episode that cannot be scored. Without this check, an infinite
    one would only show as updates that are skipped.
    """
    items: Any = None if isinstance(values, (str, bytes, Mapping)) else getattr(values, "tolist", lambda: values)()
    if not isinstance(items, Sequence) or len(items) != len(episodes.answers):
        returned = f"{len(items)} values" if isinstance(items, Sequence) else excerpt(repr(values))
        raise UserError(
            f"the reward term {name} returned {returned} for {len(episodes.answers)} episodes: return one number for"
            " each"
        )
    numbers = list(map(_finite, items))
    if None in numbers:
        place = numbers.index(None)
        value = items[place] if isinstance(items[place], (int, float)) else repr(items[place])
        question = f" {episodes.questions[place][:60]!r}" if episodes.questions else f" {place}"
        raise UserError(
            f"the reward term {name} returned {excerpt(value)} for question{question}: return a finite number, or NaN"
            " for an episode that cannot be scored"
        )
    return np.array(numbers, np.float64)


def _finite(value: Any) -> float | None:
    """Returns a number as a float, NaN included; None for what is no number, or infinite as float32."""
    if isinstance(value, (str, bytes)) or getattr(value, "ndim", None):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if abs(number) > float(np.finfo(np.float32).max) else number


ANSWER_TERMS: dict[str, Callable[..., Values]] = {
    "c3_f": matching.c3_f,
    "c3_recall": matching.c3_recall,
    "c3_recall_bergen": matching.c3_recall_bergen,
    "exact_match": matching.exact_match,
    "flexible_exact_match": matching.flexible_exact_match,
    "mixed_f1": matching.mixed_f1,
    "squad_accuracy": matching.squad_accuracy,
    "squad_exact_match": matching.squad_exact_match,
    "token_f1": matching.token_f1,
}


def answer_term(name: str, **options: Any) -> Term:
    """Returns the term that compares answers with golds by a function of `ANSWER_TERMS`.

    Of its `options`, those that the function does not have are left out.
    """
    compare = lookup(ANSWER_TERMS, name, "answer reward")
    taken = {option: options[option] for option in inspect.signature(compare).parameters if option in options}
    by_language = "languages" in inspect.signature(compare).parameters

    def score(episodes: Episodes) -> Values:
        asked = {"languages": episodes.languages} if by_language else {}
        return compare(episodes.answers, episodes.golds, **taken, **asked)

    return Term(name, score)


def answer_only(answer: str = "exact_match") -> Reward:
    """Returns an answer reward of `ANSWER_TERMS` alone, as in Search-R1 (Jin et al., 2025, section 3.4)."""
    return TermSum(terms=(answer_term(answer),))

"""How well plans match golden ones: structure, sub-questions and sub-answers (GlobalRAG, 3.2.1, 3.2.2, eq. 1 to 3)."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.methods.globalrag.graph_matching import common_subgraph, edit_distance, graph_of
from lcrag.methods.globalrag.plans import BadPlan, GoldenPlan, QuestionPlan, golden_plans, plan_of
from lcrag.rewards.matching import token_f1

# (texts, other texts) -> their cosine similarities
Similarity: TypeAlias = Callable[[Sequence[str], Sequence[str]], Float[np.ndarray, "texts others"]]
Compare: TypeAlias = Callable[[Sequence[str | None], Sequence[Sequence[str]]], Float[np.ndarray, " answers"]]

PARTS = ("structural", "semantic", "subgoal")
STRUCTURES = ("graded", "binary")


@dataclasses.dataclass(frozen=True)
class PlanPair:
    """An episode's plan with the golden ones of its question.

    Attributes:
      plan: The policy's plan; None (no valid plan) scores 0.
      answers: Key -> the policy's sub-answer.
      golden: The golden plans; the best match counts.
    """

    plan: QuestionPlan | None
    answers: Mapping[str, str]
    golden: Sequence[GoldenPlan]


@dataclasses.dataclass(frozen=True)
class _Match:
    """A plan matched with a golden one: two scores, the matching keys, and whether the search was exhaustive."""

    structural: float
    semantic: float
    keys: tuple[tuple[str, str], ...]
    exact: bool


def plan_scores(
    pairs: Sequence[PlanPair],
    similarity: Similarity,
    threshold: float = 0.7,
    structure: str = "graded",
    compare: Compare = token_f1,
) -> dict[str, Float[np.ndarray, " episodes"]]:
    """Computes the three scores of each episode, each in [0, 1].

    Args:
      pairs: Plans and golden plans, one entry per episode.
      similarity: Compares canonical sub-questions.
      threshold: Minimum similarity of sub-questions that may match.
      structure: "graded", exp(-distance / (|V| + |E|)) with the golden graph's counts, or "binary", 1 at distance 0.
      compare: Scores sub-answers; called once with all of them.

    Returns:
      "structural", "semantic", "subgoal", and "cut", the share of an episode's matches whose search was cut short. An
      episode without a plan scores 0; of several golden plans the one with the largest sum of scores counts.

    Raises:
      UserError: the structure is unknown.
    """
    if structure not in STRUCTURES:
        raise UserError(f"there is no structural reward {structure!r}: choose one of {', '.join(STRUCTURES)}")
    known: dict[Any, _Match] = {}  # the samples of a question often repeat a plan

    def matched(plan: QuestionPlan, golden: QuestionPlan) -> _Match:
        key = tuple(plan.questions.items()), tuple(golden.questions.items())
        if key not in known:
            known[key] = _match(similarity, threshold, structure, plan, golden)
        return known[key]

    laid = [(owner, plan, gold) for owner, each in enumerate(pairs) if (plan := each.plan) for gold in each.golden]
    matches = [matched(plan, golden.plan) for _, plan, golden in laid]
    subgoals = _subgoals([(pairs[owner].answers, golden) for owner, _, golden in laid], matches, compare)
    table = np.array([(m.structural, m.semantic, goal) for m, goal in zip(matches, subgoals, strict=True)])
    scores = {name: np.zeros(len(pairs)) for name in (*PARTS, "cut")}
    best = np.full(len(pairs), -1.0)
    for (owner, *_), match, row in zip(laid, matches, table.reshape(-1, len(PARTS)), strict=True):
        scores["cut"][owner] += (not match.exact) / len(pairs[owner].golden)
        if row.sum() > best[owner]:
            best[owner] = row.sum()
            for name, value in zip(PARTS, row, strict=True):
                scores[name][owner] = value
    return scores


def plan_rewards(
    predicted_plan: object,
    golden_plan: Mapping[str, Sequence[str]] | Sequence[Mapping[str, Sequence[str]]],
    predicted_answers: Mapping[str, str],
    golden_answers: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    similarity: Similarity,
    threshold: float = 0.7,
    structure: str = "graded",
) -> dict[str, float]:
    """Computes the rewards of one plan: {"structural", "semantic", "subgoal"}, each in [0, 1].

    Args:
      predicted_plan: `{"Q1": ["...", "#1"], ...}`; None or an invalid plan scores 0.
      golden_plan: One plan in the same form, or several.
      predicted_answers: By key (`Q1`) or placeholder (`#1`).
      golden_answers: Likewise, each one answer or a list; one mapping per golden plan.
      similarity: Compares two lists of sub-questions, placeholders replaced by a neutral word.
      threshold: Minimum similarity of sub-questions that may match.
      structure: "graded" or "binary", as in `plan_scores`.

    Raises:
      ValueError: a golden plan is invalid or lacks an answer.
      UserError: the structure is unknown.
    """
    several = [golden_plan] if isinstance(golden_plan, Mapping) else list(golden_plan)
    answers = [golden_answers] if isinstance(golden_answers, Mapping) else list(golden_answers)
    golden: list[GoldenPlan] = []
    for plan, given in zip(several, answers, strict=True):
        golden += golden_plans({"plan": plan, "sub_answers": _renamed(given, "#")})
    try:
        predicted = plan_of(predicted_plan)
    except BadPlan:
        predicted = None
    pair = PlanPair(predicted, _renamed(predicted_answers, "Q"), golden)
    scores = plan_scores([pair], similarity, threshold, structure)
    return {name: float(scores[name][0]) for name in PARTS}


def _match(
    similarity: Similarity, threshold: float, structure: str, plan: QuestionPlan, golden: QuestionPlan
) -> _Match:
    mine, theirs = plan.canonical(), golden.canonical()
    similar = np.asarray(similarity(list(mine.values()), list(theirs.values())), np.float64)
    first, second = graph_of(plan), graph_of(golden)
    matching = common_subgraph(first, second, similar, threshold)
    distance = edit_distance(first, second)
    size = second.nodes + len(second.edges)
    keys, golden_keys = list(mine), list(theirs)
    return _Match(
        structural=float(distance == 0) if structure == "binary" else math.exp(-distance / size),
        semantic=sum(min(1.0, similar[pair]) for pair in matching.pairs) / second.nodes,
        keys=tuple((keys[one], golden_keys[other]) for one, other in matching.pairs),
        exact=matching.exact,
    )


def _subgoals(
    pairs: Sequence[tuple[Mapping[str, str], GoldenPlan]], matches: Sequence[_Match], compare: Compare
) -> Float[np.ndarray, " pairs"]:
    """Scores the sub-answers of matched questions of each pair; a missing sub-answer counts 0."""
    asked = [
        (number, given[mine], golden.answers[theirs])
        for number, ((given, golden), match) in enumerate(zip(pairs, matches, strict=True))
        for mine, theirs in match.keys
        if mine in given
    ]
    totals = np.zeros(len(pairs))
    if asked:
        numbers, answers, golds = zip(*asked, strict=True)
        np.add.at(totals, list(numbers), compare(list(answers), list(golds)))
    return totals / [len(golden.plan.questions) for _, golden in pairs]


def _renamed(answers: Mapping[str, Any], first: str) -> dict[str, Any]:
    """The answers under keys that begin with `Q` or `#`, whichever they were given by."""
    return {f"{first}{key[1:]}": value for key, value in answers.items()}

"""How well plans match golden ones: their structure, their sub-questions, and their sub-answers.

Paper: GlobalRAG, sections 3.2.1 and 3.2.2, equations 1 to 3.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.methods.globalrag.graph_matching import common_subgraph, edit_distance, graph_of
from lcrag.methods.globalrag.plans import BadPlan, GoldenPlan, Plan, golden_plans, plan_of
from lcrag.rewards.matching import token_f1

# (texts, other texts) -> their cosine similarities, a row a text
Similarity: TypeAlias = Callable[[Sequence[str], Sequence[str]], Float[np.ndarray, "texts others"]]
Compare: TypeAlias = Callable[[Sequence[str | None], Sequence[Sequence[str]]], Float[np.ndarray, " answers"]]

PARTS = ("structural", "semantic", "subgoal")
STRUCTURES = ("graded", "binary")


@dataclasses.dataclass(frozen=True)
class Planned:
    """An episode's plan beside the golden ones.

    Attributes:
      plan: What the policy planned; None: no valid plan, which scores 0.
      answers: Its sub-answer to each key that has one.
      golden: The golden plans of its question; the best match counts.
    """

    plan: Plan | None
    answers: Mapping[str, str]
    golden: Sequence[GoldenPlan]


@dataclasses.dataclass(frozen=True)
class _Match:
    """A plan laid on a golden one: its scores but for the sub-answers, the keys that match, and whether it is exact."""

    structural: float
    semantic: float
    keys: tuple[tuple[str, str], ...]
    exact: bool


def plan_scores(
    episodes: Sequence[Planned],
    similarity: Similarity,
    threshold: float = 0.7,
    structure: str = "graded",
    compare: Compare = token_f1,
) -> dict[str, Float[np.ndarray, " episodes"]]:
    """The three scores of each episode, each in [0, 1], and the share of its matches that were cut short.

    Args:
      episodes: Plans and what they are to be like.
      similarity: Compares canonical sub-questions.
      threshold: The least similarity of sub-questions that may match.
      structure: "graded", exp(-distance / (|V| + |E|)) with the golden graph's counts, or "binary", 1 at distance 0.
      compare: Scores sub-answers; it is asked once, about all of them.

    Returns:
      "structural", "semantic", "subgoal" and "cut". An episode without a plan scores 0; of several golden plans that
      counts whose three scores have the largest sum.

    Raises:
      UserError: there is no such structure score.
    """
    if structure not in STRUCTURES:
        raise UserError(f"there is no structural reward {structure!r}: choose one of {', '.join(STRUCTURES)}")
    matched = functools.partial(_matched, {}, similarity, threshold, structure)
    laid = [(owner, plan, gold) for owner, each in enumerate(episodes) if (plan := each.plan) for gold in each.golden]
    matches = [matched(plan, golden.plan) for _, plan, golden in laid]
    subgoals = _subgoals([(episodes[owner].answers, golden) for owner, _, golden in laid], matches, compare)
    table = np.array([(m.structural, m.semantic, goal) for m, goal in zip(matches, subgoals, strict=True)])
    scores = {name: np.zeros(len(episodes)) for name in (*PARTS, "cut")}
    best = np.full(len(episodes), -1.0)
    for (owner, *_), match, row in zip(laid, matches, table.reshape(-1, len(PARTS)), strict=True):
        scores["cut"][owner] += (not match.exact) / len(episodes[owner].golden)
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
    """The rewards of one plan: {"structural", "semantic", "subgoal"}, each in [0, 1].

    Args:
      predicted_plan: `{"Q1": ["...", "#1"], ...}`; None or what is no valid plan scores 0.
      golden_plan: The same, or several.
      predicted_answers: By key (`Q1`) or placeholder (`#1`).
      golden_answers: The same, each one answer or several; for several golden plans as many.
      similarity: Compares two lists of sub-questions, placeholders replaced by a neutral word.
      threshold: The least similarity of sub-questions that may match.
      structure: "graded" or "binary", as in `plan_scores`.

    Raises:
      ValueError: a golden plan is none, or lacks an answer.
      UserError: there is no such structure score.
    """
    several = [golden_plan] if isinstance(golden_plan, Mapping) else list(golden_plan)
    answers = [golden_answers] if isinstance(golden_answers, Mapping) else list(golden_answers)
    golden = [_golden(plan, given) for plan, given in zip(several, answers, strict=True)]
    planned = Planned(_valid(predicted_plan), _by_key(predicted_answers), golden)
    scores = plan_scores([planned], similarity, threshold, structure)
    return {name: float(scores[name][0]) for name in PARTS}


def _matched(
    known: dict[Any, _Match], similarity: Similarity, threshold: float, structure: str, plan: Plan, golden: Plan
) -> _Match:
    """Lays a plan on a golden one; what is `known` is not done again: the samples of a question repeat each other."""
    asked = tuple(plan.questions.items()), tuple(golden.questions.items())
    if asked not in known:
        known[asked] = _match(similarity, threshold, structure, plan, golden)
    return known[asked]


def _match(similarity: Similarity, threshold: float, structure: str, plan: Plan, golden: Plan) -> _Match:
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
    """Of each pair, how well the sub-answers of matched questions answer the golden ones; a missing one counts 0."""
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


def _valid(value: object) -> Plan | None:
    try:
        return plan_of(value)
    except BadPlan:
        return None


def _golden(plan: Mapping[str, Sequence[str]], answers: Mapping[str, Any]) -> GoldenPlan:
    given = {f"#{key[1:]}": value for key, value in answers.items()}
    [golden] = golden_plans({"plan": plan, "sub_answers": given})
    return golden


def _by_key(answers: Mapping[str, str]) -> dict[str, str]:
    """The answers by key, whether they were given by key or by placeholder."""
    return {f"Q{key[1:]}": value for key, value in answers.items()}

"""GlobalRAG's rewards: the answer, plus annealed rewards for the plan, its sub-questions, sub-answers and format.

Plans are compared with golden ones by structure, sub-questions and sub-answers (sections 3.2.1 and 3.2.2, equations 1
to 3). Graphs are matched by depth-first branch-and-bound searches over the assignments of one graph's nodes to the
other's, best candidates first. After `MAX_EXPLORED` assignments they return the best found so far, which never beats
the exact result. Two graphs of six nodes need at most 18,703 steps, so results up to that size are always exact.
"""

import collections
import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import gin
import numpy as np
from jaxtyping import Float
from scipy.special import expit

from lcrag.errors import NotNegative, Positive, Share, UserError, excerpt, lookup, typed
from lcrag.methods.globalrag.plans import BadPlan, GoldenPlan, QuestionPlan, golden_plans, plan_of
from lcrag.rewards.matching import token_f1
from lcrag.rewards.terms import ANSWER_TERMS, Episodes, Reward, Schedule, Term, TermSum, Values, answer_term

# texts -> unit vectors
Encode: TypeAlias = Callable[[Sequence[str]], Float[np.ndarray, "texts width"]]
# (texts, other texts) -> their cosine similarities
Similarity: TypeAlias = Callable[[Sequence[str], Sequence[str]], Float[np.ndarray, "texts others"]]
Compare: TypeAlias = Callable[[Sequence[str | None], Sequence[Sequence[str]]], Float[np.ndarray, " answers"]]

MAX_EXPLORED = 20_000
PARTS = ("structural", "semantic", "subgoal")
STRUCTURES = dict.fromkeys(("graded", "binary", "shape"))


class PlanPair(NamedTuple):
    """An episode's plan with the golden ones of its question."""

    plan: QuestionPlan | None  # None (no valid plan) scores 0
    answers: Mapping[str, str]  # key -> the policy's sub-answer
    golden: Sequence[GoldenPlan]  # the best match counts


def plan_scores(
    pairs: Sequence[PlanPair],
    similarity: Similarity,
    threshold: float = 0.7,
    structure: str = "graded",
    compare: Compare = token_f1,
) -> dict[str, Float[np.ndarray, " episodes"]]:
    """Computes the three scores of each episode, each in [0, 1].

    Args:
      pairs: One entry per episode.
      similarity: Compares canonical sub-questions.
      threshold: Minimum similarity of sub-questions that may match.
      structure: "graded", exp(-distance / (|V| + |E|)) with the golden graph's counts, equation 1; "binary", 1 at
        distance 0, as in the authors' code; "shape", as "graded" with a distance that ignores what sub-questions ask.
      compare: Scores sub-answers; called once with all of them.

    Returns:
      "structural", "semantic", "subgoal", and "cut", the share of an episode's matches whose search was cut short. An
      episode without a plan scores 0; of several golden plans the one with the largest sum of scores counts.
    """
    lookup(STRUCTURES, structure, "structural reward")
    # The graphs of every plan and golden plan, matched; the samples of a question often repeat a plan.
    known: dict[Any, tuple[float, float, Matching]] = {}
    compared = [(owner, plan, gold) for owner, (plan, _, golden) in enumerate(pairs) if plan for gold in golden]
    matches = []
    for _, plan, gold in compared:
        key = tuple(plan.questions.items()), tuple(gold.plan.questions.items())
        if key not in known:
            texts, gold_texts = plan.canonical(), gold.plan.canonical()
            similar = np.asarray(similarity(list(texts.values()), list(gold_texts.values())), np.float64)
            if similar.shape != (len(texts), len(gold_texts)) or not np.isfinite(similar).all():
                raise UserError(
                    f"the similarity function returned {excerpt(similar.tolist())} for {len(texts)} sub-questions and"
                    f" {len(gold_texts)} golden ones: return a row of finite numbers for each sub-question"
                )
            graph, gold_graph = graph_of(plan), graph_of(gold.plan)
            matching = common_subgraph(graph, gold_graph, similar, threshold)
            if structure == "shape":
                distance = edit_distance(graph, gold_graph)
            else:
                distance = matched_edit_distance(graph, gold_graph, matching.pairs)
            size = gold_graph.nodes + len(gold_graph.edges)
            structural = float(distance == 0) if structure == "binary" else math.exp(-distance / size)
            semantic = sum(min(1.0, similar[pair]) for pair in matching.pairs) / gold_graph.nodes
            known[key] = structural, semantic, matching
        matches.append(known[key])
    # The sub-answers of matched questions, scored in one call; a missing one counts 0 for its question alone.
    places, answers, golds = [], [], []
    for place, ((owner, plan, gold), (*_, matching)) in enumerate(zip(compared, matches, strict=True)):
        keys, gold_keys = list(plan.questions), list(gold.plan.questions)
        for node, gold_node in matching.pairs:
            if keys[node] in pairs[owner].answers:
                places.append(place)
                answers.append(pairs[owner].answers[keys[node]])
                golds.append(gold.answers[gold_keys[gold_node]])
    subgoals = np.zeros(len(compared))
    if places:
        np.add.at(subgoals, places, compare(answers, golds))
    subgoals /= [len(gold.plan.questions) for *_, gold in compared]
    # The best of several golden plans.
    scores = {name: np.zeros(len(pairs)) for name in (*PARTS, "cut")}
    best = np.full(len(pairs), -1.0)
    for (owner, *_), (structural, semantic, matching), subgoal in zip(compared, matches, subgoals, strict=True):
        scores["cut"][owner] += (not matching.exact) / len(pairs[owner].golden)
        row = np.array([structural, semantic, subgoal])
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
      similarity, threshold, structure: As in `plan_scores`.
    """
    several = [golden_plan] if isinstance(golden_plan, Mapping) else list(golden_plan)
    answers = [golden_answers] if isinstance(golden_answers, Mapping) else list(golden_answers)
    golden: list[GoldenPlan] = []
    for plan, given in zip(several, answers, strict=True):
        golden += golden_plans({"plan": plan, "sub_answers": {f"#{key[1:]}": value for key, value in given.items()}})
    try:
        predicted = plan_of(predicted_plan)
    except BadPlan:
        predicted = None
    pair = PlanPair(predicted, {f"Q{key[1:]}": value for key, value in predicted_answers.items()}, golden)
    scores = plan_scores([pair], similarity, threshold, structure)
    return {name: float(scores[name][0]) for name in PARTS}


class Graph(NamedTuple):
    """A directed graph without loops or pairs of opposite edges, its nodes numbered from 0."""

    nodes: int
    edges: frozenset[tuple[int, int]]


class Matching(NamedTuple):
    """Corresponding nodes (of the first graph, of the second), the steps of the search, and whether it finished."""

    pairs: tuple[tuple[int, int], ...]
    explored: int
    exact: bool


def graph_of(plan: QuestionPlan) -> Graph:
    """Returns a plan's graph, its nodes numbered in the order of the questions."""
    numbers = {key: number for number, key in enumerate(plan.questions)}
    return Graph(len(numbers), frozenset((numbers[before], numbers[key]) for before, key in plan.edges))


def common_subgraph(
    first: Graph,
    second: Graph,
    similarity: Float[np.ndarray, "first second"],
    threshold: float,
    max_explored: int = MAX_EXPLORED,
) -> Matching:
    """Finds the maximum common induced subgraph; among those of equal size, the one of the highest total similarity.

    Two nodes may match if their similarity reaches the threshold. Two matches are compatible if both graphs have an
    edge between the nodes in the same direction, or neither has one.
    """
    similar: list[list[float]] = similarity.T.tolist()  # by node of the second, then of the first
    allowed = [np.flatnonzero(row).tolist() for row in similarity.T >= threshold]
    highest = [max((similar[node][place] for place in row), default=0.0) for node, row in enumerate(allowed)]
    highest_rest = [sum(highest[node:]) for node in range(second.nodes + 1)]
    best: tuple[tuple[int, int], ...] = ()
    best_total, explored = 0.0, 0

    def directions(graph: Graph) -> list[list[int]]:
        """By pair of nodes: 1 for an edge from the first to the second, -1 for the reverse, 0 for none."""
        table = [[0] * graph.nodes for _ in range(graph.nodes)]
        for before, after in graph.edges:
            table[before][after], table[after][before] = 1, -1
        return table

    of_first, of_second = directions(first), directions(second)

    def explore(
        node: int, candidates: Sequence[Sequence[int]], pairs: tuple[tuple[int, int], ...], total: float
    ) -> None:
        """Assigns `node` of the second graph and all later ones; `candidates` are those compatible with `pairs`."""
        nonlocal best, best_total, explored
        explored += 1
        if explored > max_explored:
            return
        if (len(pairs), total) > (len(best), best_total):
            best, best_total = pairs, total
        possible = len(pairs) + sum(map(bool, candidates[node:]))
        if node == second.nodes or (possible, total + highest_rest[node]) <= (len(best), best_total):
            return
        for place in sorted(candidates[node], key=similar[node].__getitem__, reverse=True):
            # Later nodes keep the candidates that are joined to `place` as they are to `node`.
            left: list[Sequence[int]] = [()] * (node + 1)
            for other in range(node + 1, second.nodes):
                direction = of_second[node][other]
                left.append([c for c in candidates[other] if c != place and of_first[place][c] == direction])
            explore(node + 1, left, (*pairs, (place, node)), total + similar[node][place])
        explore(node + 1, candidates, pairs, total)

    explore(0, allowed, (), 0.0)
    return Matching(best, min(explored, max_explored), explored <= max_explored)


def common_edges(first: Graph, second: Graph, places: Mapping[int, int]) -> int:
    """Counts the edges of the first graph that a mapping of its nodes puts on edges of the second."""
    return sum((places.get(before), places.get(after)) in second.edges for before, after in first.edges)


def matched_edit_distance(first: Graph, second: Graph, pairs: Collection[tuple[int, int]]) -> int:
    """Returns the graph edit distance where exactly the pairs (node of the first, of the second) may be substituted.

    A pair costs nothing, every other node a deletion or an insertion, and so does every edge that is not between the
    same pairs in both graphs. The distance of the authors' code, for its mapping.
    """
    nodes = first.nodes + second.nodes - 2 * len(pairs)
    return nodes + len(first.edges) + len(second.edges) - 2 * common_edges(first, second, dict(pairs))


@functools.lru_cache(maxsize=1 << 14)  # the shapes of plans repeat
def edit_distance(first: Graph, second: Graph, max_explored: int = MAX_EXPLORED) -> int:
    """Returns the graph edit distance over insertions and deletions of nodes and edges; labels do not count.

    Substituting a node costs nothing, and deleting one to insert another never pays. The distance is therefore the
    difference in node counts plus all edges minus twice the common ones: the most edges of one graph that an injective
    mapping of its nodes puts on edges of the other. It is an upper bound where the search is cut short.
    `networkx.graph_edit_distance` gives the same, takes 55 times as long at 7 nodes, and only the clock bounds it:
    rewards would depend on the machine's load.
    """
    smaller, larger = sorted((first, second), key=lambda graph: (graph.nodes, len(graph.edges)))

    def by_degree(graph: Graph) -> list[int]:
        """The nodes that have edges, in descending order of degree."""
        degrees = collections.Counter(end for edge in sorted(graph.edges) for end in edge)
        return sorted(degrees, key=degrees.__getitem__, reverse=True)

    nodes, targets = by_degree(smaller), by_degree(larger)
    order = {node: number for number, node in enumerate(nodes)}
    lasts = [max(order[before], order[after]) for before, after in smaller.edges]
    left = [sum(last >= number for last in lasts) for number in range(len(nodes) + 1)]  # edges not mapped yet
    most, best, steps_left = min(len(smaller.edges), len(larger.edges)), 0, max_explored
    common = functools.partial(common_edges, smaller, larger)

    def explore(number: int, places: dict[int, int]) -> None:
        """Maps the nodes from `number` on; `places` maps the earlier ones."""
        nonlocal best, steps_left
        steps_left -= 1
        if steps_left < 0:
            return
        shared = common(places)
        best = max(best, shared)
        if min(shared + left[number], most) <= best:
            return
        longer = [places | {nodes[number]: place} for place in targets if place not in places.values()]
        for mapping in [*sorted(longer, key=common, reverse=True), places]:
            explore(number + 1, mapping)

    explore(0, {})
    return larger.nodes - smaller.nodes + len(smaller.edges) + len(larger.edges) - 2 * best


def annealed(weight: float, transition_steps: float | None, width_steps: float = 10.0) -> float | Schedule:
    """Returns the schedule weight / (1 + exp((t - 0.9 T) / w)) of step t (GlobalRAG, section 3.2.5, equation 6).

    The weight falls from 0.88 to 0.12 of the initial one within 4 w steps (the paper: w = 10); T = None keeps it.
    """
    if transition_steps is None:
        return weight
    turn = 0.9 * transition_steps
    return lambda step: weight * float(expit((turn - step) / width_steps))


@gin.configurable
@typed
def globalrag_reward(
    encoder: Encode,
    answer: str = "squad_exact_match",
    sub_answer: str = "token_f1",
    format_weight: NotNegative = 0.1,
    semantic_weight: NotNegative = 0.5,
    structural_weight: NotNegative = 0.5,
    sub_goal_weight: NotNegative = 0.5,
    transition_steps: Positive | None = 50,
    transition_width: Positive = 10.0,
    threshold: Share = 0.7,
    structure: Literal["graded", "binary", "shape"] = "graded",
) -> Reward:
    """Builds GlobalRAG's reward (section 3.2.5, equation 7): lambda_t (weighted process rewards) + answer.

    Args:
      encoder: Embeds sub-questions, all of a step in one call.
      answer: Compares answers with golds: a key of `ANSWER_TERMS`.
      sub_answer: Compares sub-answers with golden ones: a key of `ANSWER_TERMS`.
      format_weight, semantic_weight, structural_weight, sub_goal_weight: Weights of the process rewards at lambda 1.
      transition_steps: T of lambda_t; None: lambda is 1 throughout.
      transition_width: Steps in which lambda_t falls by a factor e once it is small. Scale it with T in a shorter run
        (the paper: T / 5), because lambda_t begins at 1 / (1 + exp(-0.9 T / width)).
      threshold: Minimum cosine similarity of sub-questions that may match.
      structure: "graded", "binary" or "shape", as in `plan_scores`.

    Returns:
      A reward whose values also have "annealing" (lambda_t) and "matches_cut" (share of matches whose search was cut
      short); those of the process are unweighted.
    """
    final, compare = answer_term(answer), answer_term(sub_answer)
    last: list[tuple[Episodes, dict[str, Values]]] = []  # several terms share the scores of a batch

    def scored(episodes: Episodes) -> dict[str, Values]:
        if last and last[0][0] is episodes:
            return last[0][1]
        pairs = [
            PlanPair(plan_of(plan) if plan else None, sub_answers, _golden(repr(name), known))
            for plan, sub_answers, name, known in zip(
                episodes.reported("plan", "globalrag"),
                episodes.reported("sub_answers", "globalrag"),
                episodes.questions,
                episodes.known,
                strict=True,
            )
        ]
        # Each canonical sub-question is embedded once, all in one call.
        plans = [plan for pair in pairs if pair.plan for plan in (pair.plan, *(gold.plan for gold in pair.golden))]
        texts = list(dict.fromkeys(text for plan in plans for text in plan.canonical().values()))
        places = {text: place for place, text in enumerate(texts)}
        vectors = encoder(texts) if texts else np.zeros((0, 1))

        def similarity(some: Sequence[str], others: Sequence[str]) -> Float[np.ndarray, "some others"]:
            return vectors[[places[text] for text in some]] @ vectors[[places[text] for text in others]].T

        scores = plan_scores(pairs, similarity, threshold, structure, ANSWER_TERMS[compare.name])
        last[:] = [(episodes, scores)]
        return scores

    def well_formed(episodes: Episodes) -> Values:
        return np.array(episodes.reported("well_formed", "globalrag"), np.float64)

    def add_measurements(episodes: Episodes, total: Values) -> tuple[Values, dict[str, Values]]:
        share = annealed(1.0, transition_steps, transition_width)
        share = share(episodes.step) if callable(share) else share
        return total, {"annealing": np.full(len(total), share), "matches_cut": scored(episodes)["cut"]}

    process: tuple[tuple[str, Callable[[Episodes], Values], float], ...] = (
        ("format", well_formed, format_weight),
        ("semantic", lambda episodes: scored(episodes)["semantic"], semantic_weight),
        ("structural", lambda episodes: scored(episodes)["structural"], structural_weight),
        ("sub_goal", lambda episodes: scored(episodes)["subgoal"], sub_goal_weight),
    )
    terms = [Term(name, score, annealed(weight, transition_steps, transition_width)) for name, score, weight in process]
    return TermSum(
        terms=(final, *terms), adjustments=(add_measurements,), models={"encoder": encoder}, checks=(_golden,)
    )


def _golden(name: str, known: Mapping[str, Any]) -> tuple[GoldenPlan, ...]:
    try:
        golden = golden_plans(known)
    except ValueError as error:
        raise UserError(f"the golden plan of the question {name} cannot be used: {error}") from error
    if not golden:
        raise UserError(
            f"globalrag_reward needs a golden plan of every question, and {name} has none: train on the output of"
            " `lcrag curate golden_plans`, or let one-hop questions be their own plans (@with_own_plans)"
        )
    return golden

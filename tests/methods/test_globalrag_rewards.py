"""GlobalRAG's rewards: graphs matched against networkx and brute force, the scores by hand, the terms over steps."""

import dataclasses
import itertools
import math

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_scripts import finished

from lcrag.errors import UserError
from lcrag.methods.globalrag.plans import GoldenPlan, plan_of
from lcrag.methods.globalrag.rewards import (
    MAX_EXPLORED,
    Graph,
    PlanPair,
    annealed,
    common_subgraph,
    edit_distance,
    globalrag_reward,
    matched_edit_distance,
    plan_rewards,
    plan_scores,
)


@st.composite
def graphs(draw, most=4):
    """Directed acyclic graphs: edges go up in some order of the nodes."""
    nodes = draw(st.integers(1, most))
    order = draw(st.permutations(range(nodes)))
    pairs = [pair for pair in itertools.combinations(order, 2) if draw(st.booleans())]
    return Graph(nodes, frozenset(pairs))


def networkx_graph(graph):
    other = networkx.DiGraph()
    other.add_nodes_from(range(graph.nodes))
    other.add_edges_from(graph.edges)
    return other


@given(graphs(), graphs())
def test_the_edit_distance_is_networkx_s(first, second):
    assert edit_distance(first, second) == networkx.graph_edit_distance(networkx_graph(first), networkx_graph(second))
    assert edit_distance(first, second) == edit_distance(second, first)


def same_edges(first, second, pairs):
    return all(
        ((a, c) in first.edges) == ((b, d) in second.edges) for (a, b), (c, d) in itertools.permutations(pairs, 2)
    )


def every_matching(first, second, similarity, threshold):
    """(how many match, how similar) of every common induced subgraph."""
    for count in range(min(first.nodes, second.nodes) + 1):
        for mine in itertools.permutations(range(first.nodes), count):
            for theirs in itertools.combinations(range(second.nodes), count):
                pairs = list(zip(mine, theirs, strict=True))
                if all(similarity[pair] >= threshold for pair in pairs) and same_edges(first, second, pairs):
                    yield count, sum(similarity[pair] for pair in pairs)


@st.composite
def similar_graphs(draw):
    """Two graphs and the similarities of their nodes."""
    first, second = draw(graphs()), draw(graphs())
    cells = st.sampled_from([0.0, 0.5, 0.7, 0.75, 0.9, 1.0])
    row = st.lists(cells, min_size=second.nodes, max_size=second.nodes)
    return first, second, np.array(draw(st.lists(row, min_size=first.nodes, max_size=first.nodes)))


@given(similar_graphs())
def test_the_distance_under_a_matching_is_networkx_s_with_its_pairs_as_node_match(graphs_and_similarity):
    first, second, similarity = graphs_and_similarity
    pairs = common_subgraph(first, second, similarity, 0.7).pairs
    one, other = networkx_graph(first), networkx_graph(second)
    for graph in (one, other):
        networkx.set_node_attributes(graph, {node: node for node in graph}, "number")

    def substitution(node, gold_node):
        return 0 if (node["number"], gold_node["number"]) in pairs else 1000  # never instead of deletion and insertion

    distance = matched_edit_distance(first, second, pairs)
    assert distance == networkx.graph_edit_distance(one, other, node_subst_cost=substitution)
    assert distance >= edit_distance(first, second)
    assert matched_edit_distance(second, first, [pair[::-1] for pair in pairs]) == distance


@given(similar_graphs())
def test_the_matching_is_the_best_of_all(graphs_and_similarity):
    first, second, similarity = graphs_and_similarity
    found = common_subgraph(first, second, similarity, 0.7)
    count, total = max(every_matching(first, second, similarity, 0.7))
    assert found.exact
    assert len(found.pairs) == count
    assert sum(similarity[pair] for pair in found.pairs) == pytest.approx(total)
    assert (len(found.pairs), pytest.approx(total)) in every_matching(first, second, similarity, 0.7)
    assert len({one for one, _ in found.pairs}) == len({other for _, other in found.pairs}) == count


def dense(nodes, seed):
    """A random graph with half of all edges: where nothing is like anything in particular, the search is longest."""
    generator = np.random.default_rng(seed)
    return Graph(nodes, frozenset(p for p in itertools.combinations(range(nodes), 2) if generator.random() < 0.5))


def test_the_search_of_six_nodes_is_always_exact():
    generator = np.random.default_rng(0)
    for seed in range(20):
        found = common_subgraph(dense(6, seed), dense(6, seed + 100), generator.uniform(0.7, 1.0, (6, 6)), 0.7)
        assert found.exact and found.explored <= 18_703
    nodes = sum(math.perm(6, count) * math.comb(n, count) for n in range(7) for count in range(n + 1))
    assert nodes == 18_703 <= MAX_EXPLORED


def test_beyond_the_bound_the_best_found_counts_and_never_more():
    """The cost is bounded by a count of steps; what is cut is never better than the whole."""
    first, second = dense(16, 1), dense(16, 2)
    similarity = np.random.default_rng(0).uniform(0.7, 1.0, (16, 16))
    short, long = (common_subgraph(first, second, similarity, 0.7, most) for most in (50, 2000))
    assert not short.exact
    assert (short.explored, long.explored) == (50, 2000)
    assert 1 < len(short.pairs) <= len(long.pairs)
    assert all(same_edges(first, second, found.pairs) for found in (short, long))
    assert edit_distance(first, second, 50) >= edit_distance(first, second, 2000)


CREEK = {"Q1": ["Whose mouth is Toongabbie Creek?", "#1"], "Q2": ["Into what does #1 flow?", "#2"]}
RENUMBERED = {"Q7": ["Into what does #3 flow?", "#7"], "Q3": ["Whose mouth is Toongabbie Creek?", "#3"]}
FLAT_CREEK = CREEK | {"Q2": ["Into what does something flow?", "#2"]}
UNRELATED = {"Q1": ["Who painted Guernica?", "#1"], "Q2": ["When was #1 born?", "#2"]}
LONGER = CREEK | {"Q3": ["What is the area of #2?", "#3"]}
RIGHT = {"Q1": "Parramatta River", "Q2": "Sydney Harbour", "Q3": "55 km2"}
ANSWERS = {"Q1": ["Parramatta River"], "Q2": ["Sydney Harbour", "Port Jackson"]}


def words(texts, others):
    """A similarity without a model: shared words of all words."""
    sets = [[set(text.lower().split()) for text in side] for side in (texts, others)]
    return np.array([[len(a & b) / len(a | b) for b in sets[1]] for a in sets[0]])


@pytest.mark.parametrize(
    ("plan", "sub_answers", "scores"),
    [
        (CREEK, RIGHT, (1, 1, 1)),
        (RENUMBERED, {"#3": "the Parramatta river", "#7": "Port Jackson"}, (1, 1, 1)),
        (CREEK, {"Q2": "Sydney"}, (1, 1, (0 + 2 / 3) / 2)),  # a missing sub-answer counts 0 for its question only
        # Without the edge only one of the two questions can match; the other is deleted and inserted, with its edge.
        (FLAT_CREEK, RIGHT, (math.exp(-3 / 3), 0.5, 0.5)),
        (UNRELATED, RIGHT, (math.exp(-6 / 3), 0, 0)),  # the right shape earns nothing by itself
        (LONGER, RIGHT, (math.exp(-2 / 3), 1, 1)),  # a question too many costs structure alone
        *((no_plan, RIGHT, (0, 0, 0)) for no_plan in (None, {}, "no plan", {"Q1": "Who?"}, {"Q1": ["Is #2?", "#1"]})),
    ],
)
def test_scores_by_hand(plan, sub_answers, scores):
    found = plan_rewards(plan, CREEK, sub_answers, ANSWERS, words)
    assert found == pytest.approx(dict(zip(("structural", "semantic", "subgoal"), scores, strict=True)))


@pytest.mark.parametrize(
    ("structure", "scores"),
    [
        ("graded", (1, math.exp(-1), math.exp(-2), math.exp(-2 / 3))),
        ("binary", (1, 0, 0, 0)),
        ("shape", (1, math.exp(-1 / 3), 1, math.exp(-2 / 3))),
    ],
)
def test_the_forms_of_the_structural_reward(structure, scores):
    for plan, score in zip((CREEK, FLAT_CREEK, UNRELATED, LONGER), scores, strict=True):
        found = plan_rewards(plan, CREEK, {}, ANSWERS, words, structure=structure)
        assert found["structural"] == pytest.approx(score)


def test_several_golden_plans_and_mistakes_of_the_caller():
    other = {"Q1": ["Into what does Toongabbie Creek's river flow?", "#1"]}
    scores = plan_rewards(CREEK, [other, CREEK], {"Q1": "Parramatta River"}, [{"Q1": "Sydney Harbour"}, ANSWERS], words)
    assert scores == {"structural": 1, "semantic": 1, "subgoal": 0.5}
    with pytest.raises(ValueError, match="cyclic"):
        plan_rewards(CREEK, {"Q1": ["#2?", "#1"], "Q2": ["#1?", "#2"]}, {}, ANSWERS, words)


def test_a_batch_scores_as_its_episodes_do_alone():
    """And asks about all sub-answers at once."""
    asked = []

    def compare(answers, golds):
        asked.append(len(answers))
        return np.array([float(answer in gold) for answer, gold in zip(answers, golds, strict=True)])

    golden = GoldenPlan(plan_of(CREEK), {key: tuple(value) for key, value in ANSWERS.items()})
    batch = [
        PlanPair(plan_of(CREEK), {"Q1": "Parramatta River"}, [golden]),
        PlanPair(None, {}, [golden]),
        PlanPair(plan_of(FLAT_CREEK), {"Q1": "Parramatta River"}, [golden]),
        PlanPair(plan_of(CREEK), {}, [golden, golden]),
    ]
    together = plan_scores(batch, words, compare=compare)
    assert asked == [2]
    for name, values in together.items():
        assert values.tolist() == [plan_scores([each], words, compare=compare)[name][0] for each in batch]
    assert {name: len(values) for name, values in plan_scores([], words).items()} == dict.fromkeys(together, 0)


PLAN = {"Q1": ["Which country has Lima?", "#1"], "Q2": ["What is the currency of #1?", "#2"]}
FLAT = {"Q1": ["Which country has Lima?", "#1"], "Q2": ["What is the currency of something?", "#2"]}
KNOWN = {"plan": PLAN, "sub_answers": {"#1": ["Peru"], "#2": ["sol"]}}
DONE = {"plan": PLAN, "sub_answers": {"Q1": "Peru", "Q2": "the sol"}, "well_formed": True}
NOTHING = {"plan": None, "sub_answers": {}, "well_formed": False}


class Encoder:
    """Orthogonal vectors: a text resembles only itself. Remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked.append(list(texts))
        return np.eye(len(texts), dtype=np.float32)


def episodes(*answers_and_notes, known=None, step=0):
    answers, notes = zip(*answers_and_notes, strict=True)
    known = known or [KNOWN] * len(answers)
    return finished(answers, [("sol",)] * len(answers), extra=notes, known=known, step=step)


BATCH = (
    ("Sol", DONE),
    ("sol", NOTHING),
    (None, DONE | {"well_formed": False}),
    ("dollar", DONE | {"plan": FLAT, "sub_answers": {"Q1": "Peru"}}),
)


def test_the_terms_and_their_sum():
    encoder = Encoder()
    reward = globalrag_reward(encoder, transition_steps=None)
    rewards = reward(episodes(*BATCH))
    assert encoder.asked == [["Which country has Lima?", "What is the currency of something?"]]  # each text once
    flat = math.exp(-1)  # one of two questions, and its edge, is deleted and inserted
    assert rewards["squad_exact_match"].tolist() == [1, 1, 0, 0]
    assert rewards["format"].tolist() == [1, 0, 0, 1]
    assert rewards["semantic"].tolist() == [1, 0, 1, 0.5]
    assert rewards["structural"].tolist() == pytest.approx([1, 0, 1, flat])
    assert rewards["sub_goal"].tolist() == pytest.approx([1, 0, 1, 0.5])
    totals = [1 + 0.1 + 1.5, 1, 1.5, 0.1 + 0.25 + 0.5 * flat + 0.25]
    assert rewards["total"].tolist() == pytest.approx(totals)
    assert rewards["annealing"].tolist() == [1] * 4
    assert rewards["matches_cut"].tolist() == [0] * 4
    reward(episodes(("sol", NOTHING)))
    assert len(encoder.asked) == 1  # nobody planned anything


@pytest.mark.parametrize("step", [0, 45, 60, 100_000])
def test_the_weights_fade_as_equation_6_says(step):
    share = 1 / (1 + math.exp(min(700.0, (step - 0.9 * 50) / 10)))
    assert annealed(0.5, 50)(step) == pytest.approx(0.5 * share)
    rewards = globalrag_reward(Encoder())(episodes(*BATCH, step=step))
    assert rewards["total"][0] == pytest.approx(1 + share * 1.6)
    assert rewards["annealing"].tolist() == pytest.approx([share] * 4)


def test_questions_without_a_golden_plan_and_episodes_of_another_program():
    for known, said in (({}, "needs a golden plan"), ({"plan": {}}, "cannot be used: the plan has no question")):
        with pytest.raises(UserError, match=said):
            globalrag_reward(Encoder())(episodes(("sol", DONE), known=[known]))
    batch = dataclasses.replace(episodes(("sol", DONE)), extra=[{}])
    with pytest.raises(UserError, match="@globalrag"):
        globalrag_reward(Encoder())(batch)

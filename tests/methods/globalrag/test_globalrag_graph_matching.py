"""Exact matching of small graphs, against networkx's edit distance and against trying everything."""

import itertools

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.methods.globalrag.matching import MAX_EXPLORED, Graph, common_subgraph, edit_distance, graph_of
from lcrag.methods.globalrag.plans import parse_plan


@st.composite
def graphs(draw, most=4):
    """Directed acyclic graphs: edges go up in some order of the nodes."""
    nodes = draw(st.integers(1, most))
    order = draw(st.permutations(range(nodes)))
    pairs = [pair for pair in itertools.combinations(order, 2) if draw(st.booleans())]
    return Graph(nodes, frozenset(pairs))


def similarities(draw_from, first, second):
    cells = st.sampled_from([0.0, 0.5, 0.7, 0.75, 0.9, 1.0])
    rows = draw_from.draw(st.lists(st.lists(cells, min_size=second, max_size=second), min_size=first, max_size=first))
    return np.array(rows)


def networkx_graph(graph):
    other = networkx.DiGraph()
    other.add_nodes_from(range(graph.nodes))
    other.add_edges_from(graph.edges)
    return other


@given(graphs(), graphs())
def test_the_edit_distance_is_networkx_s(first, second):
    assert edit_distance(first, second) == networkx.graph_edit_distance(networkx_graph(first), networkx_graph(second))
    assert edit_distance(first, second) == edit_distance(second, first)


def every_matching(first, second, similarity, threshold):
    """(how many match, how similar) of every common induced subgraph."""
    for count in range(min(first.nodes, second.nodes) + 1):
        for mine in itertools.permutations(range(first.nodes), count):
            for theirs in itertools.combinations(range(second.nodes), count):
                pairs = list(zip(mine, theirs, strict=True))
                similar = all(similarity[pair] >= threshold for pair in pairs)
                alike = all(
                    ((a, c) in first.edges) == ((b, d) in second.edges)
                    for (a, b), (c, d) in itertools.permutations(pairs, 2)
                )
                if similar and alike:
                    yield count, sum(similarity[pair] for pair in pairs)


@given(graphs(), graphs(), st.data())
def test_the_matching_is_the_best_of_all(first, second, data):
    similarity = similarities(data, first.nodes, second.nodes)
    found = common_subgraph(first, second, similarity, 0.7)
    count, total = max(every_matching(first, second, similarity, 0.7))
    assert found.exact
    assert len(found.pairs) == count
    assert sum(similarity[pair] for pair in found.pairs) == pytest.approx(total)
    assert (len(found.pairs), pytest.approx(total)) in every_matching(first, second, similarity, 0.7)
    assert len({one for one, _ in found.pairs}) == len({other for _, other in found.pairs}) == count


@given(graphs(most=6), st.data())
def test_the_same_graph_renumbered_matches_completely(graph, data):
    places = data.draw(st.permutations(range(graph.nodes)))
    other = Graph(graph.nodes, frozenset((places[a], places[b]) for a, b in graph.edges))
    similarity = np.full((graph.nodes, graph.nodes), 0.1)
    similarity[range(graph.nodes), places] = 0.95
    assert set(common_subgraph(graph, other, similarity, 0.7).pairs) == set(enumerate(places))
    assert edit_distance(graph, other) == 0


def chain(nodes):
    return Graph(nodes, frozenset(itertools.pairwise(range(nodes))))


def test_incompatible_structures_do_not_match():
    """The same questions, once in a chain and once side by side: one of them can match, no two."""
    apart = Graph(3, frozenset())
    assert len(common_subgraph(chain(3), apart, np.ones((3, 3)), 0.7).pairs) == 2  # the ends, which are not joined
    assert len(common_subgraph(chain(2), Graph(2, frozenset()), np.ones((2, 2)), 0.7).pairs) == 1
    assert len(common_subgraph(chain(2), Graph(2, frozenset({(1, 0)})), np.eye(2), 0.7).pairs) == 1
    assert edit_distance(chain(3), apart) == 2
    assert edit_distance(chain(3), chain(2)) == 2


def test_a_plan_s_graph():
    plan = parse_plan('{"Q3": ["#1 or #2?", "#3"], "Q1": ["Who?", "#1"], "Q2": ["Where?", "#2"]}')
    assert graph_of(plan) == Graph(3, frozenset({(1, 0), (2, 0)}))


def dense(nodes, seed):
    """A random graph with half of all edges: where nothing is like anything in particular, the search is longest."""
    generator = np.random.default_rng(seed)
    return Graph(nodes, frozenset(p for p in itertools.combinations(range(nodes), 2) if generator.random() < 0.5))


def test_the_search_of_six_nodes_is_always_exact():
    generator = np.random.default_rng(0)
    for seed in range(20):
        similarity = generator.uniform(0.7, 1.0, (6, 6))
        found = common_subgraph(dense(6, seed), dense(6, seed + 100), similarity, 0.7)
        assert found.exact
        assert found.explored <= 18_703
    assert sum(
        len(list(itertools.permutations(range(6), count))) * len(list(itertools.combinations(range(n), count)))
        for n in range(7)
        for count in range(n + 1)
    ) == 18_703 <= MAX_EXPLORED  # fmt: skip


def test_beyond_the_bound_the_best_found_counts_and_never_more():
    """The cost is bounded by a count of steps; what is cut is never better than the whole."""
    generator = np.random.default_rng(0)
    first, second = dense(16, 1), dense(16, 2)
    similarity = generator.uniform(0.7, 1.0, (16, 16))
    short, long = (common_subgraph(first, second, similarity, 0.7, most) for most in (50, 2000))
    assert not short.exact
    assert short.explored == 50
    assert long.explored == 2000
    assert 1 < len(short.pairs) <= len(long.pairs)
    for found in (short, long):
        assert all(
            ((a, c) in first.edges) == ((b, d) in second.edges)
            for (a, b), (c, d) in itertools.permutations(found.pairs, 2)
        )
    assert edit_distance(first, second, 50) >= edit_distance(first, second, 2000)

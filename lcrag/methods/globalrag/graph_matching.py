"""Exact matching of small directed graphs with a bounded number of search steps.

Both searches are depth-first branch and bound over the assignments of one graph's nodes to the other's, best candidates
first. After `MOST_EXPLORED` assignments they return the best found so far, which never beats the exact result. Two
graphs of six nodes need at most 18,703 steps, so results up to that size are always exact.
"""

import collections
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from lcrag.methods.globalrag.plans import QuestionPlan

MOST_EXPLORED = 20_000


@dataclasses.dataclass(frozen=True)
class Graph:
    """A directed graph without loops or pairs of opposite edges, its nodes numbered from 0."""

    nodes: int
    edges: frozenset[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Matching:
    """Corresponding nodes of two graphs.

    Attributes:
      pairs: (node of the first, node of the second) of each match.
      explored: Number of assignments explored.
      exact: Whether the search finished within its limit.
    """

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
    most_explored: int = MOST_EXPLORED,
) -> Matching:
    """Finds the maximum common induced subgraph; among those of equal size, the one of the highest total similarity.

    Two nodes may match if their similarity reaches the threshold. Two matches are compatible if both graphs have an
    edge between the nodes in the same direction, or neither has one.
    """
    search = _CommonSubgraph(first, second, similarity, threshold, most_explored)
    search.explore(0, search.candidates, (), 0.0)
    return Matching(search.best, min(search.explored, most_explored), search.explored <= most_explored)


class _CommonSubgraph:
    """The search for `common_subgraph`: assigns the nodes of the second graph one after the other."""

    def __init__(self, first: Graph, second: Graph, similarity: np.ndarray, threshold: float, most_explored: int):
        self._count, self._most_explored = second.nodes, most_explored
        self._similarity: list[list[float]] = similarity.T.tolist()  # by node of the second, then of the first
        allowed = similarity.T >= threshold
        self.candidates = [[place for place in range(first.nodes) if row[place]] for row in allowed]
        best = [
            max((self._similarity[node][each] for each in row), default=0.0) for node, row in enumerate(self.candidates)
        ]
        self._best_rest = [sum(best[node:]) for node in range(self._count + 1)]
        self._first, self._second = _directions(first), _directions(second)
        self.best: tuple[tuple[int, int], ...] = ()
        self._best_total = 0.0
        self.explored = 0

    def explore(
        self, node: int, candidates: Sequence[Sequence[int]], pairs: tuple[tuple[int, int], ...], total: float
    ) -> None:
        """Assigns `node` and all later nodes; `candidates` are those compatible with `pairs`."""
        self.explored += 1
        if self.explored > self._most_explored:
            return
        if (len(pairs), total) > (len(self.best), self._best_total):
            self.best, self._best_total = pairs, total
        possible = len(pairs) + sum(map(bool, candidates[node:]))
        if node == self._count or (possible, total + self._best_rest[node]) <= (len(self.best), self._best_total):
            return
        similar = self._similarity[node]
        for place in sorted(candidates[node], key=similar.__getitem__, reverse=True):
            left = [self._compatible(place, node, other, row) for other, row in enumerate(candidates)]
            self.explore(node + 1, left, (*pairs, (place, node)), total + similar[place])
        self.explore(node + 1, candidates, pairs, total)

    def _compatible(self, place: int, node: int, other: int, row: Sequence[int]) -> list[int]:
        """The candidates `row` of node `other` that remain once `node` is assigned to `place`."""
        if other <= node or not row:
            return []
        direction, directions = self._second[node][other], self._first[place]
        return [each for each in row if each != place and directions[each] == direction]


def edit_distance(first: Graph, second: Graph, most_explored: int = MOST_EXPLORED) -> int:
    """Returns the graph edit distance over insertions and deletions of nodes and edges; labels do not count.

    Substituting a node costs nothing, and deleting one to insert another never pays. The distance is therefore the
    difference in node counts plus all edges minus twice the common ones; an upper bound where the search is cut short.
    """
    smaller, larger = sorted((first, second), key=lambda graph: (graph.nodes, len(graph.edges)))
    common = common_edges(smaller, larger, most_explored)
    return larger.nodes - smaller.nodes + len(smaller.edges) + len(larger.edges) - 2 * common


@functools.lru_cache(maxsize=1 << 14)  # the shapes of plans repeat
def common_edges(first: Graph, second: Graph, most_explored: int = MOST_EXPLORED) -> int:
    """Returns the most edges of `first` that an injective mapping of its nodes puts on edges of `second`."""
    search = _CommonEdges(first, second, most_explored)
    search.explore(0, {}, 0)
    return search.best


class _CommonEdges:
    """The search for `common_edges`, over the nodes that have edges, in descending order of degree."""

    def __init__(self, first: Graph, second: Graph, most_explored: int):
        self._nodes, self._places = _by_degree(first), _by_degree(second)
        self._first, self._second = first.edges, second.edges
        order = {node: number for number, node in enumerate(self._nodes)}
        lasts = [max(order[before], order[after]) for before, after in first.edges]
        self._left = [sum(last >= number for last in lasts) for number in range(len(self._nodes) + 1)]
        self._most = min(len(first.edges), len(second.edges))
        self._steps_left = most_explored
        self.best = 0

    def explore(self, number: int, places: dict[int, int], common: int) -> None:
        """Maps the nodes from `number` on; `places` maps the earlier ones."""
        self._steps_left -= 1
        if self._steps_left < 0:
            return
        self.best = max(self.best, common)
        if min(common + self._left[number], self._most) <= self.best:
            return
        node, taken = self._nodes[number], set(places.values())
        gains = {place: self._gain(node, place, places) for place in self._places if place not in taken}
        for place in sorted(gains, key=gains.__getitem__, reverse=True):
            self.explore(number + 1, places | {node: place}, common + gains[place])
        self.explore(number + 1, places, common)

    def _gain(self, node: int, place: int, places: dict[int, int]) -> int:
        out = sum((node, other) in self._first and (place, at) in self._second for other, at in places.items())
        into = sum((other, node) in self._first and (at, place) in self._second for other, at in places.items())
        return out + into


def _directions(graph: Graph) -> list[list[int]]:
    """A table over pairs of nodes: 1 for an edge from the first to the second, -1 for the reverse, 0 for no edge."""
    table = [[0] * graph.nodes for _ in range(graph.nodes)]
    for before, after in graph.edges:
        table[before][after], table[after][before] = 1, -1
    return table


def _by_degree(graph: Graph) -> list[int]:
    """The nodes that have edges, in descending order of degree."""
    degrees = collections.Counter(end for edge in sorted(graph.edges) for end in edge)
    return sorted(degrees, key=degrees.__getitem__, reverse=True)

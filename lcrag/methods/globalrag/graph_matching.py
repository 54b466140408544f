"""Exact matching of small directed graphs, its cost bounded by a count of explored assignments.

Both searches go depth first through the assignments of one graph's nodes to the other's, best candidates first, and
leave a branch as soon as it cannot beat the best one found. After `MOST_EXPLORED` assignments they stop with the best
so far, which is never better than the exact one. Between two graphs of six nodes there are 18,703 steps at most, so up
to that size the result is always exact.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from lcrag.methods.globalrag.plans import Plan

MOST_EXPLORED = 20_000


@dataclasses.dataclass(frozen=True)
class Graph:
    """A directed graph without loops or pairs of opposite edges.

    Attributes:
      nodes: How many; they are numbered from 0.
      edges: (from, to) of each.
    """

    nodes: int
    edges: frozenset[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Matching:
    """Which nodes of two graphs correspond.

    Attributes:
      pairs: (node of the first, node of the second) of each match.
      explored: Assignments that were looked at.
      exact: Whether the search came to its end.
    """

    pairs: tuple[tuple[int, int], ...]
    explored: int
    exact: bool


def graph_of(plan: Plan) -> Graph:
    """A plan's graph, its nodes numbered in the order of the questions."""
    numbers = {key: number for number, key in enumerate(plan.questions)}
    return Graph(len(numbers), frozenset((numbers[before], numbers[key]) for before, key in plan.edges))


def common_subgraph(
    first: Graph,
    second: Graph,
    similarity: Float[np.ndarray, "first second"],
    threshold: float,
    most_explored: int = MOST_EXPLORED,
) -> Matching:
    """The maximum common induced subgraph: the most nodes, and of equally many those that resemble each other most.

    Two nodes may match if they are similar enough; two matches go together if there is an edge between them in both
    graphs, in the same direction, or in neither.

    Args:
      first: A graph.
      second: Another.
      similarity: Of each node of the first to each of the second.
      threshold: The least similarity of a match.
      most_explored: Assignments to look at.
    """
    search = _CommonSubgraph(first, second, similarity, threshold, most_explored)
    search.explore(0, search.candidates, (), 0.0)
    return Matching(search.best, min(search.explored, most_explored), search.explored <= most_explored)


class _CommonSubgraph:
    """The search for `common_subgraph`: the nodes of the second graph are assigned one after the other."""

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
        """Assigns `node` and all behind it; `candidates` are those that still go together with `pairs`."""
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
            left = [self._going_together(place, node, other, row) for other, row in enumerate(candidates)]
            self.explore(node + 1, left, (*pairs, (place, node)), total + similar[place])
        self.explore(node + 1, candidates, pairs, total)

    def _going_together(self, place: int, node: int, other: int, row: Sequence[int]) -> list[int]:
        if other <= node or not row:
            return []
        direction, directions = self._second[node][other], self._first[place]
        return [each for each in row if each != place and directions[each] == direction]


def edit_distance(first: Graph, second: Graph, most_explored: int = MOST_EXPLORED) -> int:
    """The fewest insertions and deletions of nodes and edges that make one graph the other; labels do not count.

    Where the search is cut, the fewest that were found. Taking a node for another costs nothing, and deleting one to
    insert another never pays, so it is the difference of the numbers of nodes, and all edges but twice the common ones.
    """
    smaller, larger = sorted((first, second), key=lambda graph: (graph.nodes, len(graph.edges)))
    common = common_edges(smaller, larger, most_explored).common
    return larger.nodes - smaller.nodes + len(smaller.edges) + len(larger.edges) - 2 * common


@dataclasses.dataclass(frozen=True)
class CommonEdges:
    """The most edges that two graphs share.

    Attributes:
      common: How many.
      explored: Assignments that were looked at.
    """

    common: int
    explored: int


@functools.lru_cache(maxsize=1 << 14)
def common_edges(first: Graph, second: Graph, most_explored: int = MOST_EXPLORED) -> CommonEdges:
    """The most edges that can fall on edges of `second` where nodes of `first` are laid on different nodes of it.

    The shapes of plans repeat, hence the cache.
    """
    search = _CommonEdges(first, second, most_explored)
    search.explore(0, {}, 0)
    return CommonEdges(search.best, min(search.explored, most_explored))


class _CommonEdges:
    """The search for `common_edges`, over the nodes that have edges, those with most of them first."""

    def __init__(self, first: Graph, second: Graph, most_explored: int):
        degrees, self._others = _degrees(first), _degrees(second)
        self._nodes = sorted(degrees, key=degrees.__getitem__, reverse=True)
        self._places = sorted(self._others, key=self._others.__getitem__, reverse=True)
        self._first, self._second = first.edges, second.edges
        order = {node: number for number, node in enumerate(self._nodes)}
        lasts = [max(order[before], order[after]) for before, after in first.edges]
        self._left = [sum(last >= number for last in lasts) for number in range(len(self._nodes) + 1)]
        self._most = min(len(first.edges), len(second.edges))
        self._most_explored = most_explored
        self.best = 0
        self.explored = 0

    def explore(self, number: int, places: dict[int, int], common: int) -> None:
        """Lays the nodes from `number` on; `places` holds where those before lie."""
        self.explored += 1
        if self.explored > self._most_explored:
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
    """1, -1 or 0 for an edge from, to, or none between each two nodes."""
    table = [[0] * graph.nodes for _ in range(graph.nodes)]
    for before, after in graph.edges:
        table[before][after], table[after][before] = 1, -1
    return table


def _degrees(graph: Graph) -> dict[int, int]:
    """How many edges each node has, of those that have some."""
    degrees: dict[int, int] = {}
    for node in (end for edge in sorted(graph.edges) for end in edge):
        degrees[node] = degrees.get(node, 0) + 1
    return degrees

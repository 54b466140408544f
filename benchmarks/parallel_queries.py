"""Compares the single-query and the multi-query policy of RAG-R1: retrieval rounds and time per question.

    python benchmarks/parallel_queries.py runs/rag_r1/study/several-0/policy runs/rag_r1/study/single-0/policy

Both answer the same held-out questions of the atlas (comparisons, conjunctions, two hops) greedily, with at most five
searches. The sides alternate; times are medians over repeats, per question. Each side runs the program of its training,
so the ratio compares systems, not one policy with and without parallel queries.

The collections are in this process, where a search takes less than a millisecond. `--delay` adds the latency of a
service, and `--at_once=1` asks one question after the other, as an interactive user does.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gin
import numpy as np

import lcrag.composition.commands  # noqa: F401  registers what the files name
from lcrag.atlas.independent_facts import atlas_comparisons, atlas_conjunctions
from lcrag.atlas.world import atlas_questions
from lcrag.composition.collections import atlas_collections
from lcrag.composition.components import make_runner, make_sampler
from lcrag.composition.components import policy as load_policy
from lcrag.composition.configuration import configure, read_configuration
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program, Runner
from lcrag.retrieval import SearchableCollections
from lcrag.rewards import exact_match
from lcrag.train.method import Method

EXPERIMENT = ("rag_r1/atlas.gin",)
BUDGET = 5


class Side(NamedTuple):
    """A policy with the program of its training."""

    name: str
    runner: Runner
    program: Callable[[Question], Program]


class Measured(NamedTuple):
    """Means over the questions of a kind."""

    exact_match: float
    rounds: float
    queries: float
    tokens: float
    seconds: float


def make_side(name: str, folder: str, queries: int, collections: SearchableCollections, delay: float) -> Side:
    policy = load_policy(folder=folder)
    runner = make_runner(make_sampler(policy), policy, collections, seed=0)
    runner.temperature = 0.0
    runner.search = functools.partial(search_later, collections, delay)
    method = gin.get_configurable(Method)().with_settings({"queries": queries, "budget": BUDGET})
    return Side(name, runner, method.on(collections.languages))


def search_later(collections: SearchableCollections, delay: float, *query):
    time.sleep(delay)
    return collections.search(*query)


def ask(side: Side, questions: Sequence[Question], at_once: int) -> tuple[list[EpisodeRecord], float]:
    """Returns the episodes and their seconds."""
    records, seconds = [], 0.0
    for start in range(0, len(questions), at_once):
        asked = list(enumerate(questions))[start : start + at_once]
        records += side.runner.run([(each, side.program(each), number) for number, each in asked])
        seconds += side.runner.statistics.seconds
    return records, seconds


def measure(sides: Sequence[Side], questions: Sequence[Question], repeats: int, at_once: int) -> dict[str, Measured]:
    """Measures each side on the questions; the sides alternate, and the first round compiles."""
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    records: dict[str, list[EpisodeRecord]] = {}
    for repeat in range(repeats + 1):
        for side in sides if repeat % 2 else reversed(sides):
            records[side.name], taken = ask(side, questions, at_once)
            if repeat:
                seconds[side.name].append(taken / len(questions))
    return {name: summary(each, statistics.median(seconds[name])) for name, each in records.items()}


def summary(records: Sequence[EpisodeRecord], seconds: float) -> Measured:
    right = exact_match([each.outcome.answer for each in records], [each.question.answers for each in records])
    counted = functools.partial(mean_count, records)
    return Measured(
        exact_match=float(np.mean(right)),
        rounds=counted("retrieval_rounds"),
        queries=counted("searches"),
        tokens=counted("policy_tokens"),
        seconds=seconds,
    )


def mean_count(records: Sequence[EpisodeRecord], name: str) -> float:
    return float(np.mean([each.counts[name] for each in records]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("several", help="folder of the policy trained on several queries at once")
    parser.add_argument("single", help="folder of the policy trained on one query at a time")
    parser.add_argument("--questions", type=int, default=192, help="of each kind")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--at_once", type=int, default=48, help="questions asked at once")
    parser.add_argument("--delay", type=float, default=0.0, help="additional milliseconds of each search request")
    options = parser.parse_args()
    bindings = (f"Sampler.slots = {options.at_once}",)
    configure(read_configuration(EXPERIMENT, bindings))
    collections, delay = atlas_collections(), options.delay / 1000
    sides = [
        make_side("several queries", options.several, 3, collections, delay),
        make_side("one query", options.single, 1, collections, delay),
    ]
    kinds = {
        "comparisons": atlas_comparisons("held_out", ("en",), limit=options.questions),
        "conjunctions": atlas_conjunctions("held_out", ("en",), limit=options.questions),
        "two hops": atlas_questions("held_out", ("en",), hops=(2,), limit=options.questions),
    }
    print(f"{'':13}{'':17}{'EM':>7}{'rounds':>8}{'queries':>9}{'tokens':>8}{'ms a question':>15}")
    for kind, questions in kinds.items():
        measured = measure(sides, questions, options.repeats, options.at_once)
        for name, each in measured.items():
            counts = f"{each.rounds:8.2f}{each.queries:9.2f}{each.tokens:8.1f}"
            print(f"{kind:13}{name:17}{each.exact_match:7.3f}{counts}{1000 * each.seconds:15.2f}")
        several, single = measured[sides[0].name], measured[sides[1].name]
        ratios = f"{several.rounds / single.rounds:8.2f}{'':17}{several.seconds / single.seconds:15.2f}"
        print(f"{kind:13}{'ratio':17}{'':7}{ratios}")


if __name__ == "__main__":
    main()

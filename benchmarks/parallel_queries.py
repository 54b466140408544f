"""RAG-R1's single-query policy against its multi-query one, side by side: retrieval rounds and time per question.

    python benchmarks/parallel_queries.py runs/rag_r1/study/several-0/policy runs/rag_r1/study/single-0/policy

Both are asked the same held-out questions of the atlas, comparisons and two hops apart, greedily, with at most five
searches. The sides take turns; times are medians of the repeats, of whole batches divided by their questions. Each side
runs the program that it was taught, so the ratio is of systems, not of one policy with and without commas.
"""

import argparse
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lcrag.cli.configuration import configure, read_configuration
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program, Runner, rag_r1
from lcrag.experiments.parts import atlas_collections, atlas_comparisons, atlas_questions, make_runner, make_sampler
from lcrag.experiments.parts import policy as load_policy
from lcrag.rewards import exact_match

EXPERIMENT = ("rag_r1_atlas.gin",)
BUDGET = 5


class Side(NamedTuple):
    """A policy with the program that it was taught."""

    name: str
    runner: Runner
    program: Callable[[Question], Program]


class Measured(NamedTuple):
    """Means over the questions of a kind."""

    exact_match: float
    rounds: float
    queries: float
    seconds: float


def make_side(name: str, folder: str, queries: int, collections) -> Side:
    policy = load_policy(folder=folder)
    runner = make_runner(make_sampler(policy), policy, collections, seed=0)
    runner.temperature = 0.0
    options = {"queries": queries, "budget": BUDGET}
    return Side(name, runner, lambda question: rag_r1(question, collections.languages, **options))


def ask(side: Side, questions: Sequence[Question]) -> tuple[list[EpisodeRecord], float]:
    """The episodes, and the seconds that they took."""
    records = side.runner.run([(each, side.program(each), number) for number, each in enumerate(questions)])
    return records, side.runner.statistics.seconds


def measure(sides: Sequence[Side], questions: Sequence[Question], repeats: int) -> dict[str, Measured]:
    """What each side needs for the questions; the sides take turns, and the first turn of each compiles."""
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    records: dict[str, list[EpisodeRecord]] = {}
    for repeat in range(repeats + 1):
        for side in sides if repeat % 2 else reversed(sides):
            records[side.name], taken = ask(side, questions)
            if repeat:
                seconds[side.name].append(taken / len(questions))
    return {name: summary(each, statistics.median(seconds[name])) for name, each in records.items()}


def summary(records: Sequence[EpisodeRecord], seconds: float) -> Measured:
    right = exact_match([each.outcome.answer for each in records], [each.question.answers for each in records])
    counted = functools.partial(mean_count, records)
    return Measured(float(np.mean(right)), counted("retrieval_rounds"), counted("searches"), seconds)


def mean_count(records: Sequence[EpisodeRecord], name: str) -> float:
    return float(np.mean([each.counts[name] for each in records]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("several", help="folder of the policy that was taught several queries at once")
    parser.add_argument("single", help="folder of the policy that was taught one query at a time")
    parser.add_argument("--questions", type=int, default=192, help="of each kind")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    configure(read_configuration(EXPERIMENT, ()), EXPERIMENT, ())
    collections = atlas_collections()
    sides = [
        make_side("several queries", options.several, 3, collections),
        make_side("one query", options.single, 1, collections),
    ]
    kinds = {
        "comparisons": atlas_comparisons("held_out", ("en",), limit=options.questions),
        "two hops": atlas_questions("held_out", ("en",), hops=2, limit=options.questions),
    }
    print(f"{'':13}{'':17}{'EM':>7}{'rounds':>8}{'queries':>9}{'ms a question':>15}")
    for kind, questions in kinds.items():
        measured = measure(sides, questions, options.repeats)
        for name, each in measured.items():
            line = f"{each.exact_match:7.3f}{each.rounds:8.2f}{each.queries:9.2f}{1000 * each.seconds:15.2f}"
            print(f"{kind:13}{name:17}{line}")
        several, single = measured[sides[0].name], measured[sides[1].name]
        ratios = f"{several.rounds / single.rounds:8.2f}{'':9}{several.seconds / single.seconds:15.2f}"
        print(f"{kind:13}{'ratio':17}{'':7}{ratios}")


if __name__ == "__main__":
    main()

"""Times rollouts with a retriever that answers at once and with one that is slower.

    python benchmarks/slow_retriever.py [--seconds=0.2] [--repeats=3] [--tiny]

64 episodes of 3 turns on 64 slots; each turn samples 8 to 56 tokens, searches, and observes 64 tokens. Lengths differ,
so that at any time about half of the slots wait for a search or for their turn, and the others can go on. Both ways of
the runner are timed: `wait_for_searches = True`, the default, which waits for the searches of a pass at its end and
repeats bit for bit, and `False`, which goes on decoding. All sides alternate.

Prints the median seconds and, for the slower retriever, what it costs: the share by which the rollout takes longer, and
the part of its time in which nothing ran but searches.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence

import jax
import numpy as np
from sampling import EPISODES, MODEL, OBSERVED, PROMPT, texts
from timing import report, timed

from lcrag.atlas.vocabulary import SHIPPED_FOLDER
from lcrag.data.questions import Question
from lcrag.episodes import Generate, Observe, Outcome, Program, Retrieve, Runner
from lcrag.policy import initialise, load_tokenizer
from lcrag.sampling import Sampler, SamplerConfig

TURNS, LENGTHS, BLOCK = 3, (8, 57), 8


def program(prompt: str, observations: Sequence[str], lengths: Sequence[int]) -> Program:
    yield Observe(prompt)
    for observation, length in zip(observations, lengths, strict=True):
        yield Generate(stop=("</never sampled/>",), max_tokens=length)
        yield Retrieve((observation,), ("en",), 1)
        yield Observe(observation)
    return Outcome(answer=None)


class Rollouts:
    """The same rollouts with any retriever, on one sampler."""

    def __init__(self, episodes: int):
        lengths = np.random.default_rng(0).integers(*LENGTHS, (episodes, TURNS))
        context = int(PROMPT + lengths.sum(axis=1).max() + TURNS * OBSERVED + 16)
        settings = SamplerConfig(
            slots=episodes,
            context=context,
            block=BLOCK,
            wanted=0.1,
            append_rows=(8, episodes),  # few shapes: which of them are used depends on timing
            append_tokens=(PROMPT,),
        )
        tokenizer = load_tokenizer(SHIPPED_FOLDER)
        self._tokenizer = dataclasses.replace(tokenizer, eos_ids=(MODEL.vocabulary_size,))  # lengths are forced
        self._sampler = Sampler(MODEL, initialise(MODEL, jax.random.key(0)), self._tokenizer, settings)
        written = [texts(tokenizer, episodes, PROMPT if turn == 0 else OBSERVED, turn) for turn in range(TURNS + 1)]
        self._parts = list(zip(written[0], zip(*written[1:], strict=True), lengths.tolist(), strict=True))

    def run(self, seconds: float, wait: bool) -> tuple[float, float]:
        """Returns the seconds of the rollouts, and those in which nothing ran but searches.

        Args:
          seconds: That a batch of searches takes.
          wait: The runner's `wait_for_searches`.
        """

        def search(queries, languages, passages):
            time.sleep(seconds)
            return [[] for _ in queries]

        runner = Runner(sampler=self._sampler, tokenizer=self._tokenizer, search=search, wait_for_searches=wait)
        question = Question(id="", dataset="benchmark", language="en", text="", answers=())
        programs = [
            (dataclasses.replace(question, id=str(index)), program(*parts), index)
            for index, parts in enumerate(self._parts)
        ]
        _, taken = timed(lambda: runner.run(programs))
        return taken, runner.statistics.retrieval_wait_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.2, help="by which the retriever is slower")
    parser.add_argument("--repeats", type=int, default=3, help="timed rollouts of each side")
    parser.add_argument("--tiny", action="store_true", help="few episodes: a smoke run")
    options = parser.parse_args()
    rollouts = Rollouts(8 if options.tiny else EPISODES)
    sides = {(wait, slower): [] for wait in (True, False) for slower in (0.0, options.seconds)}
    for repeat in range(-1, options.repeats + 1):
        for (wait, slower), taken in sides.items():
            measured = rollouts.run(slower, wait)
            if repeat > 0:  # the first two compile
                taken.append(measured)
    for wait in (True, False):
        (fast, _), (slow, waited) = (
            [statistics.median(column) for column in zip(*sides[wait, slower], strict=True)]
            for slower in (0.0, options.seconds)
        )
        name = f"wait_for_searches = {wait}"
        print(f"{name:26} {fast:6.2f} s, {slow:6.2f} s with the slower retriever: {slow / fast - 1:5.1%} longer, "
              f"{waited / slow:4.0%} of it waiting alone")  # fmt: skip
        report("rollouts with a slower retriever", name, [slow], 1, "rollouts", longer=slow / fast - 1)


if __name__ == "__main__":
    main()

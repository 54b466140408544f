"""Times rollouts with a retriever that answers at once and with one that is slower.

    python benchmarks/slow_retriever.py [--seconds=0.2] [--repeats=3] [--tiny]

64 episodes of 3 turns on 64 slots; each turn samples 8 to 56 tokens, searches, and observes 64 tokens. Lengths differ,
so that while a search runs, about half of the slots can go on; the share that did is printed. Both ways of the runner
are timed: `wait_for_searches = True`, the default, which waits for the searches of a pass at its end and repeats bit
for bit, and `False`, which goes on decoding. All sides alternate, and all shapes are compiled before.

Prints the median seconds and, for the slower retriever, what it costs: the median of the ratios of each round's two
rollouts, and the part of the time in which nothing ran but searches; then how many episodes sampled the same tokens on
all sides (rounding, which depends on the slots served together, may tip a choice between two tokens).
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


class CountingSampler(Sampler):
    """Notes how many of the slots sample in each block while a search runs."""

    searching = False

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.going_on: list[float] = []

    def decode(self):
        if self.searching:
            self.going_on.append(self.running / self.slots)
        return super().decode()


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
            windows=(192,),
            decode_rows=(episodes // 4, episodes // 2, episodes * 3 // 4),
            append_rows=(8, episodes // 4, episodes),
            append_tokens=(PROMPT,),
        )
        tokenizer = load_tokenizer(SHIPPED_FOLDER)
        self._tokenizer = dataclasses.replace(tokenizer, eos_ids=(MODEL.vocabulary_size,))  # lengths are forced
        self._sampler = CountingSampler(MODEL, initialise(MODEL, jax.random.key(0)), self._tokenizer, settings)
        self._sampler.warm_up()  # which shapes are used depends on timing
        written = [texts(tokenizer, episodes, PROMPT if turn == 0 else OBSERVED, turn) for turn in range(TURNS + 1)]
        self._parts = list(zip(written[0], zip(*written[1:], strict=True), lengths.tolist(), strict=True))

    def run(self, seconds: float, wait: bool) -> tuple[float, float, float, list[tuple[int, ...]]]:
        """Returns the seconds of the rollouts, those of searches alone, the slots that went on, and all tokens.

        Args:
          seconds: That a batch of searches takes.
          wait: The runner's `wait_for_searches`.
        """

        def search(queries, languages, passages):
            self._sampler.searching = True
            time.sleep(seconds)
            self._sampler.searching = False  # of two at once the first to end: few blocks are not counted
            return [[] for _ in queries]

        runner = Runner(sampler=self._sampler, tokenizer=self._tokenizer, search=search, wait_for_searches=wait)
        question = Question(id="", dataset="benchmark", language="en", text="", answers=())
        programs = [
            (dataclasses.replace(question, id=str(index)), program(*parts), index)
            for index, parts in enumerate(self._parts)
        ]
        self._sampler.going_on = [0.0]
        records, taken = timed(lambda: runner.run(programs))
        going_on = statistics.fmean(self._sampler.going_on[1:] or [0.0])
        tokens = [tuple(record.tokens.tolist()) for record in records]
        return taken, runner.statistics.retrieval_wait_seconds, going_on, tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.2, help="by which the retriever is slower")
    parser.add_argument("--repeats", type=int, default=3, help="timed rollouts of each side")
    parser.add_argument("--tiny", action="store_true", help="few episodes: a smoke run")
    options = parser.parse_args()
    rollouts = Rollouts(8 if options.tiny else EPISODES)
    sides: dict[tuple[bool, float], list[tuple[float, float, float]]] = {
        (wait, slower): [] for wait in (True, False) for slower in (0.0, options.seconds)
    }
    contexts = []
    for repeat in range(options.repeats + 1):
        for (wait, slower), taken in sides.items():
            *measured, tokens = rollouts.run(slower, wait)
            contexts.append(tokens)
            if repeat > 0:  # the first warms up
                taken.append(tuple(measured))
    for wait in (True, False):
        fast, slow = sides[wait, 0.0], sides[wait, options.seconds]
        longer = statistics.median(one[0] / other[0] for one, other in zip(slow, fast, strict=True)) - 1
        fast_seconds, (seconds, waited, going_on) = (
            statistics.median(each[0] for each in fast),
            (statistics.median(column) for column in zip(*slow, strict=True)),
        )
        name = f"wait_for_searches = {wait}"
        print(
            f"{name:26}{fast_seconds:6.2f} s, {seconds:6.2f} s with searches of {options.seconds} s: {longer:6.1%}"
            f" longer, {waited / seconds:4.0%} waiting alone, {going_on:4.0%} of the slots go on"
        )
        report("rollouts with a slower retriever", name, [seconds], 1, "rollouts", longer=longer, going_on=going_on)
    same = sum(len(set(each)) == 1 for each in zip(*contexts, strict=True))
    print(f"{same} of {len(contexts[0])} episodes have the same tokens in all {len(contexts)} rollouts")


if __name__ == "__main__":
    main()

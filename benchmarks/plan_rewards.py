"""Times GlobalRAG's rewards for a step as large as the paper's.

    python benchmarks/plan_rewards.py [--step_seconds=60] [--questions=256] [--samples=5] [--encoder=atlas/encoder]

Prints the seconds of all rewards of a step, split into the encoder call, the matching of plans and the rest, and their
share of a step that otherwise takes `--step_seconds`. Golden plans are chains, trees and lists of two to four
sub-questions, as in multi-hop data sets; samples repeat them, reorder them, add a question, or drop dependencies. In
the last line every sample has a different plan of maximal size, whose questions are all similar.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence

import numpy as np

from lcrag.composition.components import resolved_folder
from lcrag.composition.frozen_models import QuestionEncoder
from lcrag.methods.globalrag.question_plan import MOST_QUESTIONS
from lcrag.methods.globalrag.rewards import globalrag_reward
from lcrag.rewards import Episodes

RELATIONS = ("capital", "currency", "director", "birthplace", "spouse", "mouth", "founder", "language", "author")
Entries = dict[str, list[str]]


class TimedEncoder:
    """An encoder that sums its seconds."""

    def __init__(self, encode: Callable[[Sequence[str]], np.ndarray]):
        self._encode, self.seconds = encode, 0.0

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        started = time.perf_counter()
        vectors = self._encode(texts)
        self.seconds += time.perf_counter() - started
        return vectors


def golden_plan(generator: random.Random, number: int) -> Entries:
    """Returns sub-questions, each of which names at most one earlier answer."""
    plan = {}
    for place in range(1, generator.randint(2, 4) + 1):
        earlier = generator.choice([f"entity {number}", *(f"#{k}" for k in range(1, place))])
        plan[f"Q{place}"] = [f"What is the {generator.choice(RELATIONS)} of {earlier}?", f"#{place}"]
    return plan


def sample(generator: random.Random, golden: Entries) -> Entries | None:
    """Returns a plan that a policy might write."""
    kind = generator.randrange(5)
    if kind == 0:
        return None
    plan = {key: list(entry) for key, entry in golden.items()}
    if kind == 1:
        plan[f"Q{len(plan) + 1}"] = [f"What is the {generator.choice(RELATIONS)} of #1?", f"#{len(plan) + 1}"]
    if kind == 2:
        plan = {key: [text.replace("#", "number "), variable] for key, (text, variable) in plan.items()}
    return dict(generator.sample(list(plan.items()), len(plan)))


def longest(generator: random.Random, number: int) -> Entries:
    """Returns a plan of maximal size with half of all dependencies, worded unlike every other sample."""
    plan = {}
    for place in range(1, MOST_QUESTIONS + 1):
        named = [f"#{k}" for k in range(1, place) if generator.random() < 0.5]
        plan[f"Q{place}"] = [f"What is the number {number} {place} of {' '.join(named)}?", f"#{place}"]
    return plan


def episodes(golden: Sequence[Entries], plans: Sequence[Entries | None], samples: int) -> Episodes:
    """Episodes with these plans, `samples` to a golden one; every sub-question is answered."""
    known = [
        {"plan": plan, "sub_answers": {variable: [f"the answer {variable}"] for _, variable in plan.values()}}
        for plan in golden
        for _ in range(samples)
    ]
    extra = [
        {"plan": plan, "sub_answers": dict.fromkeys(plan or (), "an answer 1"), "well_formed": plan is not None}
        for plan in plans
    ]
    return Episodes(
        answers=["Lima"] * len(plans),
        golds=[("Lima",)] * len(plans),
        group_ids=np.repeat(np.arange(len(golden)), samples),
        languages=["en"] * len(plans),
        questions=[f"Question {place // samples}?" for place in range(len(plans))],
        extra=extra,
        known=known,
    )


def report(name: str, batch: Episodes, encoder: TimedEncoder, step_seconds: float) -> None:
    """Scores a batch twice, first to compile the encoder's shapes, and prints the second time's seconds."""
    reward = globalrag_reward(encoder)
    reward(batch)
    encoder.seconds = 0.0
    started = time.perf_counter()
    rewards = globalrag_reward(encoder)(batch)
    seconds = time.perf_counter() - started
    print(
        f"{name:22} {len(batch.answers)} episodes {seconds:8.2f} s  encoder {encoder.seconds:7.2f} s"
        f"  the rest {seconds - encoder.seconds:7.2f} s  share of the step {seconds / (seconds + step_seconds):6.1%}"
        f"  searches cut {rewards['matches_cut'].mean():5.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step_seconds", type=float, default=60.0, help="seconds of the rest of a step")
    parser.add_argument("--questions", type=int, default=256, help="questions of a step")
    parser.add_argument("--samples", type=int, default=5, help="episodes of each")
    parser.add_argument("--encoder", default="atlas/encoder", help="folder of the encoder")
    arguments = parser.parse_args()
    generator, encoder = random.Random(0), TimedEncoder(QuestionEncoder(arguments.encoder))
    print(f"encoder {resolved_folder(arguments.encoder)}")
    golden = [golden_plan(generator, number) for number in range(arguments.questions)]
    usual = [sample(generator, plan) for plan in golden for _ in range(arguments.samples)]
    report("a usual step", episodes(golden, usual, arguments.samples), encoder, arguments.step_seconds)
    unlike = [longest(generator, number) for number in range(len(usual))]
    alike = TimedEncoder(lambda texts: np.ones((len(texts), 1), np.float32))
    report("the most questions", episodes(golden, unlike, arguments.samples), alike, arguments.step_seconds)


if __name__ == "__main__":
    main()

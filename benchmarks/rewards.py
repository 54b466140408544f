"""Times the reward kernels against plain Python on the same answers.

    python benchmarks/rewards.py [--repeats=7]

Prints the median milliseconds of both sides (alternating, after a warm-up that fills the caches of compiled kernels and
normalised texts), their ratio, and the seconds of the first call, after checking that both sides agree.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import numpy as np

from lcrag import rewards
from lcrag.methods.lcrl.rewards import anti_consistency
from lcrag.methods.translate_r1.call_costs import cost_adjusted_rewards
from lcrag.testing import plain_costs, plain_rewards

ANSWERS, GOLDS = 4096, 3
GROUPS, GROUP_SIZE = 256, 16
COSTED_GROUPS, SAMPLES = 768, 8  # a step of Translate-R1
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz  ",
    "абвгдежзиклмнопрсту  ",
    "北京東上海市日本国中人大",
    "กขคงจฉชดตถทนบปผพ",
    "ابتثجحدرزسشصطعف  ",
)


def some_answers(count: int, generator: random.Random) -> list[str]:
    """Answers of 2 to 40 characters; half of them are changed copies of others, as in rollouts."""
    fresh = ["".join(generator.choices(generator.choice(ALPHABETS), k=generator.randint(2, 40))) for _ in range(count)]
    return [text if generator.random() < 0.5 else generator.choice(fresh)[:-1] + "x" for text in fresh]


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compare(
    name: str, fast: Callable[[], np.ndarray], plain: Callable[[], list], repeats: int, tolerance: float = 1e-12
) -> None:
    first = seconds(fast)
    np.testing.assert_allclose(fast(), plain(), rtol=0, atol=tolerance)
    times = [(seconds(fast), seconds(plain)) for _ in range(repeats)]
    ours, theirs = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name:24} {ours:9.1f} ms {theirs:12.1f} ms {theirs / ours:8.1f} x {first:12.2f} s")


def compare_costs(repeats: int) -> None:
    """Times the costs of tool calls, with one row per mechanism."""
    drawn = np.random.default_rng(0)
    shape = (COSTED_GROUPS, SAMPLES)
    correct = drawn.random(shape) < drawn.random((COSTED_GROUPS, 1))
    groups = (correct.astype(np.float32), drawn.integers(0, 3, shape), correct)
    plain_groups = tuple(column.tolist() for column in groups)
    print(f"{COSTED_GROUPS} groups of {SAMPLES} samples that call a tool")
    for method in ("flat", "otc", "group_relative", "gated"):
        fast = lambda method=method: np.asarray(cost_adjusted_rewards(*groups, method))  # noqa: E731
        plain = lambda method=method: plain_costs.cost_adjusted_rewards(*plain_groups, method)  # noqa: E731
        compare(f"cost: {method}", fast, plain, repeats, tolerance=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each side")
    repeats = parser.parse_args().repeats
    generator = random.Random(0)
    answers = some_answers(ANSWERS, generator)
    golds = [[generator.choice(answers), *some_answers(GOLDS - 1, generator)] for _ in answers]
    print(f"{ANSWERS} answers x {GOLDS} golds; {GROUPS} groups of {GROUP_SIZE}")
    print(f"{'':24} {'lcrag':>12} {'plain Python':>15} {'ratio':>10} {'first call':>14}")
    for name in ("c3_recall", "c3_recall_bergen", "exact_match", "flexible_exact_match", "token_f1"):
        fast, plain = getattr(rewards, name), getattr(plain_rewards, name)
        compare(name, lambda fast=fast: fast(answers, golds), lambda plain=plain: plain(answers, golds), repeats)
    coupled = (answers, np.zeros(ANSWERS), np.arange(ANSWERS) % GROUPS)
    fast = lambda: anti_consistency(*coupled)  # noqa: E731
    compare("anti_consistency", fast, lambda: plain_rewards.anti_consistency_sets_once(*coupled), repeats)
    compare_costs(repeats)


if __name__ == "__main__":
    main()

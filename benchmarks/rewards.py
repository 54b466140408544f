"""Times the comparisons of rewards against plain Python on the same answers.

    python benchmarks/rewards.py [--repeats=7]

Answers and golds have 30 to 80 characters in twelve scripts, often several in one text; a fifth of an answer's
characters differ from a gold. The first two rows compare with what a user would write: NFKC, lower case and one
translation table, sets of 3-grams and, in groups, each set built once. There c3 recall normalises every text anew, and
its peer's normalisation does less (no simplified Chinese). The other rows compare with the definitions in
`support.plain_rewards`, after checking that both sides agree, texts normalised before where a cache holds them.

Prints the median milliseconds of CPU time of both sides (alternating, after a warm-up), their ratio, and the seconds of
the first call. The floor of c3 recall is the time of what no such design can leave out: encoding the text, two look-ups
a character, and sorting the 3-grams of each answer and its golds.
"""

import argparse
import itertools
import pathlib
import statistics
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from timing import report

from lcrag import rewards
from lcrag.methods.lcrl.program import anti_consistency
from lcrag.methods.translate_r1.costs import cost_adjusted_rewards

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests"))
from support import plain_rewards  # noqa: E402

ANSWERS, GOLDS = 4096, 3
GROUPS, GROUP_SIZE = 256, 16
COSTED_GROUPS, SAMPLES = 768, 8  # a step of Translate-R1
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзийклмнопрстуфхцчшщыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "कखगघचछजझटठडढतथदधनपफबभमयरलवशसह",
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出",
    "あいうえおかきくけこさしすせそたちつてと",
    "가나다라마바사아자차카타파하거너더러",
    "กขคงจฉชซญดตถทนบปผฝพฟ",
    "àéîöüßñçøåæ",
    "ABCDEFGHIJ",
    "0123456789",
)
PUNCTUATION = {code: " " for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "P"}


def some_text(random: np.random.Generator) -> str:
    """Returns words of 2 to 8 characters, each in a script of its own, 30 to 80 characters in all."""
    length, text = int(random.integers(30, 81)), ""
    while len(text) < length:
        text += "".join(random.choice(list(random.choice(ALPHABETS)), random.integers(2, 9)))
        text += random.choice(list(" ,.!?-、。")) if random.random() < 0.3 else " "
    return text[:length]


def edited(text: str, random: np.random.Generator) -> str:
    """Replaces a fifth of the characters."""
    characters = list(text)
    for place in random.integers(0, len(characters), max(1, len(characters) // 5)):
        characters[place] = "x"
    return "".join(characters)


def plain_grams(text: str) -> set[str]:
    return {text[place : place + 3] for place in range(len(text) - 2)}


def plain_normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).lower().translate(PUNCTUATION).split())


def plain_c3_recall(answers: Sequence[str], golds: Sequence[Sequence[str]]) -> list[float]:
    scores = []
    for answer, own in zip(answers, golds, strict=True):
        found = plain_grams(plain_normalised(answer))
        wanted = [plain_grams(plain_normalised(gold)) for gold in own]
        scores.append(max((len(found & each) / len(each) for each in wanted if each), default=0.0))
    return scores


def plain_similarities(groups: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Returns the similarities of each group's normalised answers, every set built once."""
    matrices = []
    for group in groups:
        sets, matrix = [plain_grams(text) for text in group], np.ones((len(group), len(group)), np.float32)
        for i, one in enumerate(sets):
            for j, other in enumerate(sets[:i]):
                common = len(one & other)
                score = (common / len(one) + common / len(other)) / 2 if one and other else 0.0
                matrix[i, j] = matrix[j, i] = score
        matrices.append(matrix)
    return matrices


def seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def compare(
    name: str,
    fast: Callable[[], np.ndarray],
    plain: Callable[[], Sequence],
    repeats: int,
    tolerance: float | None = 1e-12,
    work: str = "",
) -> None:
    """Prints a row, reported as `work` if that is given; without a tolerance the sides need not agree."""
    first = seconds(fast)
    if tolerance is not None:
        np.testing.assert_allclose(fast(), plain(), rtol=0, atol=tolerance)
    times = [(seconds(fast), seconds(plain)) for _ in range(repeats)]
    ours, theirs = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"{name:24} {ours:9.1f} ms {theirs:12.1f} ms {theirs / ours:8.1f} x {first:12.2f} s")
    if work:
        for side, column in zip(("lcrag", "sets in plain Python"), zip(*times, strict=True), strict=True):
            report(work, side, column)


def compare_with_sets(answers: Sequence[str], golds: Sequence[Sequence[str]], repeats: int) -> None:
    def anew() -> np.ndarray:
        rewards.normalise.cache_clear()
        return rewards.c3_recall(answers, golds)

    work = f"c3 recall, {len(answers):,} x {GOLDS}, normalising anew"
    compare("c3_recall, sets", anew, lambda: plain_c3_recall(answers, golds), repeats, tolerance=None, work=work)
    groups = [[edited(text, np.random.default_rng(place)) for place in range(GROUP_SIZE)] for text in answers[:GROUPS]]
    flat, numbers = [text for group in groups for text in group], np.repeat(np.arange(GROUPS), GROUP_SIZE)
    coupled = lambda: anti_consistency(flat, np.zeros(len(flat)), numbers)  # noqa: E731
    ready = [[plain_normalised(text) for text in group] for group in groups]
    plain, pairs = lambda: plain_similarities(ready), f"pairwise similarity, {GROUPS} groups of {GROUP_SIZE}"  # noqa: E731
    compare("anti_consistency, sets", coupled, plain, repeats, tolerance=None, work=pairs)
    texts = [*answers, *itertools.chain.from_iterable(golds)]
    table, width, part = np.arange(1 << 16, dtype=np.uint32), 220, 2048  # the mean number of 3-grams of 4 texts

    def least() -> None:
        for begin in range(0, len(texts), part):
            codes = np.frombuffer("\n".join(texts[begin : begin + part]).encode("utf-32-le"), "<u4").astype(np.intp)
            np.sort(np.resize(table.take(table.take(codes)), (part // (GOLDS + 1), width)), axis=1)

    floor = statistics.median(seconds(least) for _ in range(repeats))
    print(f"{'floor of c3_recall':24} {1e3 * floor:9.1f} ms")
    report(work, "floor", [floor])


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
        plain = lambda method=method: plain_rewards.cost_adjusted_rewards(*plain_groups, method)  # noqa: E731
        compare(f"cost: {method}", fast, plain, repeats, tolerance=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each side")
    parser.add_argument("--only_sets", action="store_true", help="only the rows that compare with sets in plain Python")
    options = parser.parse_args()
    repeats = options.repeats
    generator = np.random.default_rng(0)
    golds = [[some_text(generator) for _ in range(GOLDS)] for _ in range(ANSWERS)]
    answers = [edited(own[generator.integers(GOLDS)], generator) for own in golds]
    print(f"{ANSWERS} answers x {GOLDS} golds; {GROUPS} groups of {GROUP_SIZE}")
    print(f"{'':24} {'lcrag':>12} {'plain Python':>15} {'ratio':>10} {'first call':>14}")
    compare_with_sets(answers, golds, repeats)
    if options.only_sets:
        return
    for name in ("c3_recall", "c3_recall_bergen", "exact_match", "flexible_exact_match", "token_f1"):
        fast, plain = getattr(rewards, name), getattr(plain_rewards, name)
        compare(name, lambda fast=fast: fast(answers, golds), lambda plain=plain: plain(answers, golds), repeats)
    coupled = (answers, np.zeros(ANSWERS), np.arange(ANSWERS) % GROUPS)
    fast = lambda: anti_consistency(*coupled)  # noqa: E731
    compare("anti_consistency", fast, lambda: plain_rewards.anti_consistency_sets_once(*coupled), repeats)
    compare_costs(repeats)


if __name__ == "__main__":
    main()

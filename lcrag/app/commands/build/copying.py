"""The copying pre-task: what gives a tiny decoder its induction circuit before it sees any text.

A row is a sequence of random spans, many of which re-appear; only re-appearing tokens can be
predicted, and only by looking back. Small alphabets make the circuit appear quickly: half of the
rows use one fixed alphabet, half a fresh random one, and the alphabet is widened once copying works.
"""

from collections.abc import Iterator

import numpy as np

from lcrag.learning import Trajectory

TOKENS = 128
SPAN_TOKENS = (3, 10)
REPEATED_SHARE = 0.6
# Step from which each alphabet is used; the circuit appears in the first.
ALPHABETS = ((0, 32), (900, 512), (1050, 4096))


def copying_rows(vocabulary_size: int, rows_per_step: int, seed: int) -> Iterator[Trajectory]:
    """Rows without end, on the schedule of alphabets; only continuations of repeated spans are learned from."""
    generator = np.random.default_rng(seed)
    row = 0
    while True:
        alphabet = [size for first, size in ALPHABETS if row >= first * rows_per_step][-1]
        alphabet = min(alphabet, vocabulary_size)
        words = generator if row % 2 else np.random.default_rng(alphabet)
        symbols, copied = _row(generator, alphabet)
        tokens = words.permutation(vocabulary_size)[:alphabet][symbols].astype(np.int32)
        yield Trajectory(tokens, copied, np.zeros(TOKENS, np.float32))
        row += 1


def _row(generator: np.random.Generator, alphabet: int) -> tuple[np.ndarray, np.ndarray]:
    symbols, copied = np.zeros(TOKENS, np.int64), np.zeros(TOKENS, bool)
    filled = 0
    while filled < TOKENS:
        length = min(int(generator.integers(*SPAN_TOKENS)), TOKENS - filled)
        if filled > 12 and generator.random() < REPEATED_SHARE:
            start = int(generator.integers(0, filled - length))
            symbols[filled : filled + length] = symbols[start : start + length]
            copied[filled + 1 : filled + length] = True  # the first token of a span cannot be foreseen
        else:
            symbols[filled : filled + length] = generator.integers(0, alphabet, length)
        filled += length
    return symbols, copied

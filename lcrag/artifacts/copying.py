"""The copying pre-task: what gives a tiny decoder its induction circuit before it sees any text.

A row is a sequence of random spans, many of which re-appear; only re-appearing tokens can be
predicted, and only by looking back. Small alphabets make the circuit appear quickly: half of the
rows use one fixed alphabet, half a fresh random one, and the alphabet is widened once copying works.
"""

import numpy as np


def copying_rows(
    generator: np.random.Generator, vocabulary_size: int, rows: int, time: int, alphabet: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws rows of re-appearing spans.

    Returns:
      tokens: int32[rows, time].
      copied: bool[rows, time], True where the token continues a span seen before.
    """
    pairs = [_row(generator, time, alphabet) for _ in range(rows)]
    symbols = np.stack([symbols for symbols, _ in pairs])
    copied = np.stack([copied for _, copied in pairs])
    fixed = np.random.default_rng(alphabet).permutation(vocabulary_size)[:alphabet]
    maps = np.stack(
        [fixed if row % 2 else generator.permutation(vocabulary_size)[:alphabet] for row in range(rows)]
    )
    return np.take_along_axis(maps, symbols, axis=1).astype(np.int32), copied


def _row(generator: np.random.Generator, time: int, alphabet: int) -> tuple[np.ndarray, np.ndarray]:
    symbols, copied = np.zeros(time, np.int64), np.zeros(time, bool)
    filled = 0
    while filled < time:
        length = min(int(generator.integers(3, 10)), time - filled)
        if filled > 12 and generator.random() < 0.6:
            start = int(generator.integers(0, filled - length)) if filled > length else 0
            length = min(length, filled - start)
            symbols[filled : filled + length] = symbols[start : start + length]
            copied[filled + 1 : filled + length] = True  # the first token of a span cannot be foreseen
        else:
            symbols[filled : filled + length] = generator.integers(0, alphabet, length)
        filled += length
    return symbols, copied

"""Rows of tokens in batches of finitely many shapes, their rows spread over the devices of this host."""

from collections.abc import Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

ROWS_AXIS = "rows"
# Batches are padded to one of these row counts and one of the token counts: finitely many programs are compiled.
ROW_BUCKETS = (4, 16, 64, 256)
SHORTEST_BUCKET_TOKENS = 16
# Attention scores of one head in one batch on one device: 256 rows of 256 tokens, 64 of 512, one of 4,096 and more.
LARGEST_SCORES = 1 << 24


def rows_mesh() -> Mesh:
    """All devices of this host in a row."""
    return Mesh(np.asarray(jax.local_devices()), (ROWS_AXIS,))


def batches(lengths: Sequence[int], longest_tokens: int, devices: int) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """Indices of texts of like length, so that little padding is computed, and the shape [rows, tokens] to pad to.

    Args:
      lengths: Tokens of each text.
      longest_tokens: The largest of them that there can be.
      devices: The number of rows is a multiple of it.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    start = 0
    while start < len(order):
        for most in (*reversed(ROW_BUCKETS), devices):
            chunk = order[start : start + most]
            tokens = token_bucket(lengths[chunk[-1]], longest_tokens)
            buckets = row_buckets(tokens, devices)
            if len(chunk) <= buckets[-1]:
                break
        yield chunk, (next(rows for rows in buckets if rows >= len(chunk)), tokens)
        start += len(chunk)


def token_bucket(tokens: int, longest_tokens: int) -> int:
    """The least power of two from 16 on that is enough, at most the longest text."""
    bucket = SHORTEST_BUCKET_TOKENS
    while bucket < tokens:
        bucket *= 2
    return min(bucket, longest_tokens)


def row_buckets(tokens: int, devices: int) -> list[int]:
    """Ascending row counts for texts of so many tokens: whole rows a device, few enough for its memory."""
    per_device = max(1, LARGEST_SCORES // tokens**2)
    rounded = sorted({-(-rows // devices) * devices for rows in ROW_BUCKETS})
    return [rows for rows in rounded if rows <= per_device * devices] or [per_device * devices]


def pad_rows(
    rows: Sequence[Sequence[int]], shape: tuple[int, int]
) -> tuple[Int[np.ndarray, "batch time"], Int[np.ndarray, " batch"]]:
    """Right-padded tokens and lengths; rows beyond the given ones have one padding token (a mean needs one)."""
    tokens, lengths = np.zeros(shape, np.int32), np.ones(shape[0], np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        lengths[index] = len(row)
    return tokens, lengths

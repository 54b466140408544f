"""Similarity of the answers within a group; each set of grams is built once."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float, Int, UInt64

from lcrag.rewards import kernels
from lcrag.rewards.matching import ratio
from lcrag.rewards.string_arrays import PADDING, Packed, blocks, pack


def largest_similarities(texts: Sequence[str], groups: Int[np.ndarray, " texts"]) -> Float[np.ndarray, " texts"]:
    """Returns the largest similarity of each text to another text of its group, 0 for a group of one.

    The similarity of two texts is the mean of their 3-gram recalls in both directions, 0 if either is empty.

    Args:
      texts: Normalised texts; one of fewer than 3 characters is one gram, itself.
      groups: Group of each text, numbered from 0 without gaps.
    """
    largest = np.zeros(len(texts))
    count = int(groups.max(initial=-1)) + 1
    places, sizes = _numbered_within(groups, count)
    owners, columns, vocabularies = _gram_columns(pack(texts), groups, count)
    for members, size, width, rows in blocks(sizes, vocabularies):
        row_of = np.full(count, -1)
        row_of[members] = np.arange(len(members))
        here = row_of[groups] >= 0
        inside = here[owners]
        incidence = np.zeros((rows, size, width), np.uint8)
        incidence[row_of[groups[owners[inside]]], places[owners[inside]], columns[inside]] = 1
        common = jax.device_get(kernels.common_in_groups(jax.device_put(incidence)))
        largest[here] = _largest(common)[row_of[groups[here]], places[here]]
    return largest


def _largest(common: Int[np.ndarray, "groups size size"]) -> Float[np.ndarray, "groups size"]:
    """Returns the largest off-diagonal similarity of each row, from the counts of shared grams."""
    counts = np.diagonal(common, axis1=1, axis2=2)
    recalls = ratio(common, np.broadcast_to(counts[:, None, :], common.shape))
    similarity = (recalls + recalls.swapaxes(1, 2)) / 2
    return np.where(np.eye(common.shape[1], dtype=bool), 0.0, similarity).max(axis=-1)


def _numbered_within(
    groups: Int[np.ndarray, " items"], count: int
) -> tuple[Int[np.ndarray, " items"], Int[np.ndarray, " groups"]]:
    """Returns the position of each item within its group, and the sizes of the `count` groups."""
    sizes = np.bincount(groups, minlength=count)
    order = np.argsort(groups, kind="stable")
    places = np.empty(len(groups), np.int64)
    places[order] = np.arange(len(groups)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places, sizes


def _gram_columns(
    packed: Packed, groups: Int[np.ndarray, " texts"], count: int
) -> tuple[Int[np.ndarray, " entries"], Int[np.ndarray, " entries"], Int[np.ndarray, " groups"]]:
    """Numbers the grams of each of `count` groups from 0.

    Returns:
      For every gram of every text its text and its number within the group (equal for repeated grams), and the number
      of distinct grams of each group.
    """
    owners, grams = _grams(packed)
    numbers = np.unique(grams, return_inverse=True)[1]
    span = len(grams) + 1
    in_group, entries = np.unique(groups[owners] * span + numbers, return_inverse=True)
    columns, vocabularies = _numbered_within(in_group // span, count)
    return owners, columns[entries], vocabularies


def _grams(packed: Packed) -> tuple[Int[np.ndarray, " grams"], UInt64[np.ndarray, " grams"]]:
    """Returns every 3-gram of every text as (text, the 63 bits of its three code points)."""
    owners = np.repeat(np.arange(len(packed.lengths)), packed.lengths)
    position = np.arange(len(owners)) - packed.starts[owners]
    left_over = packed.lengths[owners] - position
    exists = (left_over >= 3) | (position == 0)
    at = np.flatnonzero(exists)
    codes = [
        np.where(left_over[at] > k, packed.numbers.take(at + k, mode="clip"), PADDING).astype(np.uint64)
        for k in range(3)
    ]
    return owners[at], codes[0] << 42 | codes[1] << 21 | codes[2]

"""Random orders and choices that depend on a seed and the items' own names, and so survive a row more or less."""

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence

from lcrag.errors import UserError


def seeded_order(keys: Iterable[str], seed: int) -> list[str]:
    """The keys by the SHA-256 of seed and key: whatever order they come in, and whichever others are there."""
    return sorted(keys, key=lambda key: (hashlib.sha256(f"{seed}:{key}".encode()).digest(), key))


def in_share(key: str, share: float, seed: int) -> bool:
    """Whether a key is of the share (0 to 1) of all keys that a seed chooses; of a larger share it is, too."""
    return zlib.crc32(f"{seed}/{key}".encode()) < share * 2**32


def take_split(keys: Iterable[str], split: str, sizes: Mapping[str, int], *, seed: int, what: str) -> Sequence[str]:
    """The keys of one split: consecutive pieces of the seeded order, in the order of `sizes`.

    A smaller last split is a beginning of a larger one, and the splits before it do not change with it.

    Args:
      keys: All keys.
      split: Name of the split; "all": every key.
      sizes: Split -> its number of keys.
      seed: Names the order.
      what: What the keys are, for messages: "questions of mkqa".

    Raises:
      UserError: there is no such split, or there are too few keys for all of them.
    """
    order = seeded_order(keys, seed)
    if split == "all":
        return order
    if split not in sizes:
        raise UserError(f"there is no split {split!r} of the {what}: use one of {', '.join([*sizes, 'all'])}")
    if sum(sizes.values()) > len(order):
        wanted = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UserError(f"there are only {len(order)} usable {what} for the splits {wanted}: ask for smaller ones")
    names = list(sizes)
    start = sum(sizes[name] for name in names[: names.index(split)])
    return order[start : start + sizes[split]]

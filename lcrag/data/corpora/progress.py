"""How far the making of shards is."""

import dataclasses
import time

from lcrag.data.corpora.documents import Block
from lcrag.data.corpora.source import Source


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """A moment of the making of shards.

    Attributes:
      passages: Those embedded so far, earlier attempts included.
      passages_per_second: Of this attempt.
      share: Of the source's bytes, in [0, 1].
      seconds_left: Estimated from the bytes and the time of this attempt; None before its first shard.
    """

    passages: int
    passages_per_second: float
    share: float
    seconds_left: float | None


class Meter:
    """Counts the shards of one attempt."""

    def __init__(self, source: Source, passages: int):
        sizes = [path.stat().st_size for path in source.files]
        self._before = [sum(sizes[:number]) for number in range(len(sizes))]
        self._total = max(1, sum(sizes))
        self._found, self._made = passages, 0
        self._started = time.monotonic()
        self._first: tuple[float, float] | None = None

    def add(self, block: Block, passages: int) -> Progress:
        """A shard more, that of `block`."""
        now, share = time.monotonic(), min(1.0, (self._before[block.file] + block.bytes_read) / self._total)
        self._made += passages
        return Progress(
            passages=self._found + self._made,
            passages_per_second=self._made / max(now - self._started, 1e-9),
            share=share,
            seconds_left=self._seconds_left(now, share),
        )

    def _seconds_left(self, now: float, share: float) -> float | None:
        """Counted from the first shard on, which compiled the encoder and where an earlier attempt had stopped."""
        if self._first is None:
            self._first = now, share
        then, first_share = self._first
        return (now - then) * (1.0 - share) / (share - first_share) if share > first_share else None

"""Corpus plans, and the local pipeline that turns a plan's blocks into shards."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from lcrag.data.corpora.chunking import PASSAGE_LENGTH, Unit, passages_of, unit_of
from lcrag.data.corpora.documents import Article, Block, WikiPage, block_name
from lcrag.data.corpora.dump import clean
from lcrag.data.corpora.source import Source
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.retrieval import Encoder
from lcrag.retrieval.passages import Passage
from lcrag.retrieval.shards import ShardRecord, Shards


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusPlan:
    """The plan of a corpus: the source of one language, and how it is cut into passages.

    Attributes:
      language: Its code, also the name of the collection.
      source: The files.
      unit: Unit of the passages' length; unused for ready-made passages.
      length: Units per passage.
    """

    language: str
    source: Source
    unit: Unit
    length: int = PASSAGE_LENGTH

    def identity(self) -> dict[str, Any]:
        """Returns everything that the passages depend on, with files by name and size."""
        files = [f"{path.name}: {path.stat().st_size} bytes" for path in self.source.files]
        cut = {"documents_per_block": self.source.documents_per_block, "unit": self.unit, "length": self.length}
        return {"language": self.language, "kind": self.source.kind, "files": files, **cut}


def make_plan(language: str, source: Source, unit: Unit | None = None, length: int = PASSAGE_LENGTH) -> CorpusPlan:
    """Returns a plan; the default unit depends on the language's script."""
    return CorpusPlan(language=language, source=source, unit=unit or unit_of(language), length=length)


def fingerprint_of(identity: dict[str, Any]) -> str:
    """Returns sixteen hexadecimal digits that identify a plan."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


Cleaned = tuple[Block, list[tuple[str, str]]]


def cleaned(block: Block) -> Cleaned:
    """Converts a block's wiki pages to articles; also returns (page, problem) for each that cannot be parsed."""
    pages = tuple(document for document in block.documents if isinstance(document, WikiPage))
    if not pages:
        return block, []
    articles, problems = clean(pages)
    return dataclasses.replace(block, documents=tuple(articles)), problems


def write_shard(plan: CorpusPlan, block: Cleaned, shards: Shards, encoder: Encoder, bad_rows: BadRows) -> int:
    """Reports the problems of a cleaned block, writes its shard, and returns the number of passages."""
    content, problems = block
    for page, problem in problems:
        bad_rows.add(content.path, None, page, problem)
    articles = [document for document in content.documents if isinstance(document, Article)]
    passages = [document for document in content.documents if isinstance(document, Passage)]
    if articles:
        passages = list(passages_of(articles, plan.unit, plan.length))
    shards.write(content.name, passages, encoder, {"is_last": content.is_last})
    return len(passages)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of making shards.

    Attributes:
      passages: Passages embedded so far, earlier attempts included.
      passages_per_second: Rate of this attempt.
      share: Share of the source's bytes, in [0, 1].
      seconds_left: Estimate from bytes and time of this attempt; None before its first shard.
    """

    passages: int
    passages_per_second: float
    share: float
    seconds_left: float | None


class Meter:
    """Measures the progress of one attempt."""

    def __init__(self, source: Source, passages: int):
        sizes = [path.stat().st_size for path in source.files]
        self._before = [sum(sizes[:number]) for number in range(len(sizes))]
        self._total = max(1, sum(sizes))
        self._found, self._made = passages, 0
        self._started = time.monotonic()
        self._first: tuple[float, float] | None = None

    def add(self, block: Block, passages: int) -> Progress:
        """Records the finished shard of a block and returns the progress."""
        now, share = time.monotonic(), min(1.0, (self._before[block.file] + block.bytes_read) / self._total)
        self._made += passages
        return Progress(
            passages=self._found + self._made,
            passages_per_second=self._made / max(now - self._started, 1e-9),
            share=share,
            seconds_left=self._seconds_left(now, share),
        )

    def _seconds_left(self, now: float, share: float) -> float | None:
        """Extrapolates from the first shard on: its time includes compilation and skipping finished blocks."""
        if self._first is None:
            self._first = now, share
        then, first_share = self._first
        return (now - then) * (1.0 - share) / (share - first_share) if share > first_share else None


def finished_files(source: Source, finished: Mapping[str, ShardRecord]) -> set[int]:
    """Returns the numbers of the files whose shards all exist."""
    return {number for number in range(len(source.files)) if _is_finished(number, finished)}


def _is_finished(file: int, finished: Mapping[str, ShardRecord]) -> bool:
    number = 0
    while (record := finished.get(block_name(file, number))) is not None:
        if record.notes["is_last"]:
            return True
        number += 1
    return False


def unfinished_blocks(source: Source, finished: Mapping[str, ShardRecord], bad_rows: BadRows) -> Iterator[Block]:
    """Yields the blocks without a shard; finished files are not read."""
    done = finished_files(source, finished)
    for number in range(len(source.files)):
        if number not in done:
            yield from source.blocks(number, finished, bad_rows)


def check_complete(source: Source, finished: Mapping[str, ShardRecord]) -> None:
    """Checks that every file has all of its shards.

    Raises:
      UserError: a file lacks a shard.
    """
    done = finished_files(source, finished)
    missing = [path for number, path in enumerate(source.files) if number not in done]
    if missing:
        raise UserError(f"{missing[0]} has missing shards: run the same command again to make them")


def make_shards(
    plan: CorpusPlan,
    shards: Shards,
    encoder: Encoder,
    *,
    bad_rows: BadRows,
    progress: Callable[[Progress], None] = lambda progress: None,
    workers: int | None = None,
) -> None:
    """Builds every missing shard.

    Args:
      progress: Called after each shard.
      workers: Processes that clean wikitext; None: one less than the available cores, at least one; 0: this process
        cleans.

    Raises:
      UserError: a file is damaged, or a row is bad and bad rows are not skipped.
    """
    finished = shards.finished()
    meter = Meter(plan.source, sum(record.passages for record in finished.values()))
    workers = _default_workers() if workers is None else workers
    blocks = unfinished_blocks(plan.source, finished, bad_rows)
    with contextlib.closing(_all_cleaned(blocks, workers if plan.source.kind == "dump" else 0)) as ready:
        for block in ready:
            progress(meter.add(block[0], write_shard(plan, block, shards, encoder, bad_rows)))
    check_complete(plan.source, shards.finished())


def _default_workers() -> int:
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _all_cleaned(blocks: Iterator[Block], workers: int) -> Generator[Cleaned, None, None]:
    """Yields every block cleaned, in order; at most two blocks per worker are cleaned in advance."""
    if not workers:
        yield from map(cleaned, blocks)
        return
    # Forking would copy the threads' locks of JAX and TensorFlow.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, initializer=_end_with_the_parent)
    waiting: collections.deque[concurrent.futures.Future[Cleaned]] = collections.deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(cleaned, block))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_the_parent() -> None:
    """Ends this process when its parent dies; otherwise it would wait for work forever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel] if parent else [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

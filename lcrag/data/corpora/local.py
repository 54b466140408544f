"""Shards made on this machine: processes clean wikitext ahead of the encoder, which has all devices of the host."""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Generator, Iterator

from lcrag.data.corpora.completeness import check_complete, notes_of, unfinished_blocks
from lcrag.data.corpora.documents import Block
from lcrag.data.corpora.plan import Plan, block_passages, cleaned, count_problems
from lcrag.data.corpora.progress import Meter, Progress
from lcrag.data.rows import BadRows
from lcrag.retrieval import Encoder
from lcrag.retrieval.shards import Shards

Cleaned = tuple[Block, list[tuple[str, str]]]


def make_shards(
    plan: Plan,
    shards: Shards,
    encoder: Encoder,
    *,
    bad_rows: BadRows,
    progress: Callable[[Progress], None] = lambda progress: None,
    workers: int | None = None,
) -> None:
    """Makes every shard that is not there yet.

    Args:
      plan: What of.
      shards: Where to.
      encoder: Embeds the passages.
      bad_rows: What becomes of rows that cannot be used.
      progress: Called after each shard.
      workers: Processes that clean wikitext; None: one for every other processor core; 0: none but this one.

    Raises:
      UserError: a file is damaged; or a row is bad, and bad rows are not skipped.
    """
    finished = shards.finished()
    meter = Meter(plan.source, sum(record.passages for record in finished.values()))
    workers = _default_workers() if workers is None else workers
    blocks = unfinished_blocks(plan.source, finished, bad_rows)
    with contextlib.closing(_all_cleaned(blocks, workers if plan.source.kind == "dump" else 0)) as ready:
        for block, problems in ready:
            count_problems(block, problems, bad_rows)
            passages = block_passages(plan, block)
            shards.write(block.name, passages, encoder, notes_of(block))
            progress(meter.add(block, len(passages)))
    check_complete(plan.source, shards.finished())


def _default_workers() -> int:
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _all_cleaned(blocks: Iterator[Block], workers: int) -> Generator[Cleaned, None, None]:
    """Every block cleaned, in order; the processes are at most two blocks each ahead of who asks."""
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
    """Ends this process when the one that started it is gone, killed perhaps: by itself it would wait for work."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel] if parent else [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

"""Corpus plans, and the passages of a plan as one stream."""

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
from collections.abc import Callable, Generator, Iterator
from typing import Any

from lcrag.data.corpora.chunking import PASSAGE_LENGTH, Unit, passages_of, unit_of
from lcrag.data.corpora.dump import Article, WikiPage, clean
from lcrag.data.corpora.source import Block, Source
from lcrag.data.rows import BadRows
from lcrag.retrieval.passages import Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusPlan:
    """The plan of a corpus: the source of one language, and how it is cut into passages."""

    language: str  # its code, also the name of the collection
    source: Source
    unit: Unit  # of the passages' length; unused for ready-made passages
    length: int = PASSAGE_LENGTH

    def identity(self) -> dict[str, Any]:
        """Returns everything that the passages depend on, with files by name and size."""
        files = [f"{path.name}: {path.stat().st_size} bytes" for path in self.source.files]
        cut = {"unit": self.unit, "length": self.length}
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


def cut(plan: CorpusPlan, block: Cleaned, bad_rows: BadRows) -> list[Passage]:
    """Reports the problems of a cleaned block, and returns its passages."""
    content, problems = block
    for page, problem in problems:
        bad_rows.add(content.path, None, page, problem)
    articles = [document for document in content.documents if isinstance(document, Article)]
    if articles:
        return list(passages_of(articles, plan.unit, plan.length))
    return [document for document in content.documents if isinstance(document, Passage)]


def read_passages(
    plan: CorpusPlan,
    bad_rows: BadRows,
    progress: Callable[[float], None] = lambda share: None,
    workers: int | None = None,
) -> Iterator[Passage]:
    """Yields the passages of a corpus, in the order of its files.

    Args:
      progress: Called after each block of documents with the share of the source's bytes that was read.
      workers: Processes that clean wikitext; None: one less than the available cores, at least one; 0: this process
        cleans.

    Raises:
      UserError: a file is damaged, or a row is bad and bad rows are not skipped.
    """
    sizes = [path.stat().st_size for path in plan.source.files]
    if workers is None:
        workers = max(1, len(os.sched_getaffinity(0)) - 1)
    blocks = (block for file in range(len(sizes)) for block in plan.source.blocks(file, bad_rows))
    with contextlib.closing(_all_cleaned(blocks, workers if plan.source.kind == "dump" else 0)) as ready:
        for block, problems in ready:
            yield from cut(plan, (block, problems), bad_rows)
            progress(min(1.0, (sum(sizes[: block.file]) + block.bytes_read) / max(1, sum(sizes))))


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

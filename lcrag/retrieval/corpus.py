"""A corpus: passages in one memory-mapped Arrow file."""

import array
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

FILE_NAME = "passages.arrow"
# Rows of every record batch except the last, so a division finds a row's batch.
ROWS_PER_BATCH = 4096
_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "title", "text")])


def write_passages(passages: Iterable[Passage], path: pathlib.Path) -> tuple[int, str]:
    """Streams passages into an Arrow IPC file.

    Returns:
      Their number, and a fingerprint of their content (16 hexadecimal digits).

    Raises:
      UserError: A passage is not valid Unicode, two have one id, or there are no passages.
    """
    digest, hashes = hashlib.sha256(), array.array("q")  # of the ids
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        iterator = iter(passages)
        while batch := list(itertools.islice(iterator, ROWS_PER_BATCH)):
            writer.write_batch(_record_batch(batch))
            for passage in batch:
                digest.update("\0".join((passage.id, passage.title, passage.text, "")).encode())
            hashes.extend(hash(passage.id) for passage in batch)
    if not hashes:
        raise UserError("a collection needs at least one passage, and none was given")
    _check_distinct(np.frombuffer(hashes, np.int64), [Corpus(path.parent)])
    return len(hashes), digest.hexdigest()[:16]


def check_distinct_ids(corpora: Sequence["Corpus"]) -> None:
    """Raises a UserError if two passages of some corpora have one id."""
    hashes = array.array("q")
    for corpus in corpora:
        hashes.extend(map(hash, corpus.ids()))
    _check_distinct(np.frombuffer(hashes, np.int64), corpora)


def _check_distinct(hashes: Int[np.ndarray, "passages"], corpora: Sequence["Corpus"]) -> None:
    """Raises a UserError if two passages have one id; `hashes` are those of the ids."""
    values, counts = np.unique(hashes, return_counts=True)
    repeated = set(values[counts > 1].tolist())
    seen: set[str] = set()
    for own in itertools.chain.from_iterable(corpus.ids() for corpus in corpora) if repeated else ():
        if own in seen:
            raise UserError(f"two passages have the id {own!r}: give every passage of a collection its own")
        if hash(own) in repeated:
            seen.add(own)


def _record_batch(passages: Sequence[Passage]) -> pa.RecordBatch:
    try:
        columns = [[getattr(passage, name) for passage in passages] for name in _SCHEMA.names]
        return pa.record_batch([pa.array(column, pa.large_string()) for column in columns], schema=_SCHEMA)
    except UnicodeEncodeError as error:
        bad = next(passage for passage in passages if not _is_unicode(passage))
        raise UserError(
            f"passage {bad.id!r} is not valid Unicode (a lone surrogate): decode its source again"
        ) from error


def _is_unicode(passage: Passage) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in passage.id + passage.title + passage.text)


class Corpus(Sequence[Passage]):
    """The passages of a collection's folder in the order written, memory-mapped.

    Raises:
      UserError: The folder has no readable `passages.arrow`.
    """

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        path = self.folder / FILE_NAME
        if not path.is_file():
            raise UserError(f"no passages in {self.folder}: expected the file {FILE_NAME}; build the collection first")
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
            batches = self._reader.num_record_batches
            self._count = (batches - 1) * ROWS_PER_BATCH + self._reader.get_batch(batches - 1).num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{path} is damaged: build the collection again from its source") from error
        # Batches are views of the mapping; keeping some saves parsing their headers for every row.
        self._batch = functools.lru_cache(maxsize=256)(self._reader.get_batch)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row):
        """Returns the passage of a row, or the list of passages of a slice."""
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        batch, offset = self._batch(row // ROWS_PER_BATCH), row % ROWS_PER_BATCH
        return Passage(**{name: batch.column(name)[offset].as_py() for name in _SCHEMA.names})

    def __iter__(self) -> Iterator[Passage]:
        return self.rows(0, len(self))

    def rows(self, start: int, stop: int) -> Iterator[Passage]:
        """Yields the passages from row `start` up to `stop`, a batch at a time."""
        for first in range(start - start % ROWS_PER_BATCH, stop, ROWS_PER_BATCH):
            batch = self._reader.get_batch(first // ROWS_PER_BATCH)
            skipped = max(start - first, 0)
            for row in batch.slice(skipped, min(stop - first, ROWS_PER_BATCH) - skipped).to_pylist():
                yield Passage(**row)

    def ids(self) -> Iterator[str]:
        """Yields the ids of all passages."""
        for index in range(self._reader.num_record_batches):
            yield from self._reader.get_batch(index).column("id").to_pylist()

"""A corpus: passages in one memory-mapped Arrow file."""

import array
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

FILE_NAME = "passages.arrow"
# Rows of every record batch except the last, so a division finds a row's batch.
ROWS_PER_BATCH = 4096
_SCHEMA = pa.schema([(name, pa.large_string()) for name in ("id", "title", "text")])


def write_passages(passages: Iterable[Passage], path: pathlib.Path) -> tuple[int, str]:
    """Streams passages into an Arrow IPC file; returns their number and a fingerprint of their content.

    A passage that is not valid Unicode, two with one id, or no passages are a UserError.
    """
    digest, hashes = hashlib.sha256(), array.array("q")  # of the ids
    iterator = iter(passages)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        while batch := list(itertools.islice(iterator, ROWS_PER_BATCH)):
            for passage in batch:
                try:
                    digest.update("\0".join((passage.id, passage.title, passage.text, "")).encode())
                except UnicodeEncodeError as error:
                    raise UserError(
                        f"passage {passage.id!r} is not valid Unicode (a lone surrogate): decode its source again"
                    ) from error
            columns = [[getattr(passage, name) for passage in batch] for name in _SCHEMA.names]
            arrays = [pa.array(column, pa.large_string()) for column in columns]
            writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
            hashes.extend(hash(passage.id) for passage in batch)
    if not hashes:
        raise UserError("a collection needs at least one passage, and none was given")
    # Hashes of 8 bytes fit the memory where the ids of 100 million passages would not; equal ones are looked at.
    values, counts = np.unique(np.frombuffer(hashes, np.int64), return_counts=True)
    repeated = set(values[counts > 1].tolist())
    seen: set[str] = set()
    for passage in Corpus(path.parent) if repeated else ():
        if passage.id in seen:
            raise UserError(f"two passages have the id {passage.id!r}: give every passage of a collection its own")
        if hash(passage.id) in repeated:
            seen.add(passage.id)
    return len(hashes), digest.hexdigest()[:16]


class Corpus(Sequence[Passage]):
    """The passages of a collection's folder in the order written, memory-mapped."""

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

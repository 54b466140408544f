"""Which of a source's files are in shards as a whole."""

from collections.abc import Iterator, Mapping
from typing import Any

from lcrag.data.corpora.documents import Block, block_name
from lcrag.data.corpora.source import Source
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.retrieval.shards import ShardRecord


def notes_of(block: Block) -> dict[str, Any]:
    """What a block's shard must say of it."""
    return {"is_last": block.is_last}


def finished_files(source: Source, finished: Mapping[str, ShardRecord]) -> set[int]:
    """Numbers of the files that have all of their shards, up to the last."""
    return {number for number in range(len(source.files)) if _is_finished(number, finished)}


def _is_finished(file: int, finished: Mapping[str, ShardRecord]) -> bool:
    number = 0
    while (record := finished.get(block_name(file, number))) is not None:
        if record.notes["is_last"]:
            return True
        number += 1
    return False


def unfinished_blocks(source: Source, finished: Mapping[str, ShardRecord], bad_rows: BadRows) -> Iterator[Block]:
    """The blocks that have no shard yet; files that have all of theirs are not even read."""
    done = finished_files(source, finished)
    for number in range(len(source.files)):
        if number not in done:
            yield from source.blocks(number, finished, bad_rows)


def check_complete(source: Source, finished: Mapping[str, ShardRecord]) -> None:
    """Makes sure that nothing is missing.

    Raises:
      UserError: a file lacks a shard.
    """
    done = finished_files(source, finished)
    missing = [path for number, path in enumerate(source.files) if number not in done]
    if missing:
        raise UserError(f"{missing[0]} is not whole in the shards: run the same command again, which makes the others")

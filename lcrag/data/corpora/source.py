"""A corpus's files: which they are, what is in them, and their documents in blocks."""

import bz2
import contextlib
import dataclasses
import gzip
import io
import pathlib
import re
import zlib
from collections.abc import Callable, Container, Iterator
from typing import Literal, get_args

from lcrag.data.corpora.documents import (
    ARTICLE_FIELDS,
    PASSAGE_FIELDS,
    ArticleRow,
    Block,
    Document,
    PassageRow,
    articles_of,
    block_name,
    passages_of,
    squad_passages,
)
from lcrag.data.corpora.dump import read_pages
from lcrag.data.corpora.rows import first_row, json_rows, parquet_rows, tab_separated_rows
from lcrag.data.rows import BadRows
from lcrag.errors import UserError

Kind = Literal["dump", "articles", "passages", "squad"]
KINDS: tuple[str, ...] = get_args(Kind)

# About as many passages has an article.
PASSAGES_PER_DOCUMENT = 8

_OPENERS: dict[str, Callable[[io.BufferedIOBase], io.BufferedIOBase]] = {
    ".bz2": lambda file: bz2.open(file),
    ".gz": lambda file: gzip.open(file),
}
# By the file's name without .bz2 or .gz: how its rows are read.
_ROW_READERS = {".parquet": parquet_rows, ".jsonl": json_rows, ".tsv": tab_separated_rows}
_FORMATS = (".xml", ".json", *_ROW_READERS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where the documents of one language come from.

    Attributes:
      files: In the order in which they are read.
      kind: What they hold: "dump" (Wikimedia XML), "articles" (plain text, to be cut), "passages" (taken as they are),
        "squad" (paragraphs of a reading comprehension data set).
      documents_per_block: Of dumps and articles; of what is cut already there are PASSAGES_PER_DOCUMENT times as many.
    """

    files: tuple[pathlib.Path, ...]
    kind: Kind
    documents_per_block: int = 1024

    @property
    def block_size(self) -> int:
        """Documents in a block."""
        cut_already = self.kind in ("passages", "squad")
        return self.documents_per_block * (PASSAGES_PER_DOCUMENT if cut_already else 1)

    def documents(self, path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Document]]:
        """The documents of a file, each with how many of its bytes, as it is stored, were read by then.

        Raises:
          UserError: the file is damaged or not what `kind` says; or a row is bad, and bad rows are not skipped.
        """
        with _opened(path) as (stored, content):
            for document in _documents(content, path, self.kind, bad_rows):
                yield stored.tell(), document

    def blocks(self, file: int, finished: Container[str], bad_rows: BadRows) -> Iterator[Block]:
        """The blocks of a file that are not finished; there is always a last one, and only in an empty file is it
        empty. Those that are finished are read over, which is quick beside cleaning them.

        Args:
          file: The file's number.
          finished: Names of blocks to leave out.
          bad_rows: What becomes of rows that cannot be used.
        """
        path = self.files[file]
        number, bytes_read = 0, 0
        waiting: list[Document] = []
        for position, document in self.documents(path, bad_rows):
            if len(waiting) == self.block_size:
                if block_name(file, number) not in finished:
                    yield _block(file, path, number, waiting, bytes_read, is_last=False)
                number, waiting = number + 1, []
            waiting.append(document)
            bytes_read = position
        if block_name(file, number) not in finished:
            yield _block(file, path, number, waiting, path.stat().st_size, is_last=True)


def _block(
    file: int, path: pathlib.Path, number: int, documents: list[Document], bytes_read: int, *, is_last: bool
) -> Block:
    return Block(
        file=file, path=path, number=number, documents=tuple(documents), bytes_read=bytes_read, is_last=is_last
    )


def find_source(place: str, kind: Kind | None = None, documents_per_block: int = 1024) -> Source:
    """The source at a place.

    Args:
      place: A file; a folder, whose files of known formats are taken; or a pattern with `*`. Several files are ordered
        by name, numbers in the names counting as numbers.
      kind: What they hold; None: what the name or first row of the first says.
      documents_per_block: See `Source`.

    Raises:
      UserError: there are no such files, they have several formats, or nothing says what they hold.
    """
    files = _files(place)
    formats = {_format(path) for path in files}
    if len(formats) > 1:
        raise UserError(f"{place} holds files of several formats ({', '.join(sorted(formats))}): name one, as *.jsonl")
    kind = kind or _kind(files[0])
    if kind not in KINDS:
        raise UserError(f"a source cannot be of the kind {kind!r}: choose among {', '.join(KINDS)}")
    if (kind == "dump") != (formats == {".xml"}) or (kind == "squad") != (formats == {".json"}):
        raise UserError(f"{files[0]} cannot hold what the kind {kind!r} says: leave the kind out")
    return Source(files=files, kind=kind, documents_per_block=documents_per_block)


def _files(place: str) -> tuple[pathlib.Path, ...]:
    path = pathlib.Path(place)
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = [each for each in path.rglob("*") if each.is_file() and _format(each) in _FORMATS]
    else:
        root = pathlib.Path(path.anchor or ".")
        found = [each for each in root.glob(str(path.relative_to(path.anchor))) if each.is_file()]
    if not found:
        raise UserError(f"there is no file at {place}: name a dump, a Parquet, JSON lines or tab-separated file")
    if unknown := [each for each in found if _format(each) not in _FORMATS]:
        known = ", ".join(_FORMATS)
        raise UserError(f"{unknown[0]} is of no known format: its name must end in {known}, or one of them and .bz2")
    return tuple(sorted(found, key=_natural_order))


def _natural_order(path: pathlib.Path) -> tuple[tuple[str, int], ...]:
    parts = re.findall(r"(\D*)(\d*)", str(path))
    return tuple((text, int(digits or -1)) for text, digits in parts)


def _format(path: pathlib.Path) -> str:
    return (path.with_suffix("") if path.suffix in _OPENERS else path).suffix


def _kind(path: pathlib.Path) -> Kind:
    """What a file holds, by its name or the fields of its first row."""
    match _format(path):
        case ".xml":
            return "dump"
        case ".json":
            return "squad"
        case ".tsv":
            return "passages"
    with _opened(path) as (_, content):
        fields = set(first_row(content, path, is_parquet=_format(path) == ".parquet"))
    if not fields:
        raise UserError(f"{path} holds no row: name another file, or make this one again")
    if fields & PASSAGE_FIELDS:
        return "passages"
    if ARTICLE_FIELDS <= fields and "url" in fields:
        return "articles"
    raise UserError(
        f"nothing says whether {path} holds articles to be cut or passages that are: "
        'set index.kind to "articles" or "passages"'
    )


def _documents(content: io.BufferedIOBase, path: pathlib.Path, kind: Kind, bad_rows: BadRows) -> Iterator[Document]:
    read = _ROW_READERS.get(_format(path), json_rows)
    match kind:
        case "dump":
            return read_pages(content, path)
        case "squad":
            return squad_passages(path, bad_rows)
        case "articles":
            return articles_of(read(content, path, ArticleRow, bad_rows))
        case "passages":
            return passages_of(read(content, path, PassageRow, bad_rows))


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[tuple[io.BufferedIOBase, io.BufferedIOBase]]:
    """A file as it is stored, and decompressed.

    Raises:
      UserError: it is cut off or damaged.
    """
    try:
        with path.open("rb") as stored:
            yield stored, _OPENERS.get(path.suffix, lambda file: file)(stored)
    except (EOFError, zlib.error, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from error

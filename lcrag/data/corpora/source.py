"""The files of a corpus: their discovery, their formats, and their documents in blocks."""

import bz2
import contextlib
import dataclasses
import functools
import gzip
import io
import itertools
import pathlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import pydantic

from lcrag.data.corpora.documents import (
    ARTICLE_FIELDS,
    PASSAGE_FIELDS,
    ArticleRow,
    Block,
    Document,
    PassageRow,
    articles_of,
    passages_of,
    text_article,
)
from lcrag.data.corpora.dump import read_pages
from lcrag.data.rows import BadRows, Schema, validated
from lcrag.data.squad_format import read_squad
from lcrag.data.tables import parquet_dictionaries, tab_separated_dictionaries
from lcrag.errors import UserError

Kind = Literal["dump", "articles", "passages", "squad"]
KINDS: tuple[str, ...] = get_args(Kind)

# Approximate number of passages per article.
PASSAGES_PER_DOCUMENT = 8

_OPENERS: dict[str, Callable[[io.BufferedIOBase], io.BufferedIOBase]] = {
    ".bz2": lambda file: bz2.open(file),
    ".gz": lambda file: gzip.open(file),
}
# Endings of file names without .bz2 or .gz.
_FORMATS = (".xml", ".json", ".parquet", ".jsonl", ".tsv", ".txt")
_TEXTS = (".txt", ".md")  # each file is an article
# Number of JSON lines searched for a valid one, from which the kind of the file is inferred.
_LINES_LOOKED_AT = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The files with the documents of one language.

    Attributes:
      files: In reading order.
      kind: "dump" (Wikimedia XML), "articles" (plain text, to be cut), "passages" (ready-made) or "squad" (paragraphs
        of a reading comprehension data set).
      documents_per_block: Articles per block; blocks of passages hold PASSAGES_PER_DOCUMENT times as many.
    """

    files: tuple[pathlib.Path, ...]
    kind: Kind
    documents_per_block: int = 1024

    @property
    def block_size(self) -> int:
        """Documents per block."""
        cut_already = self.kind in ("passages", "squad")
        return self.documents_per_block * (PASSAGES_PER_DOCUMENT if cut_already else 1)

    def documents(self, path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Document]]:
        """Yields (bytes of the stored file read so far, document) for a file.

        Raises:
          UserError: the file is damaged or not of the source's kind, or a row is bad and bad rows are not skipped.
        """
        with _opened(path) as (stored, content):
            for document in _documents(content, path, self.kind, bad_rows):
                yield stored.tell(), document

    def blocks(self, file: int, bad_rows: BadRows) -> Iterator[Block]:
        """Yields the documents of the file with index `file` in blocks; its last one is empty only in an empty file."""
        path = self.files[file]
        block = functools.partial(Block, file=file, path=path)
        number, bytes_read = 0, 0
        waiting: list[Document] = []
        for position, document in self.documents(path, bad_rows):
            if len(waiting) == self.block_size:
                yield block(number=number, documents=tuple(waiting), bytes_read=bytes_read)
                number, waiting = number + 1, []
            waiting.append(document)
            bytes_read = position
        yield block(number=number, documents=tuple(waiting), bytes_read=path.stat().st_size)


def find_source(place: str, kind: Kind | None = None, documents_per_block: int = 1024) -> Source:
    """Returns the source at a place.

    Args:
      place: A file, a folder (all files of known formats) or a pattern with `*`; files are sorted by name, with numbers
        in numeric order.
      kind: Kind of the documents; None: inferred from the name or first row of the first file.
      documents_per_block: See `Source`.

    Raises:
      UserError: there are no such files, they have several formats, or the kind cannot be inferred.
    """
    files = _files(place)
    formats = {_format(path) for path in files}
    if len(formats) > 1:
        raise UserError(f"{place} holds files of several formats ({', '.join(sorted(formats))}): name one, as *.jsonl")
    kind = kind or _kind(files[0])
    if kind not in KINDS:
        raise UserError(f"unknown kind of source {kind!r}: use one of {', '.join(KINDS)}")
    of_format = {".xml": "dump", ".json": "squad", ".txt": "articles"}
    needed = {of_format[each] for each in formats if each in of_format}
    if needed - {kind} or (kind in ("dump", "squad") and not needed):
        raise UserError(f"{files[0]} does not have the format of kind {kind!r}: omit the kind")
    return Source(files=files, kind=kind, documents_per_block=documents_per_block)


def _files(place: str) -> tuple[pathlib.Path, ...]:
    path = pathlib.Path(place)
    if path.is_file():
        found = [path]
    elif path.is_dir():
        found = [each for each in path.rglob("*") if each.is_file() and _format(each) in _FORMATS]
        # A README.md next to files of rows is not a text to index.
        found = [each for each in found if _format(each) != ".txt"] or found
    else:
        root = pathlib.Path(path.anchor or ".")
        found = [each for each in root.glob(str(path.relative_to(path.anchor))) if each.is_file()]
    if not found:
        raise UserError(f"there is no file at {place}: name a dump, a Parquet, JSON lines, tab-separated or text file")
    if unknown := [each for each in found if _format(each) not in _FORMATS]:
        known = ", ".join(_FORMATS)
        raise UserError(
            f"{unknown[0]} has an unknown format: its name must end in {known}, optionally followed by .gz or .bz2"
        )
    return tuple(sorted(found, key=_natural_order))


def _natural_order(path: pathlib.Path) -> tuple[tuple[str, int], ...]:
    parts = re.findall(r"(\D*)(\d*)", str(path))
    return tuple((text, int(digits or -1)) for text, digits in parts)


def _format(path: pathlib.Path) -> str:
    suffix = (path.with_suffix("") if path.suffix in _OPENERS else path).suffix
    return ".txt" if suffix in _TEXTS else suffix


def _kind(path: pathlib.Path) -> Kind:
    """Infers a file's kind from its name or the fields of its first row."""
    match _format(path):
        case ".xml":
            return "dump"
        case ".json":
            return "squad"
        case ".tsv":
            return "passages"
        case ".txt":
            return "articles"
    with _opened(path) as (_, content):
        fields = set(_first_row(content, path))
    if not fields:
        raise UserError(f"{path} holds no row: name another file, or make this one again")
    if fields & PASSAGE_FIELDS:
        return "passages"
    if ARTICLE_FIELDS <= fields and "url" in fields:
        return "articles"
    raise UserError(
        f'cannot infer whether {path} holds articles or passages: set index.kind to "articles" or "passages"'
    )


def _first_row(content: io.BufferedIOBase, path: pathlib.Path) -> Mapping[str, Any]:
    """Returns the first row of a Parquet file, or the first object of JSON lines; empty if the file is."""
    if _format(path) == ".parquet":
        return next(parquet_dictionaries(content, path), {})
    lines = [line for line in itertools.islice(content, _LINES_LOOKED_AT) if line.strip()]
    for line in lines:
        try:
            return pydantic.TypeAdapter(dict[str, Any]).validate_json(line)
        except pydantic.ValidationError:  # a bad row, which is reported when the rows are read
            continue
    if lines:
        raise UserError(f"no line of {path}, from line 1 on, is a JSON object: is it a file of JSON lines?")
    return {}


def _documents(content: io.BufferedIOBase, path: pathlib.Path, kind: Kind, bad_rows: BadRows) -> Iterator[Document]:
    match kind:
        case "dump":
            return read_pages(content, path)
        case "squad":
            return (paragraph.passage for paragraph in read_squad(path, bad_rows))
        case "articles" if _format(path) == ".txt":
            return text_article(path, content.read())
        case "articles":
            return articles_of(_rows(content, path, ArticleRow, bad_rows))
        case "passages":
            return passages_of(_rows(content, path, PassageRow, bad_rows))


def _rows(content: io.BufferedIOBase, path: pathlib.Path, schema: type[Schema], bad_rows: BadRows) -> Iterator[Schema]:
    """Yields the valid rows of a file; unlike `lcrag.data.rows.read_rows` it never holds the whole file."""
    numbered: Iterable[tuple[int, Any]]
    validate: Callable[[Any], Schema] = schema.model_validate
    match _format(path):
        case ".parquet":
            numbered = enumerate(parquet_dictionaries(content, path), start=1)
        case ".tsv":
            numbered = tab_separated_dictionaries(content, path, bad_rows)
        case _:
            numbered = ((number, line) for number, line in enumerate(content, start=1) if line.strip())
            validate = schema.model_validate_json
    for number, value in numbered:
        if (row := validated(validate, value, path, number, bad_rows)) is not None:
            yield row


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[tuple[io.BufferedIOBase, io.BufferedIOBase]]:
    """Yields a file as stored, and decompressed.

    Raises:
      UserError: it is truncated or damaged.
    """
    try:
        with path.open("rb") as stored:
            yield stored, _OPENERS.get(path.suffix, lambda file: file)(stored)
    except (EOFError, zlib.error, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from error

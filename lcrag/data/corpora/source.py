"""The files of a corpus: their discovery, their formats, and their documents in blocks.

Documents are pages of a Wikimedia dump, articles to cut into passages, or ready-made passages. Articles: the folders of
`wikimedia/wikipedia` (Parquet), JSON lines with the same fields, or text files. Passages: MIRACL (`docid`, `title`,
`text`), BEIR (`_id`, `title`, `text`), FlashRAG and Search-R1 (`id`, `contents` with the title, usually quoted, in the
first line), Mr. TyDi and Pyserini (the same, unquoted), in Parquet or JSON lines; DPR's `psgs_w100.tsv` (`id`, `text`,
`title`); the paragraphs of SQuAD's format (XQuAD, MLQA).
"""

import dataclasses
import functools
import io
import itertools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

import pydantic

from lcrag.data.corpora.dump import Article, WikiPage, read_pages
from lcrag.data.rows import BadRows, Row, opened, parquet_values, parsed_rows
from lcrag.data.squad_format import read_squad
from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

Document = WikiPage | Article | Passage
Kind = Literal["dump", "articles", "passages", "squad"]
KINDS: tuple[str, ...] = get_args(Kind)

# Approximate number of passages per article.
PASSAGES_PER_DOCUMENT = 8
# Endings of file names, without .bz2 or .gz, -> the kind of their documents; None: their first row tells.
_FORMATS: Mapping[str, Kind | None] = {
    ".xml": "dump",
    ".json": "squad",
    ".parquet": None,
    ".jsonl": None,
    ".tsv": "passages",
    ".txt": "articles",
}
# Number of JSON lines searched for a valid one, from which the kind of the file is inferred.
_MAX_LINES_SEARCHED = 100

Identifier = Annotated[str, pydantic.Field(min_length=1)] | int


class ArticleRow(Row):
    """`{"id": ..., "title": ..., "text": ...}`; `url` and other fields are ignored."""

    id: Identifier
    title: str
    text: str


class PassageRow(Row):
    """A passage; its text is in `text` or `contents`."""

    id: Annotated[Identifier, pydantic.Field(validation_alias=pydantic.AliasChoices("docid", "_id", "id"))]
    title: str = ""
    text: str | None = None
    contents: str | None = None

    @pydantic.model_validator(mode="after")
    def _has_content(self) -> "PassageRow":
        if self.text is None and self.contents is None:
            raise ValueError("neither text nor contents is there")
        return self

    def passage(self) -> Passage:
        """Returns the passage; the first of several lines of `contents` is its title."""
        title, text = self.title.strip(), self.text
        if text is None:
            first, line_break, rest = (self.contents or "").partition("\n")
            title, text = (first.strip(), rest) if line_break else ("", first)
            if len(title) > 1 and title[0] == title[-1] == '"':
                title = title[1:-1]
        return Passage(id=str(self.id), title=title.strip(), text=text.strip())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive documents of one file, which are cleaned and cut together."""

    file: int  # its index in the source
    path: pathlib.Path
    number: int  # the block's index in the file
    documents: tuple[Document, ...]  # empty only if the whole file is
    bytes_read: int  # position in the stored file at the end of the block

    @property
    def name(self) -> str:
        """The block's name; names sort in the order of a source's blocks."""
        return f"{self.file:05d}-{self.number:07d}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The files, in reading order, with the documents of one language.

    The kind is "dump" (Wikimedia XML), "articles" (plain text, to be cut), "passages" (ready-made) or "squad"
    (paragraphs of a reading comprehension data set).
    """

    files: tuple[pathlib.Path, ...]
    kind: Kind
    documents_per_block: int = 1024  # articles; blocks of passages hold PASSAGES_PER_DOCUMENT times as many

    def documents(self, path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Document]]:
        """Yields (bytes of the stored file read so far, document) for a file.

        Raises:
          UserError: the file is damaged or not of the source's kind, or a row is bad and bad rows are not skipped.
        """
        with opened(path) as (content, stored):
            documents: Iterator[Document]
            match self.kind:
                case "dump":
                    documents = read_pages(content, path)
                case "squad":
                    documents = (paragraph.passage for paragraph in read_squad(path, bad_rows))
                case "passages":
                    documents = (row.passage() for _, row in parsed_rows(path, content, PassageRow, bad_rows))
                case "articles" if _format(path) == ".txt":
                    documents = _text_article(path, content.read())
                case "articles":
                    rows = (row for _, row in parsed_rows(path, content, ArticleRow, bad_rows) if row.text.strip())
                    documents = (Article(id=str(row.id), title=row.title.strip(), text=row.text) for row in rows)
            for document in documents:
                yield stored.tell(), document

    def blocks(self, file: int, bad_rows: BadRows) -> Iterator[Block]:
        """Yields the documents of the file with index `file` in blocks; its last one is empty only in an empty file."""
        path, cut_already = self.files[file], self.kind in ("passages", "squad")
        size = self.documents_per_block * (PASSAGES_PER_DOCUMENT if cut_already else 1)
        block = functools.partial(Block, file=file, path=path)
        number, bytes_read = 0, 0
        waiting: list[Document] = []
        for position, document in self.documents(path, bad_rows):
            if len(waiting) == size:
                yield block(number=number, documents=tuple(waiting), bytes_read=bytes_read)
                number, waiting = number + 1, []
            waiting.append(document)
            bytes_read = position
        yield block(number=number, documents=tuple(waiting), bytes_read=path.stat().st_size)


def _text_article(path: pathlib.Path, content: bytes) -> Iterator[Article]:
    """Yields the article of a text file, if it has any text.

    Its title is the first line if that is a Markdown heading, else the file's name; its id is the names of its folder
    and of the file.
    """
    stem = path.name.partition(".")[0]
    text = content.decode("utf-8-sig").strip()
    first, _, rest = text.partition("\n")
    title, text = (first.lstrip("# ").strip(), rest) if first.startswith("#") else (stem.replace("_", " "), text)
    if text.strip():
        yield Article(id=f"{path.absolute().parent.name}/{stem}", title=title, text=text.strip())


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
    if documents_per_block < 1:
        raise UserError(f"shards of {documents_per_block} documents cannot hold {place}: use at least 1")
    path = pathlib.Path(place)
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = [each for each in path.rglob("*") if each.is_file() and _format(each) in _FORMATS]
        # A README.md next to files of rows is not a text to index.
        files = [each for each in files if _format(each) != ".txt"] or files
    else:
        root = pathlib.Path(path.anchor or ".")
        files = [each for each in root.glob(str(path.relative_to(path.anchor))) if each.is_file()]
    if not files:
        raise UserError(f"there is no file at {place}: name a dump, a Parquet, JSON lines, tab-separated or text file")
    if unknown := [each for each in files if _format(each) not in _FORMATS]:
        known = ", ".join(_FORMATS)
        raise UserError(
            f"{unknown[0]} has an unknown format: its name must end in {known}, optionally followed by .gz or .bz2"
        )
    formats = sorted({_format(each) for each in files})
    if len(formats) > 1:
        raise UserError(f"{place} holds files of several formats ({', '.join(formats)}): name one, as *.jsonl")
    files.sort(key=lambda each: [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", str(each))])
    kind = kind or _FORMATS[formats[0]] or _kind_by_rows(files[0])
    if kind not in KINDS:
        raise UserError(f"unknown kind of source {kind!r}: use one of {', '.join(KINDS)}")
    needed = _FORMATS[formats[0]] if formats[0] != ".tsv" else None
    if (needed or kind) != kind or (kind in ("dump", "squad") and not needed):
        raise UserError(f"{files[0]} does not have the format of kind {kind!r}: omit the kind")
    return Source(files=tuple(files), kind=kind, documents_per_block=documents_per_block)


def _format(path: pathlib.Path) -> str:
    suffix = (path.with_suffix("") if path.suffix in (".bz2", ".gz") else path).suffix
    return ".txt" if suffix == ".md" else suffix


def _kind_by_rows(path: pathlib.Path) -> Kind:
    """Infers the kind of a file from the fields of its first row."""
    with opened(path) as (content, _):
        fields = _fields(content, path)
    if not fields:
        raise UserError(f"{path} holds no row: name another file, or make this one again")
    if fields & {"docid", "_id", "contents"}:
        return "passages"
    if fields >= {"id", "title", "text", "url"}:
        return "articles"
    raise UserError(
        f'cannot infer whether {path} holds articles or passages: set index.kind to "articles" or "passages"'
    )


def _fields(content: io.BufferedIOBase, path: pathlib.Path) -> set[str]:
    """Returns the fields of a Parquet file's first row, or of the first object of JSON lines."""
    if _format(path) == ".parquet":
        return set(next(parquet_values(content), {}))
    lines = [line for line in itertools.islice(content, _MAX_LINES_SEARCHED) if line.strip()]
    for line in lines:
        try:
            return set(pydantic.TypeAdapter(dict[str, Any]).validate_json(line))
        except pydantic.ValidationError:  # a bad row, which is reported when the rows are read
            continue
    if lines:
        raise UserError(f"no line of {path}, from line 1 on, is a JSON object: is it a file of JSON lines?")
    return set()

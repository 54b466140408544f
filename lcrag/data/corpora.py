"""The corpus of a language: its files and their formats, its documents in blocks, and its passages as one stream.

Documents are articles to cut into passages, or ready-made passages. Articles: the folders of `wikimedia/wikipedia`
(Parquet), JSON lines with the same fields, which WikiExtractor makes of a dump, or text files. Passages: MIRACL
(`docid`, `title`, `text`), BEIR (`_id`, `title`, `text`), FlashRAG and Search-R1 (`id`, `contents` with the title,
usually quoted, in the first line), Mr. TyDi and Pyserini (the same, unquoted), in Parquet or JSON lines; DPR's
`psgs_w100.tsv` (`id`, `text`, `title`); the paragraphs of SQuAD's format (XQuAD, MLQA).

Articles are cut into passages of 100 words, or of 100 characters in scripts without spaces between words. As in LcRL
(Appendix A.2), the title does not count and precedes every passage.
"""

import contextlib
import dataclasses
import functools
import html
import os
import pathlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import pydantic
import pydantic_core

from lcrag.data.questions import scripts_of, trimmed
from lcrag.data.rows import BadRows, Row, opened, parsed_rows, read_squad
from lcrag.errors import UserError
from lcrag.files import expanded, matching_files, shown_files
from lcrag.retrieval.passages import Passage, title_and_text
from lcrag.rewards.text import UNSPACED, is_visible

Kind = Literal["articles", "passages", "squad"]

DOCUMENTS_PER_BLOCK = 1024  # articles; a block of ready-made passages holds as many as about so many articles have
PASSAGES_PER_DOCUMENT = 8
# Endings of file names, without .bz2 or .gz, -> the kind of their documents; None: their first row tells.
_FORMATS: Mapping[str, Kind | None] = {
    ".json": "squad",
    ".parquet": None,
    ".jsonl": None,
    ".tsv": "passages",
    ".txt": "articles",
}

Unit = Literal["words", "characters"]

PASSAGE_LENGTH = 100
# ISO 15924 codes of the scripts that put no spaces between words.
_UNSPACED_SCRIPTS = frozenset("Hani Hira Kana Bopo Thai Laoo Khmr Mymr Tibt Lana Talu Tale Yiii".split())

Identifier = Annotated[str, pydantic.Field(min_length=1)] | int


class ArticleRow(Row):
    """`{"id": ..., "title": ..., "text": ...}`; `url` and other fields are ignored."""

    id: Identifier
    title: str
    text: str
    revid: str | int | None = None  # of WikiExtractor, whose texts are escaped as for HTML

    def document(self) -> Passage:
        text = self.text if self.revid is None else html.unescape(self.text)
        return Passage(id=str(self.id), title=trimmed(self.title), text=text)


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
        if not is_visible(self.document().text):
            raise ValueError("the text has no visible character")
        return self

    def document(self) -> Passage:
        """Returns the passage; the first of several lines of `contents` is its title."""
        title, text = (
            (self.title, self.text) if self.text is not None else title_and_text(self.contents or "", self.title)
        )
        return Passage(id=str(self.id), title=trimmed(title), text=trimmed(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive documents of one file, which are cut together."""

    file: int  # its index in the source
    path: pathlib.Path
    number: int  # the block's index in the file
    documents: tuple[Passage, ...]
    bytes_read: int  # position in the stored file at the end of the block

    @property
    def name(self) -> str:
        """The block's name; names sort in the order of a source's blocks."""
        return f"{self.file:05d}-{self.number:07d}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The files with the documents of one language, and how these are cut into passages; see `find_source`."""

    language: str  # its code, also the name of the collection
    files: tuple[pathlib.Path, ...]  # in reading order
    kind: Kind
    unit: Unit | None  # of the passages' length; None: that of each article's script; unused for ready-made passages
    length: int

    def identity(self) -> dict[str, Any]:
        """Returns everything that the passages depend on, with files by name and size."""
        files = [f"{path.name}: {path.stat().st_size} bytes" for path in self.files]
        cut = {"unit": self.unit or unit_of(self.language), "length": self.length}
        return {"language": self.language, "kind": self.kind, "files": files, **cut}

    @functools.cached_property
    def _above(self) -> str:
        """The folder above that of all files, from which the ids of text files begin."""
        return os.path.dirname(os.path.commonpath([file.absolute().parent for file in self.files]))

    def documents(self, path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Passage]]:
        """Yields (bytes of the stored file read so far, passage or article) for a file."""
        with opened(path) as (content, stored):
            documents: Iterable[Passage]
            if self.kind == "squad":
                documents = (passage for passage, _ in read_squad(path))
            elif self.kind == "articles" and _format(path) == ".txt":
                # The title is the first line if that is a Markdown heading, else the file's name.
                place = re.sub(r"\.(txt|md)(\.gz|\.bz2)?$", "", str(path.absolute()))
                title, text = os.path.basename(place).replace("_", " "), content.read().decode().strip()
                if text.startswith("#"):
                    first, _, text = text.partition("\n")
                    title, text = first.lstrip("# ").strip(), text.strip()
                documents = [Passage(id=os.path.relpath(place, self._above), title=title, text=text)]
            else:
                schema: type[Any] = PassageRow if self.kind == "passages" else ArticleRow
                documents = (row.document() for _, row in parsed_rows(path, content, schema, bad_rows))
            for document in documents:
                if is_visible(document.text):
                    yield stored.tell(), document

    def blocks(self, file: int, bad_rows: BadRows) -> Iterator[Block]:
        """Yields the documents of the file with index `file` in blocks; its last one is empty only in an empty file."""
        path, number, bytes_read = self.files[file], 0, 0
        size = DOCUMENTS_PER_BLOCK * (PASSAGES_PER_DOCUMENT if self.kind in ("passages", "squad") else 1)
        waiting: list[Passage] = []
        for position, document in self.documents(path, bad_rows):
            if len(waiting) == size:
                yield Block(file=file, path=path, number=number, documents=tuple(waiting), bytes_read=bytes_read)
                number, waiting = number + 1, []
            waiting.append(document)
            bytes_read = position
        size = path.stat().st_size
        yield Block(file=file, path=path, number=number, documents=tuple(waiting), bytes_read=size)

    def cut(self, block: Block) -> list[Passage]:
        """Returns the passages of a block.

        The ids of passages cut from an article are `<article>#<number>`, numbers from 0 as in MIRACL.
        """
        passages: list[Passage] = []
        for document in block.documents:
            if self.kind != "articles":
                passages.append(document)
                continue
            # In a language of several scripts: more characters of scripts without spaces than words between spaces.
            is_unspaced = len(UNSPACED.findall(document.text)) > len(document.text.split())
            pieces = chunks(document.text, self.unit or ("characters" if is_unspaced else "words"), self.length)
            passages += [
                Passage(id=f"{document.id}#{n}", title=document.title, text=text)
                for n, text in enumerate(pieces)
                if is_visible(text)
            ]
        return passages

    def passages(
        self, bad_rows: BadRows | None = None, progress: Callable[[float], None] = lambda share: None
    ) -> Iterator[Passage]:
        """Yields the passages in the order of the files.

        Args:
          bad_rows: Takes the rows that cannot be used; None: the first is a UserError.
          progress: Called after each block of documents with the share of the source's bytes that was read.
        """
        sizes, bad_rows = [path.stat().st_size for path in self.files], bad_rows or BadRows()
        for file in range(len(sizes)):
            for block in self.blocks(file, bad_rows):
                yield from self.cut(block)
                progress(min(1.0, (sum(sizes[:file]) + block.bytes_read) / max(1, sum(sizes))))


def find_source(
    language: str, place: str, kind: Kind | None = None, unit: Unit | None = None, length: int = PASSAGE_LENGTH
) -> Source:
    """Returns the source of a language.

    Args:
      place: A file, a folder (all files of known formats) or a pattern with `*`; files are sorted by name and number.
      kind: "articles" (plain text, to be cut), "passages" (ready-made) or "squad" (paragraphs of a reading
        comprehension data set); None: inferred from the name or first row of the first file.
      unit: Unit of the passages' length; None: that of the language's script, or of each article's if CLDR does not
        know the language or has several for it.
    """
    path = expanded(place)
    if path.is_dir():
        files = [file for file in shown_files(path, "**/*") if file.is_file() and _format(file) in _FORMATS]
        # A README.md next to files of rows is not a text to index.
        files = [file for file in files if _format(file) != ".txt"] or files
    else:
        files = [file for file in matching_files(path) if file.is_file()]
    if not files:
        raise UserError(
            f"there is no file at {place}: name a Parquet, JSON lines, tab-separated or text file, or a folder of such"
            " files"
        )
    if unknown := [file for file in files if _format(file) not in _FORMATS]:
        if _format(unknown[0]) == ".xml":
            raise UserError(
                f"{unknown[0]} looks like a Wikimedia dump, whose wikitext is not read: make JSON lines of it with"
                " WikiExtractor --json, or name the Parquet files of wikimedia/wikipedia"
            )
        known = ", ".join(_FORMATS)
        raise UserError(
            f"{unknown[0]} has an unknown format: its name must end in {known}, optionally followed by .gz or .bz2"
        )
    formats = sorted({_format(file) for file in files})
    if len(formats) > 1:
        raise UserError(f"{place} holds files of several formats ({', '.join(formats)}): name one, as *.jsonl")
    files.sort(key=lambda file: [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", str(file))])
    kind = kind or _FORMATS[formats[0]] or _kind_by_rows(files[0])
    needed = _FORMATS[formats[0]] if formats[0] != ".tsv" else None
    if (needed or kind) != kind or (kind == "squad" and not needed):
        raise UserError(f"{files[0]} does not have the format of kind {kind!r}: omit the kind")
    scripts = scripts_of(language)
    if unit is None and scripts and (scripts <= _UNSPACED_SCRIPTS or not scripts & _UNSPACED_SCRIPTS):
        unit = unit_of(language)
    return Source(language=language, files=tuple(files), kind=kind, unit=unit, length=length)


def _format(path: pathlib.Path) -> str:
    suffix = (path.with_suffix("") if path.suffix in (".bz2", ".gz") else path).suffix
    if suffix == ".json":
        # JSON lines by another name, if the first line is an object itself, and none of SQuAD's format.
        with opened(path) as (content, _), contextlib.suppress(ValueError):
            first = pydantic_core.from_json(content.readline(1 << 22))
            if isinstance(first, dict) and first and "data" not in first:
                return ".jsonl"
    if re.fullmatch(r"wiki_\d+(\.bz2)?", path.name):  # as WikiExtractor names its files
        return ".jsonl"
    return ".txt" if suffix == ".md" else suffix


def _kind_by_rows(path: pathlib.Path) -> Kind:
    """Infers the kind of a file from the fields of its first valid row; a bad row is reported when rows are read."""
    with opened(path) as (content, _):
        rows = parsed_rows(path, content, pydantic.RootModel[dict[str, Any]], BadRows(skip=True))
        fields = next((set(row.root) for _, row in rows), set[str]())
    if not fields:
        raise UserError(f"{path} holds no row, from line 1 on: name another file, of JSON lines or Parquet")
    if fields & {"docid", "_id", "contents"}:
        return "passages"
    if fields >= {"id", "title", "text", "url"}:
        return "articles"
    raise UserError(
        f'cannot infer whether {path} holds articles or passages: set index.kind to "articles" or "passages"'
    )


def unit_of(language: str) -> Unit:
    """Returns the unit of passages in a language, such as "zh-min-nan", by the script that is most likely in CLDR."""
    scripts = scripts_of(language)
    return "characters" if scripts and scripts <= _UNSPACED_SCRIPTS else "words"


def chunks(text: str, unit: Unit, length: int = PASSAGE_LENGTH) -> list[str]:
    """Cuts a text into consecutive pieces of `length` words or characters; white space becomes single spaces.

    No piece begins with a combining mark, such as a Thai vowel: it stays with its base character.
    """
    if length < 1:
        raise UserError(f"passages cannot have {length} {unit}: use at least one")
    words = text.split()
    if unit == "words":
        return [" ".join(words[start : start + length]) for start in range(0, len(words), length)]
    text, pieces, start = " ".join(words), [], 0
    while start < len(text):
        stop = start + length
        while stop < len(text) and unicodedata.category(text[stop]).startswith("M"):
            stop += 1
        pieces.append(text[start:stop].strip())
        start = stop
    return [piece for piece in pieces if piece]

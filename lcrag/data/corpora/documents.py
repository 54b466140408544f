"""Documents of a corpus: articles to cut into passages, and ready-made passages.

Articles: the folders of `wikimedia/wikipedia` (Parquet), or JSON lines with the same fields. Passages: MIRACL (`docid`,
`title`, `text`), BEIR (`_id`, `title`, `text`), FlashRAG and Search-R1 (`id`, `contents` with the title, usually
quoted, in the first line), Mr. TyDi and Pyserini (the same, unquoted), in Parquet or JSON lines; DPR's `psgs_w100.tsv`
(`id`, `text`, `title`); the paragraphs of SQuAD's format (XQuAD, MLQA).
"""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator
from typing import Annotated

import pydantic

from lcrag.data.rows import Row
from lcrag.retrieval.passages import Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiPage:
    """A page of a Wikimedia dump.

    Attributes:
      id: The page's number in its wiki.
      title: Its title.
      wikitext: The markup of its last revision.
      hidden_namespaces: Lower-case names of the namespaces whose links show no text: files, categories.
    """

    id: str
    title: str
    wikitext: str
    hidden_namespaces: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Article:
    """An article in plain text, to be cut into passages."""

    id: str
    title: str
    text: str


Document = WikiPage | Article | Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive documents of one file, which are cleaned and cut together.

    Attributes:
      file: The file's index in its source.
      number: The block's index in the file.
      documents: In the file's order; empty only if the whole file is.
      bytes_read: Position in the stored file at the end of the block.
    """

    file: int
    path: pathlib.Path
    number: int
    documents: tuple[Document, ...]
    bytes_read: int

    @property
    def name(self) -> str:
        """The block's name; names sort in the order of a source's blocks."""
        return f"{self.file:05d}-{self.number:07d}"


ARTICLE_FIELDS = frozenset(("id", "title", "text"))


class ArticleRow(Row):
    """`{"id": ..., "title": ..., "text": ...}`; `url` and other fields are ignored."""

    id: Annotated[str, pydantic.Field(min_length=1)] | int
    title: str
    text: str


def articles_of(rows: Iterable[ArticleRow]) -> Iterator[Article]:
    """Yields the articles that have any text."""
    for row in rows:
        if row.text.strip():
            yield Article(id=str(row.id), title=row.title.strip(), text=row.text)


def text_article(path: pathlib.Path, content: bytes) -> Iterator[Article]:
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


# Fields that only passages have.
PASSAGE_FIELDS = frozenset(("docid", "_id", "contents"))

Identifier = Annotated[str, pydantic.Field(min_length=1)] | int


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


def passages_of(rows: Iterable[PassageRow]) -> Iterator[Passage]:
    """Yields the passages of some rows."""
    for row in rows:
        title, text = (row.title, row.text) if row.text is not None else _split(row.contents or "")
        yield Passage(id=str(row.id), title=title.strip(), text=text.strip())


def _split(contents: str) -> tuple[str, str]:
    """Splits contents into the title (first line) and the rest; a single line has no title."""
    first, line_break, rest = contents.partition("\n")
    if not line_break:
        return "", first
    title = first.strip()
    return (title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title), rest

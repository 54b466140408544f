"""Passages that are cut already, in the formats of published collections. They are taken as they are.

MIRACL (`docid`, `title`, `text`), BEIR (`_id`, `title`, `text`), FlashRAG and Search-R1 (`id`, `contents`, the title
in its first line, usually in double quotes), Mr. TyDi and Pyserini (likewise, unquoted): Parquet or JSON lines. DPR's
`psgs_w100.tsv` (`id`, `text`, `title`): tab-separated. The paragraphs of SQuAD's format: XQuAD, MLQA.
"""

import pathlib
from collections.abc import Iterable, Iterator
from typing import Annotated

import pydantic

from lcrag.data.rows import BadRows, Row
from lcrag.data.squad_format import read_squad
from lcrag.retrieval.passages import Passage

# Fields that only passages have.
FIELDS = frozenset(("docid", "_id", "contents"))

Identifier = Annotated[str, pydantic.Field(min_length=1)] | int


class PassageRow(Row):
    """One passage; either `text` or `contents` holds it."""

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
    """The passages of rows."""
    for row in rows:
        title, text = (row.title, row.text) if row.text is not None else _split(row.contents or "")
        yield Passage(id=str(row.id), title=title.strip(), text=text.strip())


def squad_passages(path: pathlib.Path, bad_rows: BadRows) -> Iterator[Passage]:
    """The paragraphs of a file in SQuAD's format.

    Raises:
      UserError: it cannot be read; or a part of it is bad, and bad rows are not skipped.
    """
    for paragraph in read_squad(path, bad_rows):
        yield paragraph.passage


def _split(contents: str) -> tuple[str, str]:
    """The title in the first line, and the rest; what has one line only has no title."""
    first, line_break, rest = contents.partition("\n")
    if not line_break:
        return "", first
    title = first.strip()
    return (title[1:-1] if len(title) > 1 and title[0] == title[-1] == '"' else title), rest

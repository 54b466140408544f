"""Articles in plain text: the folders of `wikimedia/wikipedia` (Parquet), or JSON lines with the same fields."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import pydantic

from lcrag.data.corpora.documents import Article
from lcrag.data.rows import Row

FIELDS = frozenset(("id", "title", "text"))


class ArticleRow(Row):
    """`{"id": ..., "title": ..., "text": ...}`; `url` and other fields are ignored."""

    id: Annotated[str, pydantic.Field(min_length=1)] | int
    title: str
    text: str


def articles_of(rows: Iterable[ArticleRow]) -> Iterator[Article]:
    """The articles that have any text."""
    for row in rows:
        if row.text.strip():
            yield Article(id=str(row.id), title=row.title.strip(), text=row.text)

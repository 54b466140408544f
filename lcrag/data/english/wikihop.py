"""WikiHop: which of some candidates stands in a relation to a subject, by its own paragraphs (Welbl et al., 2018).

https://arxiv.org/abs/1710.06481. A query is a relation of Wikidata and a subject: `country_of_citizenship juan
rossell`.
"""

import pathlib
from collections.abc import Iterator

from lcrag.data.english.asked import Asked, asked, paragraph
from lcrag.data.english.json_lists import list_rows
from lcrag.data.rows import BadRows, Row, Text


class WikiHopRow(Row):
    """An element of the list."""

    id: Text
    query: Text
    answer: Text
    candidates: list[str]
    supports: list[Text]


def read_wikihop(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Asked]]:
    """The queries of a file as questions: "What is the country of citizenship of juan rossell?".

    Its paragraphs have no titles, and nothing says which of them are needed.
    """
    for line, number, row in list_rows(path, WikiHopRow, bad_rows):
        relation, space, subject = row.query.partition(" ")
        if not space:
            bad_rows.add(path, line, f"{number}.query", "expected a relation, a space and a subject")
            continue
        name = relation.replace("_", " ")
        yield (
            line,
            asked(
                row.id,
                f"What is the {name} of {subject}?",
                [row.answer],
                [paragraph("", text) for text in row.supports],
                relation=name,
                subject=subject,
                candidates=list(row.candidates),
            ),
        )

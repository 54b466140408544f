"""Measures the retrieval of collections on judged queries."""

import pathlib
from collections.abc import Sequence

import gin
from rich.table import Table

from lcrag.data.files import data_file, dataset_folder
from lcrag.data.judgements import Judgements, read_trec
from lcrag.data.rows import counted_bad_rows
from lcrag.errors import UserError, typed
from lcrag.evaluation import Row, read_rows, retrieval_rows, write_rows
from lcrag.retrieval import SearchableCollections

METHOD = "retrieval"
DEPTH = 100
_QUERIES_PER_SEARCH = 512


def table_of(rows: Sequence[Row]) -> Table:
    """Returns a table with a row per language and a column per metric."""
    metrics, languages = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("metric", "language"))
    values = {(row.language, row.metric): row for row in rows}
    table = Table("language", "queries", *metrics, title=f"{rows[0].dataset}, {rows[0].split}")
    for language in languages:
        cells = (f"{values[language, metric].value:.3f}" for metric in metrics)
        table.add_row(language, str(values[language, metrics[0]].count), *cells)
    return table


@gin.configurable
@typed
def trec_judgements(
    dataset: str, split: str, topics: str, qrels: str, languages: Sequence[str], source: str, folder: str | None = None
) -> Judgements:
    """Reads queries and judgements from TREC files; see `lcrag.data.judgements.read_trec`.

    Args:
      dataset: Name of the data set.
      split: Its split.
      topics: Name of the file of queries; `{language}` stands for the language.
      qrels: Name of the file of judgements, also with `{language}`.
      languages: Languages to read.
      source: Where the files can be downloaded; for messages.
      folder: Folder of the files; None: `$LCRAG_DATA/<dataset>`.
    """
    found = dataset_folder(dataset, folder)
    with counted_bad_rows() as bad_rows:
        queries = []
        for language in languages:
            files = [data_file(found, (name.format(language=language),), source) for name in (topics, qrels)]
            queries += read_trec(files[0], files[1], language, bad_rows)
    return Judgements(dataset=dataset, split=split, queries=tuple(queries))


def judge(collections: SearchableCollections, judgements: Judgements, model: str) -> list[Row]:
    """Searches for each query in the collection of its language and scores the results.

    Raises:
      UserError: A language has no collection, or no search finds a relevant passage.
    """
    queries = judgements.queries
    found: list[list[str]] = []
    for start in range(0, len(queries), _QUERIES_PER_SEARCH):
        part = queries[start : start + _QUERIES_PER_SEARCH]
        hits = collections.search([query.text for query in part], [query.language for query in part], DEPTH)
        found += [[hit.id for hit in each] for each in hits]
    rows = retrieval_rows(
        found,
        [query.grades for query in queries],
        [query.language for query in queries],
        method=METHOD,
        model=model,
        dataset=judgements.dataset,
        split=judgements.split,
    )
    if not any(row.value for row in rows):
        raise UserError(
            f"no passage that {judgements.dataset} judges relevant is among the first {DEPTH} of any search:"
            " do the collections contain the judged passages?"
        )
    return rows


def add_rows(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Adds rows to a file, replacing those of the same data set, split and encoder."""
    replaced = {(row.dataset, row.split, row.model) for row in rows}
    old = read_rows(path) if path.exists() else []
    write_rows(path, [*(row for row in old if (row.dataset, row.split, row.model) not in replaced), *rows])

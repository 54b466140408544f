"""How well collections are searched, by judged queries: for `lcrag index`, which builds them."""

import pathlib
from collections.abc import Sequence

from lcrag.app.composition.datasets import counted_bad_rows
from lcrag.data.files import data_file, dataset_folder
from lcrag.data.judgements import Judgements, judged_questions, read_trec
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.evaluation import Row, read_rows, retrieval_rows, write_rows
from lcrag.retrieval import SearchableCollections

METHOD = "retrieval"
DEPTH = 100
_QUERIES_PER_SEARCH = 512


def trec_judgements(
    dataset: str, split: str, topics: str, qrels: str, languages: Sequence[str], source: str, folder: str | None = None
) -> Judgements:
    """Queries and judgements in TREC's files; see `lcrag.data.judgements.read_trec`.

    Args:
      dataset: Name of the data set.
      split: Its split.
      topics: Name of a language's file of queries, `{language}` standing for the language.
      qrels: Name of a language's file of judgements, likewise.
      languages: Languages to take.
      source: Where the files are downloaded from.
      folder: Where they are; None: `$LCRAG_DATA/<dataset>`.
    """
    found = dataset_folder(dataset, folder)
    with counted_bad_rows() as bad_rows:
        queries = []
        for language in languages:
            files = [data_file(found, (name.format(language=language),), source) for name in (topics, qrels)]
            queries += read_trec(files[0], files[1], language, bad_rows)
    return Judgements(dataset=dataset, split=split, queries=tuple(queries))


def question_judgements(questions: Sequence[Question], split: str) -> Judgements:
    """Questions that name their gold passage; see `lcrag.data.judgements.judged_questions`.

    Args:
      questions: XQuAD's, say.
      split: What to call it.
    """
    return judged_questions(questions, split)


def judge(collections: SearchableCollections, judgements: Judgements, model: str) -> list[Row]:
    """Searches for every query in the collection of its language, and scores what is found.

    Raises:
      UserError: a language has no collection, or nothing that was judged relevant is ever found.
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
            " are the collections made of the passages that it judged?"
        )
    return rows


def add_rows(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """New rows replace those of the same data set, split and encoder; all others are kept."""
    replaced = {(row.dataset, row.split, row.model) for row in rows}
    old = read_rows(path) if path.exists() else []
    write_rows(path, [*(row for row in old if (row.dataset, row.split, row.model) not in replaced), *rows])

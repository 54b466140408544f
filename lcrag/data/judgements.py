"""Queries with passages judged relevant by people: TREC files, and questions with gold passages."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from lcrag.data.questions import Question
from lcrag.data.rows import BadRows, read_text
from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgedQuery:
    """A query with its judged passages."""

    id: str
    language: str  # of the query and of the collection
    text: str
    grades: Mapping[str, int]  # passage id -> grade; above 0 means relevant


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgements:
    """The judged queries of a split of a data set."""

    dataset: str
    split: str
    queries: tuple[JudgedQuery, ...]


def read_trec(topics: pathlib.Path, qrels: pathlib.Path, language: str, bad_rows: BadRows) -> list[JudgedQuery]:
    """Reads the judged queries of a language from MIRACL's or Mr. TyDi's files, plain or gzipped.

    Args:
      topics: Lines of `query id<TAB>query`.
      qrels: Lines of `query id, Q0, passage id, grade`, separated by white space.
    """
    texts: dict[str, str] = {}
    for number, line in enumerate(read_text(topics).split("\n"), start=1):
        key, tab, text = line.partition("\t")
        if not line.strip():
            continue
        if not tab or not key.strip() or not text.strip():
            bad_rows.add(topics, number, "query", "expected a query's id, a tab and the query")
        else:
            texts[key.strip()] = text.strip()
    grades: dict[str, dict[str, int]] = {key: {} for key in texts}
    for number, line in enumerate(read_text(qrels).split("\n"), start=1):
        match line.split():
            case []:
                continue
            case [key, _, _, _] if key not in texts:
                bad_rows.add(qrels, number, "query id", f"{topics.name} has no query {key}")
            case [key, _, passage, grade] if grade.lstrip("-").isdecimal():
                grades[key][passage] = int(grade)
            case _:
                bad_rows.add(qrels, number, "", "expected a query's id, Q0, a passage's id and a whole number")
    return [JudgedQuery(id=key, language=language, text=text, grades=grades[key]) for key, text in texts.items()]


def judged_questions(questions: Sequence[Question], split: str) -> Judgements:
    """Returns questions with gold passages as judged queries: XQuAD's have one passage, multi-hop questions several."""
    if not questions:
        raise UserError("there are no questions to evaluate retrieval with: choose another split or other languages")
    queries = []
    for question in questions:
        single = question.extra.get("passage")
        if not (golds := [single] if single else question.extra.get("supports", [])):
            where = f"question {question.id} of {question.dataset}"
            raise UserError(f"{where} names no gold passage: judge retrieval by questions that do, such as XQuAD's")
        grades = dict.fromkeys(golds, 1)
        queries.append(JudgedQuery(id=question.id, language=question.language, text=question.text, grades=grades))
    return Judgements(dataset=questions[0].dataset, split=split, queries=tuple(queries))

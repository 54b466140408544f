"""Queries with judged passages: MIRACL's and Mr. TyDi's real files, XQuAD's questions, and wrong lines."""

import pytest
from prepared_data import prepared

from lcrag.data.judgements import JudgedQuery, judged_questions, read_trec
from lcrag.data.multilingual import xquad_passages, xquad_questions
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.errors import UserError


@pytest.mark.parametrize("language", ["en", "ar", "de", "es", "fi", "fr", "ja", "ko", "ru", "th", "zh"])
def test_real_judgements_of_miracl(language):
    topics, qrels = (prepared("miracl") / f"{kind}.miracl-v1.0-{language}-dev.tsv" for kind in ("topics", "qrels"))
    queries = read_trec(topics, qrels, language, BadRows())
    assert (len(queries), {query.language for query in queries}) == (60, {language})
    assert sum(len(query.grades) for query in queries) == len(qrels.read_text().splitlines())
    assert all(1 in query.grades.values() for query in queries)
    assert all("#" in passage for query in queries for passage in query.grades)


def test_real_judgements_of_mr_tydi():
    folder = prepared("mrtydi")
    topics, qrels = folder / "topics.mrtydi-v1.1-en.test.txt.gz", folder / "qrels.mrtydi-v1.1-en.test.txt"
    queries = read_trec(topics, qrels, "en", BadRows())
    assert len(queries) == 40
    assert queries[0] == JudgedQuery(
        id="4476", language="en", text="Who developed Trastuzumab?", grades={"614750#27": 1}
    )


def test_questions_of_xquad_name_their_paragraph():
    folder = prepared("xquad")
    questions = xquad_questions("all", ("en", "zh"), str(folder))
    judged = judged_questions(questions, "all")
    assert (judged.dataset, judged.split, len(judged.queries)) == ("xquad", "all", 2 * 1190)
    passages = {passage.id for passage in xquad_passages(folder, "zh", BadRows())}
    assert {passage for query in judged.queries for passage in query.grades} == passages


def test_questions_without_a_gold_passage():
    question = Question(id="1", dataset="own", language="en", text="x?", answers=("y",))
    for questions in ([question], []):
        with pytest.raises(UserError):
            judged_questions(questions, "test")


@pytest.mark.parametrize(
    ("topics", "qrels", "place"),
    [
        ("1 no tab\n", "", "t.tsv, line 1, field query"),
        ("1\ta\n2\t \n", "", "t.tsv, line 2, field query"),
        ("1\ta\n", "1 Q0 p 1\n1 Q0 p\n", "q.tsv, line 2"),
        ("1\ta\n", "1 Q0 p yes\n", "q.tsv, line 1"),
        ("1\ta\n", "\n9 Q0 p 1\n", "q.tsv, line 2, field query id: t.tsv has no query 9"),
    ],
)
def test_bad_lines_are_named_or_counted(tmp_path, one_bad_row, topics, qrels, place):
    paths = tmp_path / "t.tsv", tmp_path / "q.tsv"
    for path, text in zip(paths, (topics, qrels), strict=True):
        path.write_text(text)
    one_bad_row(lambda bad_rows: read_trec(*paths, "en", bad_rows), place)


def test_grades_below_zero_are_read(tmp_path):
    (tmp_path / "t.tsv").write_text("1\ta\n")
    (tmp_path / "q.tsv").write_text("1\t0\tp\t-1\n1\t0\tq\t2\n")
    (query,) = read_trec(tmp_path / "t.tsv", tmp_path / "q.tsv", "en", BadRows())
    assert query.grades == {"p": -1, "q": 2}

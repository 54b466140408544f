"""User-provided questions in JSON lines."""

import gzip
import json

import pytest

from lcrag.data.batches import coupled
from lcrag.data.jsonl_questions import jsonl_questions
from lcrag.data.questions import with_question_mark
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.methods.globalrag.golden_plans import golden_plans

ROWS = (
    {"id": 1, "language": "fi", "question": "Missä on Tšad?", "answers": ["Afrikassa", "Afrikassa "]},
    {"id": "1", "language": "en", "question": "Where is Chad?", "answers": ["in Africa"], "extra": {"hard": False}},
    {"id": "2", "language": "en", "question": "Name a colour", "answers": ["red"]},
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return path


def read(*files, **options):
    return jsonl_questions(files, **{"dataset": "mine", "bad_rows": BadRows()} | options)


def test_rows_become_questions_and_the_same_id_a_group(file):
    questions = read(file)
    assert [(q.id, q.dataset, q.language, q.text) for q in questions] == [
        ("1", "mine", "fi", "Missä on Tšad?"),
        ("1", "mine", "en", "Where is Chad?"),
        ("2", "mine", "en", "Name a colour"),  # as it stands there
    ]
    assert (questions[0].answers, questions[1].extra) == (("Afrikassa",), {"hard": False})
    assert list(map(len, coupled(questions))) == [2, 1]
    assert [question.language for question in read(file, languages=("fi",))] == ["fi"]


def test_several_files_and_gzip(file, tmp_path):
    more = tmp_path / "more.jsonl.gz"
    more.write_bytes(gzip.compress(json.dumps(ROWS[2] | {"language": "th"}).encode()))
    assert [question.language for question in read(file, more)] == ["fi", "en", "en", "th"]
    with pytest.raises(UserError, match=r"mine.jsonl, line 1, field id: 1 in fi is also at .*mine.jsonl, line 1"):
        read(file, file)


def test_a_byte_order_mark_is_ignored(file):
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(read(file)) == 3


def test_nothing_left_to_ask(file):
    with pytest.raises(
        UserError, match=r"no question of mine is left: .*mine.jsonl.* languages fi en, and wanted are sv"
    ):
        read(file, languages=("sv",))
    with pytest.raises(UserError, match=r"no question of mine is left: the files \[\] .* wanted are all"):
        read()


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        (ROWS[2] | {"anwsers": []}, ("field anwsers", "not permitted")),
        (ROWS[2] | {"answers": []}, ("field answers", "at least 1 item")),
        (ROWS[2] | {"language": "xx"}, ("field language", "unknown language 'xx'")),
        (ROWS[2], ("field id", "2 in en is also at", "line 3")),
    ],
)
def test_bad_rows(file, one_bad_row, row, parts):
    with file.open("a") as lines:
        lines.write(json.dumps(row))
    assert len(one_bad_row(lambda bad_rows: read(file, bad_rows=bad_rows), "mine.jsonl, line 4", *parts)) == 3


@pytest.mark.parametrize("text", ["Who?", "谁？", "من؟", "Ποιος;", "Ποιος\u037e"])
def test_question_marks_of_all_scripts_are_known(text):
    assert (with_question_mark(text), with_question_mark("who ")) == (text, "who?")


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"golden_plans": [{"Q1": {"query": "Where is #2?", "answer": "x"}}]}, "golden_plans.0: Q1 names #2"),
        ({"golden_plans": [{"Q1": {"query": "Where?"}}]}, "golden_plans.0: answer of Q1: it is not a non-empty text"),
        ({"plan": {"Q1": ["Where is #1?", "#1"]}, "sub_answers": {"#1": "x"}}, " is cyclic"),
    ],
)
def test_an_invalid_golden_plan_is_a_bad_row(tmp_path, one_bad_row, extra, problem):
    path = tmp_path / "mine.jsonl"
    good = ROWS[2] | {"extra": {"golden_plans": [{"Q1": {"query": "Which colour?", "answer": ["red"]}}]}}
    path.write_text(f"{json.dumps(good)}\n{json.dumps(ROWS[1] | {'extra': extra})}\n")
    place = "mine.jsonl, line 2, field extra: "
    [question] = one_bad_row(lambda rows: read(path, bad_rows=rows, check_extra=golden_plans), place, problem)
    assert question.extra == good["extra"]

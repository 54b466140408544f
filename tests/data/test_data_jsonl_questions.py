"""User-provided questions in JSON lines."""

import gzip
import json

import pytest

from lcrag.data.batches import coupled
from lcrag.data.jsonl_questions import jsonl_questions
from lcrag.data.questions import with_question_mark
from lcrag.errors import UserError

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
    return jsonl_questions(files, "mine", **options)


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


def test_nothing_left_to_ask(file):
    for read_nothing in (lambda: read(file, languages=("sv",)), read):
        with pytest.raises(UserError, match="no question of mine is left"):
            read_nothing()


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
    assert len(one_bad_row(lambda _: read(file), "mine.jsonl, line 4", *parts)) == 3


@pytest.mark.parametrize("text", ["Who?", "谁？", "من؟", "Ποιος;", "Ποιος\u037e"])
def test_question_marks_of_all_scripts_are_known(text):
    assert (with_question_mark(text), with_question_mark("who ")) == (text, "who?")

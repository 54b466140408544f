"""Rows of data files: errors give file, line and field; skipped rows are counted."""

import gzip
import json

import pytest

from lcrag.data.files import data_file, dataset_folder
from lcrag.data.rows import BadRows, Row, Text, read_rows, read_text
from lcrag.data.squad_format import read_squad
from lcrag.errors import UserError


class Pair(Row):
    name: Text
    sizes: list[int]


def written(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


GOOD = '{"name": " a ", "sizes": [1], "more": null}'


def test_rows_come_with_their_line_numbers(tmp_path):
    path = written(tmp_path / "rows.jsonl", f"\ufeff{GOOD}", "", GOOD)
    rows = [(line, row.name, row.sizes) for line, row in read_rows(path, Pair, BadRows())]
    assert rows == [(1, "a", [1]), (3, "a", [1])]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"name": "a", "sizes": [1, "2"]}', ("line 2", "field sizes.1", "valid integer")),
        ('{"name": "a", "sizes": [1.0]}', ("field sizes.0", "valid integer")),
        ('{"name": "a"}', ("line 2", "field sizes", "required")),
        ('{"name": "  ", "sizes": []}', ("field name", "at least 1 character")),
        ('{"name": "a\\u0000", "sizes": []}', ("field name", "U+0000")),
        ('{"name": "a", "sizes": [1]', ("line 2: invalid JSON",)),
        ('["a"]', ("line 2", "object")),
        ('{"name": "\\ud800", "sizes": []}', ("line 2", "escape")),
    ],
)
def test_a_bad_row_is_one_line(tmp_path, one_bad_row, line, parts):
    path = written(tmp_path / "rows.jsonl", GOOD, line, GOOD)
    rows = one_bad_row(lambda bad_rows: list(read_rows(path, Pair, bad_rows)), str(path), *parts)
    assert [number for number, _ in rows] == [1, 3]


def test_skipped_rows_are_counted_over_files(tmp_path):
    bad_rows = BadRows(skip=True)
    assert bad_rows.summary() == ""
    for name in ("a.jsonl", "b.jsonl"):
        list(read_rows(written(tmp_path / name, "{}", GOOD, "[]"), Pair, bad_rows))
    assert bad_rows.summary().startswith(f"4 bad rows were left out; the first: {tmp_path / 'a.jsonl'}, line 1")


def test_a_file_of_another_kind_is_refused_even_when_skipping(tmp_path):
    for lines, part in (((), "empty"), (("{}", "[]"), "line 1, field name")):
        with pytest.raises(UserError, match=part):
            list(read_rows(written(tmp_path / "rows.jsonl", *lines), Pair, BadRows(skip=True)))


def test_files_that_cannot_be_read(tmp_path):
    whole = gzip.compress(f"{GOOD}\n".encode() * 2000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.jsonl.gz").write_text(GOOD)
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("cut.jsonl.gz", "plain.jsonl.gz", "gone.jsonl", "folder.jsonl"):
        with pytest.raises(UserError, match=name):
            list(read_rows(tmp_path / name, Pair, BadRows()))
    (tmp_path / "latin.json").write_bytes("é".encode("latin-1"))
    with pytest.raises(UserError, match="latin.json cannot be read .*UTF-8"):
        read_text(tmp_path / "latin.json")


def test_folders_and_files_are_named_with_their_source(tmp_path, monkeypatch):
    monkeypatch.delenv("LCRAG_DATA", raising=False)
    with pytest.raises(UserError, match="LCRAG_DATA .*, or bind mkqa_questions.folder"):
        dataset_folder("mkqa")
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path))
    with pytest.raises(UserError, match="no folder .*mkqa"):
        dataset_folder("mkqa")
    assert dataset_folder("mkqa", tmp_path) == tmp_path
    with pytest.raises(UserError, match="no a.json in .*: download https://example.org/a.json"):
        data_file(tmp_path, ("a.json", "b.json"), "https://example.org/a.json")
    for name in ("b.json.gz", "b.json", "a.json.gz"):  # the official name first, plain before gzipped
        (tmp_path / name).touch()
        assert data_file(tmp_path, ("a.json", "b.json"), "").name == name


QUESTIONS = [
    {"id": "1", "question": "What?", "answers": [{"text": "text"}, {"text": "text"}]},
    {"id": "2", "question": "How much?", "answers": [{"text": "some"}]},
]
SQUAD = {"data": [{"title": "A_title", "paragraphs": [{"context": "\ufeff Some text. ", "qas": QUESTIONS}]}]}


def test_squad_files_are_paragraphs_with_questions(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD))
    [paragraph] = read_squad(path, BadRows())
    assert (paragraph.title, paragraph.number, paragraph.text) == ("A title", 0, "Some text.")
    assert [(question.id, question.answers) for question in paragraph.questions] == [("1", ("text",)), ("2", ("some",))]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"some"', "3", "answers.0.text: input should be a valid string"),
        ('"id": "2"', '"id": "1"', "id: 1 is already used"),
        ('"How much?"', '" "', "question: string should have at least 1 character"),
        ('"id": "2"', '"ID": "2"', "id: field required"),
    ],
)
def test_a_bad_question_in_squad_s_format(tmp_path, one_bad_row, old, new, field):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD).replace(old, new))
    place = f"squad.json, data.0.paragraphs.0.qas.1, field {field}"
    [paragraph] = one_bad_row(lambda bad_rows: read_squad(path, bad_rows), place)
    assert len(paragraph.questions) == 1


def test_squad_files_that_are_something_else(tmp_path):
    path = tmp_path / "squad.json"
    for text, part in (('{"data": [\n}', "line 2: not JSON"), ('{"rows": []}', "field data: field required")):
        path.write_text(text)
        with pytest.raises(UserError, match=part):
            read_squad(path, BadRows())
    path.write_text('{"data": [{"title": "x"}, {"title": "y", "paragraphs": [[]]}]}')
    bad_rows = BadRows(skip=True)
    assert (read_squad(path, bad_rows), len(bad_rows.problems)) == ([], 2)

"""Rows of data files: errors give file, line and field; skipped rows are counted."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.files import data_file, dataset_folder
from lcrag.data.rows import BadRows, Row, Text, line_in_json, read_rows, read_text
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
    path = written(tmp_path / "rows.jsonl", GOOD, "", GOOD)
    assert [(line, row.name, row.sizes) for line, row in read_rows(path, Pair, BadRows())] == [
        (1, "a", [1]),
        (3, "a", [1]),
    ]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"name": "a", "sizes": [1, "2"]}', ("line 2", "field sizes.1", "valid integer")),
        ('{"name": "a", "sizes": [1.0]}', ("field sizes.0", "valid integer")),
        ('{"name": "a"}', ("line 2", "field sizes", "required")),
        ('{"name": "  ", "sizes": []}', ("field name", "at least 1 character")),
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
    for lines, sentence in (((), "the file is empty"), (("{}", "[]"), "line 1, field name")):
        with pytest.raises(UserError, match=sentence):
            list(read_rows(written(tmp_path / "rows.jsonl", *lines), Pair, BadRows(skip=True)))


def test_files_that_cannot_be_read(tmp_path):
    whole = gzip.compress(f"{GOOD}\n".encode() * 2000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.jsonl.gz").write_text(GOOD)
    for name in ("cut.jsonl.gz", "plain.jsonl.gz"):
        with pytest.raises(UserError, match=f"{name} cannot be read .*: download it again"):
            list(read_rows(tmp_path / name, Pair, BadRows()))
    with pytest.raises(UserError, match="there is no file .*gone.jsonl"):
        list(read_rows(tmp_path / "gone.jsonl", Pair, BadRows()))
    (tmp_path / "latin.json").write_bytes("é".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin.json is not UTF-8 \(byte 0\)"):
        read_text(tmp_path / "latin.json")


def test_folders_and_files_are_named_with_their_source(tmp_path, monkeypatch):
    monkeypatch.delenv("LCRAG_DATA", raising=False)
    with pytest.raises(
        UserError, match="set LCRAG_DATA to the folder that holds the folder mkqa, or bind mkqa_questions.fo"
    ):
        dataset_folder("mkqa")
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path))
    with pytest.raises(UserError, match="there is no folder .*mkqa"):
        dataset_folder("mkqa")
    assert dataset_folder("mkqa", tmp_path) == tmp_path
    with pytest.raises(UserError, match="there is no a.json in .*: download https://example.org/a.json"):
        data_file(tmp_path, ("a.json", "b.json"), "https://example.org/a.json")
    for name in ("b.json.gz", "b.json", "a.json.gz"):  # the official name first, plain before gzipped
        (tmp_path / name).touch()
        assert data_file(tmp_path, ("a.json", "b.json"), "").name == name


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


@given(json_values, st.sampled_from([None, 2]), st.data())
def test_a_value_s_line_is_found(value, indent, data):
    """The oracle marks the value and looks for the mark."""
    place, marked = [], {"root": value}
    holder, key = marked, "root"
    while isinstance(holder[key], list | dict) and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(list(holder) if isinstance(holder, dict) else list(range(len(holder)))))
        place.append(key)
    text = json.dumps(value, indent=indent)
    holder[key] = "\0mark\0"
    expected = json.dumps(marked["root"], indent=indent).split(json.dumps("\0mark\0"))[0].count("\n") + 1
    assert line_in_json(text, place) == expected


SQUAD = {
    "data": [
        {
            "title": "A_title",
            "paragraphs": [
                {
                    "context": "\ufeff Some text. ",
                    "qas": [
                        {"id": "1", "question": "What?", "answers": [{"text": "text"}, {"text": "text"}]},
                        {"id": "2", "question": "How much?", "answers": [{"text": "some"}]},
                    ],
                }
            ],
        }
    ]
}


def test_squad_files_and_their_bad_rows(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD, indent=1))
    [paragraph] = read_squad(path, BadRows())
    assert (paragraph.title, paragraph.number, paragraph.text) == ("A title", 0, "Some text.")
    assert [(question.id, question.answers) for question in paragraph.questions] == [("1", ("text",)), ("2", ("some",))]
    for old, new, field, problem in (
        ('"some"', "3", "qas.1.answers.0.text", "valid string"),
        ('"id": "2"', '"id": "1"', "qas.1.id", "1 is already used by an earlier question"),
        ('"How much?"', '" "', "qas.1.question", "at least 1 character"),
        ('"id": "2"', '"ID": "2"', "qas.1.id", "required"),
    ):
        text = json.dumps(SQUAD, indent=1).replace(old, new)
        path.write_text(text)
        line = next(n for n, content in enumerate(text.splitlines(), 1) if content.strip() == "{" and n > 17)
        with pytest.raises(UserError, match=f"squad.json, line {line}, field data.0.paragraphs.0.{field}: .*{problem}"):
            read_squad(path, BadRows())
        bad_rows = BadRows(skip=True)
        [paragraph] = read_squad(path, bad_rows)
        assert (len(paragraph.questions), len(bad_rows.problems)) == (1, 1)


def test_squad_files_that_are_something_else(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text('{"data": [\n}')
    with pytest.raises(UserError, match="squad.json, line 2: not JSON"):
        read_squad(path, BadRows())
    path.write_text('{"rows": []}')
    with pytest.raises(UserError, match="line 1, field data: field required"):
        read_squad(path, BadRows())
    path.write_text('{"data": [{"title": "x"}, {"title": "y", "paragraphs": [[]]}]}')
    bad_rows = BadRows(skip=True)
    assert (read_squad(path, bad_rows), len(bad_rows.problems)) == ([], 2)

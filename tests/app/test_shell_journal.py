"""A run's journal: whole lines stay, a torn one goes, what is no object is named."""

import pytest

from lcrag.app.runs import Journal
from lcrag.errors import UserError


def test_rows_are_continued(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path).append([{"a": 1}, {"b": "ä"}])
    with path.open("a") as file:
        file.write('{"torn": ')
    journal = Journal(path)
    assert journal.rows == [{"a": 1}, {"b": "ä"}]
    journal.append([{"c": (1, 2)}])
    assert journal.rows[-1] == {"c": [1, 2]} and Journal(path).rows == journal.rows
    assert path.read_text() == '{"a": 1}\n{"b": "ä"}\n{"c": [1, 2]}\n'


@pytest.mark.parametrize("line", ["what", "[1]"])
def test_a_line_that_is_no_object_is_named(tmp_path, line):
    (tmp_path / "journal.jsonl").write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(UserError, match="line 2 is no"):
        Journal(tmp_path / "journal.jsonl")

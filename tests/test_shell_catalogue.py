"""`lcrag list` and the lists in the help: whole descriptions, wrapped on a terminal and one line each in a pipe."""

import os
import sys

import pytest

from lcrag import main
from lcrag.commands import catalogue
from lcrag.config import packaged_folder, packaged_names

LONG = {"a.gin": "word " * 60 + "end", "folder/b.gin": "short"}


def test_a_pipe_gets_one_whole_line_for_each_file(capsys):
    assert main.run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(packaged_names())
    for line, name in zip(lines, packaged_names(), strict=True):
        first = (packaged_folder() / name).read_text(encoding="utf-8").splitlines()[0]
        assert line.endswith(first.lstrip("# ").rstrip())


@pytest.mark.parametrize("columns", [40, 80])
def test_a_terminal_gets_wrapped_descriptions(columns, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(catalogue.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    lines = catalogue.rows(LONG).splitlines()
    assert len(lines) > 3
    assert " ".join(" ".join(lines).split()) == "a.gin " + " ".join(LONG["a.gin"].split()) + " folder/b.gin short"
    assert max(map(len, lines)) <= max(columns, 46)
    assert {len(line) - len(line.lstrip()) for line in lines[1:-1]} == {16}

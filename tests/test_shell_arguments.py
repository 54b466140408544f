"""What a person may type, and the lists of configurations that the help and `lcrag list` show."""

import os
import sys
from pathlib import Path

import pytest

from lcrag import main
from lcrag.commands import table
from lcrag.commands.arguments import split_arguments
from lcrag.config import packaged_folder, packaged_names
from lcrag.errors import UserError


def test_every_part_is_found():
    words = ["sample", "Where is Chad?", "--gin_file=a.gin", "--gin_file", "b.gin", "--gin.A/B.c='x = y'"]
    words += ["--output_dir=o", "--skip", "--shape=4x4", "--allow_unused", "--", "--help", "-1"]
    arguments = split_arguments(words, others=("--shape", "--size"), switches=("--skip", "--keep"))
    assert (arguments.command, arguments.words) == ("sample", ("Where is Chad?", "--help", "-1"))
    assert arguments.gin_files == ("a.gin", "b.gin")
    assert arguments.bindings == ("A/B.c = 'x = y'",)
    assert arguments.output_dir == Path("o")
    assert (arguments.others, arguments.switches) == ({"--shape": "4x4"}, ("--skip",))
    assert arguments.flags == ("--allow_unused",)


@pytest.mark.parametrize(
    ("word", "part"),
    [("--skp", "did you mean --skip"), ("--gin.A.b", "--gin.A.b"), ("--gin.A.b='http://a:b@c'", "A.b")],
)
def test_what_cannot_be_typed(word, part):
    with pytest.raises(UserError, match=part):
        split_arguments(["train", word], switches=("--skip",))


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
    monkeypatch.setattr(table.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    long = {"a.gin": "word " * 60 + "end", "folder/b.gin": "short"}
    lines = table.rows(long).splitlines()
    assert len(lines) > 3
    assert " ".join(" ".join(lines).split()) == "a.gin " + " ".join(long["a.gin"].split()) + " folder/b.gin short"
    assert max(map(len, lines)) <= max(columns, 46)
    assert {len(line) - len(line.lstrip()) for line in lines[1:-1]} == {16}

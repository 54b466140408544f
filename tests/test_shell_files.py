"""Where a program runs: file systems without locks, users without homes, `~`, and hidden files."""

import errno
import fcntl
import os
import pathlib
import stat
from unittest import mock

import pytest
from support.row_files import write_rows

from lcrag import files
from lcrag.commands.command_line import parse
from lcrag.data.corpora import find_source
from lcrag.errors import UserError
from lcrag.runs.folder import check_folder, open_run


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL])
def test_without_locks_the_work_goes_on_and_says_so_once(number, monkeypatch, tmp_path, capsys):
    files._report_missing_locks.cache_clear()
    monkeypatch.setattr(fcntl, "flock", mock.Mock(side_effect=OSError(number, os.strerror(number))))
    run = tmp_path / "run"
    for _ in range(2):
        with files.replacing_folder(tmp_path / "made") as made:
            (made / "a").write_text("b")
        with files.locked(tmp_path), open_run(run, config="train.steps = 1", about={"seed": 0}):
            check_folder(run, "train", "train.steps = 1")
    assert (tmp_path / "made" / "a").read_text() == "b"
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(set(said)) > 0
    assert all(os.strerror(number) in line and "another process" not in line for line in said)


def test_a_held_lock_is_another_process(tmp_path):
    made = tmp_path / "made"
    with files.replacing_folder(made) as building:
        (building / "a").write_text("b")
        with pytest.raises(UserError, match="being written by another process"), files.replacing_folder(made):
            pass
        assert (building / "a").exists()  # what the other writes stays
    assert (made / "a").exists()


def test_an_error_that_blocks_inside_is_no_other_process(tmp_path):
    with pytest.raises(BlockingIOError), files.replacing_folder(tmp_path / "made"):
        raise BlockingIOError(errno.EAGAIN, "a pipe is full")


@pytest.mark.parametrize("home", [None, "/nonexistent/home", "/proc"])
def test_a_user_without_a_home_has_a_private_cache(home, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path).startswith(str(tmp_path)))  # root may write anywhere
    if home is None:
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:
        monkeypatch.setenv("HOME", home)
    folder = files.cache_folder()
    assert (folder.parent, stat.S_IMODE(folder.stat().st_mode)) == (tmp_path, 0o700)
    assert files.cache_folder() == folder
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    (tmp_path / "lcrag-4711").symlink_to(tmp_path)
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        files.cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "chosen"))
    assert files.cache_folder() == tmp_path / "chosen" / "lcrag"


def test_a_tilde_is_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    typed = parse(["view", "~/runs", "--output_dir=~/a", "--output=~/b", "--gin_file=~/c.gin", "--gin_file=d.gin"])
    assert (typed.words, typed.output_dir) == ((f"{tmp_path}/runs",), tmp_path / "a")
    assert (typed.options["--output"], typed.gin_files) == (f"{tmp_path}/b", (f"{tmp_path}/c.gin", "d.gin"))
    assert parse(["sample", "~ is what?"]).words == ("~ is what?",)
    (tmp_path / "en.jsonl").write_text('{"id": "1", "contents": "T\\nText"}\n')
    assert files.local_files("~/en.jsonl") == files.matching_files("~/en.jsonl")[0] == tmp_path / "en.jsonl"
    assert find_source("en", "~/*.jsonl").files == (tmp_path / "en.jsonl",)
    with files.replacing_folder("~/made"):
        pass
    assert files.readable_folder("~/made") == tmp_path / "made"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(UserError, match="no home"):
        parse(["train", "--output_dir=~/runs"])
    assert files.expanded("~backup/x") == pathlib.Path("~backup/x")  # a folder's name


def test_hidden_files_and_folders_are_no_source(tmp_path):
    root = tmp_path / ".cache" / "wiki"  # the named folder itself may be hidden
    names = ("a.jsonl", "b/c.jsonl", "._a.jsonl", ".Trash-0/files/old.jsonl", "b/.ipynb_checkpoints/c-checkpoint.jsonl")
    for name in names:
        write_rows(root / name, {"id": "1", "contents": "T\nText"})
    shown = {root / "a.jsonl", root / "b/c.jsonl"}
    for place in (root, root / "**" / "*.jsonl"):
        assert set(find_source("en", str(place)).files) == shown
    assert set(find_source("en", str(root / ".Trash-*" / "files" / "*.jsonl")).files) == {root / names[3]}

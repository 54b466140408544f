"""Folders are replaced atomically."""

import signal
import subprocess
import sys

import pytest

from lcrag.errors import UserError
from lcrag.retrieval.folders import file_checks, first_damaged, readable, replacing


def _write(folder, text):
    with replacing(folder) as temporary:
        (temporary / "file").write_text(text)


def _content(folder):
    return (readable(folder) / "file").read_text()


def test_replacing_leaves_no_other_folder(tmp_path):
    for text in ("one", "two"):
        _write(tmp_path / "a", text)
        assert _content(tmp_path / "a") == text
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_error_leaves_the_old_content(tmp_path):
    _write(tmp_path / "a", "old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "a") as temporary:
        (temporary / "file").write_text("half")
        raise RuntimeError
    assert _content(tmp_path / "a") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("dies_before", ["write", "first rename", "second rename", "removal"])
def test_killed_at_any_moment_something_whole_is_readable(tmp_path, dies_before):
    _write(tmp_path / "a", "old")
    command = [sys.executable, "-c", _DYING_WRITER, tmp_path / "a", dies_before]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert _content(tmp_path / "a") == ("new" if dies_before == "removal" else "old")
    _write(tmp_path / "a", "newest")
    assert _content(tmp_path / "a") == "newest"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


_DYING_WRITER = """
import os, pathlib, signal, sys
from lcrag.retrieval import folders

folder, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
original = pathlib.Path.rename

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def rename(path, target):
    is_second = path.name.endswith(".building")
    return kill() if is_second == (moment == "second rename") else original(path, target)

if moment.endswith("rename"):
    pathlib.Path.rename = rename
with folders.replacing(folder) as temporary:
    (temporary / "file").write_text("half" if moment == "write" else "new")
    if moment == "write":
        kill()
    if moment == "removal":
        folders.shutil.rmtree = kill
"""


def test_two_writers_at_once_are_refused(tmp_path):
    with replacing(tmp_path / "a") as temporary:
        (temporary / "file").write_text("first")
        with pytest.raises(UserError, match="another process"), replacing(tmp_path / "a"):
            pass
    assert _content(tmp_path / "a") == "first"


def test_damage_is_found(tmp_path):
    for name in ("a", "b/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("content")
    checks = file_checks(tmp_path)
    assert first_damaged(tmp_path, checks) is None
    (tmp_path / "b/c").write_text("cXntent")
    assert first_damaged(tmp_path, checks) == "b/c"
    (tmp_path / "a").unlink()
    assert first_damaged(tmp_path, checks) == "a"

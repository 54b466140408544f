"""Every mistake is one line with exit status 2, found before anything is built; mistakes.txt is the table."""

import gzip
import re
import shlex
from pathlib import Path

import gin
import pytest

import lcrag.composition.commands  # noqa: F401  registers what configurations name
from lcrag import main
from lcrag.composition.gin_files import packaged_folder

LINES = (Path(__file__).parent / "mistakes.txt").read_text(encoding="utf-8").splitlines()
TABLE = [(line, said) for line, said in zip(LINES, LINES[1:], strict=False) if line.startswith("$ lcrag")]
ROW = '{"id": "1", "language": "%s", "question": "%s", "answers": ["x"]}\n'
FILES = {
    "again.jsonl": ROW % ("en", "Why?") * 2,
    "broken.jsonl": ROW % ("en", "Why?") + '{"id": "2",\n',
    "empty.jsonl": "",
    "good.jsonl": ROW % ("en", "Why?"),
    "import.gin": "import lcrag.nothing_here\n",
    "includes.gin": "include 'gone.gin'\n",
    "invisible.jsonl": ROW % ("en", r"\u200b"),
    "line.gin": "STEPS = 1\ntrain.steps = = 2\n",
    "loop.gin": "include 'loop.gin'\n",
    "nul.jsonl": ROW % ("en", r"a\u0000b"),
    "secret.gin": "include 'quickstart.gin'\nremote_collections.url = 'http://reader:hunter2@host:8000'\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with files that are wrong in one way each."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "empty").mkdir()
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").touch()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "latin.gin").write_bytes(b"# caf\xe9\n")
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(FILES["good.jsonl"].encode())[:-9])
    return folder


@pytest.mark.parametrize(("line", "said"), TABLE, ids=[line.removeprefix("$ lcrag ") for line, _ in TABLE])
def test_a_mistake_is_one_line(line, said, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    for variable in ("LCRAG_DATA", "SERPAPI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    gin.clear_config()
    assert main.run(shlex.split(line)[2:]) == 2
    error = re.sub(rf"{packaged_folder()}/(\S+\.gin):\d+", r"\1:*", capfd.readouterr().err)
    error = error.replace(f"{packaged_folder()}/", "").replace(f"{folder}/", "")
    assert error == f"lcrag: error: {said}\n"
    assert not (folder / "out").exists()

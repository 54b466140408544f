"""What makes commands start fast: compiled programs are kept in the user's cache, and little is imported."""

import subprocess
import sys

import pytest

from lcrag import main
from lcrag.runs.processes import FOLDER, SETTINGS, SWITCH, set_compilation_cache


def test_every_program_is_kept_in_the_users_cache_for_one_kind_of_processor(tmp_path, monkeypatch):
    folders = set()
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        set_compilation_cache(environment := {"XDG_CACHE_HOME": str(tmp_path)}, enabled=True)
        assert environment.items() >= SETTINGS.items()
        folders.add(environment[FOLDER])
    assert len(folders) == 2
    assert all(folder.startswith(str(tmp_path / "lcrag" / "compiled")) for folder in folders)


def test_what_the_user_has_set_stays():
    environment = {FOLDER: "/elsewhere"}
    set_compilation_cache(environment, enabled=True)
    assert environment == {FOLDER: "/elsewhere"}


@pytest.mark.parametrize(("words", "switched"), [((), None), (("--no_compilation_cache",), "false")])
def test_every_command_uses_it_unless_a_switch_says_no(words, switched, tmp_path, monkeypatch, capsys):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    monkeypatch.setattr(main.os, "environ", environment)
    assert main.run(["sample", "Why?", f"--gin_file={tmp_path / 'absent.gin'}", *words]) == 2
    assert environment.get(SWITCH) == switched
    assert (FOLDER in environment) == (switched is None)
    assert "absent.gin" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("work", "absent"),
    [
        ("main.run(['train', '--help'])", {"jax", "numpy", "tensorboard", "fastapi", "lcrag.train"}),
        ("config.register()", {"matplotlib", "scipy.stats"}),  # which take two of a command's first seconds
    ],
)
def test_little_is_imported(work, absent):
    code = f"import sys; from lcrag import config, main; {work}; print({absent} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "set()"

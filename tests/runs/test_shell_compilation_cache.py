"""What makes commands start fast: compiled programs are kept in the user's cache, and little is imported."""

import subprocess
import sys

import pytest

from lcrag import main
from lcrag.runs.compilation import FOLDER, SETTINGS, SWITCH, set_compilation_cache


def test_the_folder_is_in_the_users_cache(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    set_compilation_cache(environment, enabled=True)
    assert environment[FOLDER].startswith(str(tmp_path / "lcrag" / "compiled"))
    assert environment.items() >= SETTINGS.items()


def test_every_program_is_kept_for_one_kind_of_processor(tmp_path, monkeypatch):
    folders = set()
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        set_compilation_cache(environment := {"XDG_CACHE_HOME": str(tmp_path)}, enabled=True)
        folders.add(environment[FOLDER])
    assert len(folders) == 2


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


def test_no_command_waits_for_what_only_reports_need():
    """Matplotlib and scipy.stats take two of the seconds in which `lcrag sample` should answer."""
    loaded = (
        "import sys; from lcrag import config; config.register();"
        "print({'matplotlib', 'scipy.stats'} & set(sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"

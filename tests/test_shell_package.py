"""What an installed package holds, and the scripts that install it."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lcrag.config import packaged_names

ROOT = Path(__file__).resolve().parents[1]
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "NOTICE")
SCRIPTS = [ROOT / ".ci" / "run", *sorted((ROOT / "launch").glob("*.sh"))]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in FILES:
        shutil.copy(ROOT / name, source)
    for name in ("gin", "lcrag"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", source, source], check=True)
    (wheel,) = source.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-compile", "--target", target, wheel], check=True)
    return target


def test_a_wheel_holds_every_file_and_all_configurations(installed):
    assert packaged_names(installed / "lcrag" / "gin") == packaged_names()
    paths = [path.relative_to(ROOT) for path in (ROOT / "lcrag").rglob("*") if path.is_file()]
    assert not [path for path in paths if path.suffix != ".pyc" and not (installed / path).is_file()]


def test_an_installed_package_has_its_licences_and_the_tested_versions(installed):
    (distribution,) = importlib.metadata.distributions(path=[str(installed)])
    licences = {Path(name).name for name in distribution.metadata.get_all("License-File")}
    assert licences == {"LICENSE", "NOTICE", "LICENSE.unicode.txt", "LICENSES.md"}
    assert {"cpu", "cuda", "tpu", "test"} <= set(distribution.metadata.get_all("Provides-Extra"))
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for requirement in map(Requirement, distribution.requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": "test"}):
            assert requirement.name in tested, requirement
            assert requirement.specifier.contains(tested[requirement.name]), requirement
    folder = installed / "lcrag" / "atlas" / "weights"
    stated = (folder / "LICENSES.md").read_text(encoding="utf-8")
    cards = {path.parent.name: path.read_text(encoding="utf-8") for path in folder.glob("*/README.md")}
    assert cards.keys() == {path.parent.name for path in folder.glob("*/model.safetensors")}
    assert all(f"`{name}/`" in stated for name in cards)
    assert all("LICENSES.md" in card for card in cards.values())
    assert "Copyright © 2004-2025 Unicode, Inc." in (folder / "LICENSE.unicode.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script):
    subprocess.run(["bash", "-n", script], check=True)
    if script.name != "environment.sh":  # which is sourced
        assert "set -euo pipefail" in script.read_text()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_shellcheck_finds_nothing():
    subprocess.run(["shellcheck", *SCRIPTS], check=True)


@pytest.mark.parametrize("name", ["pod", "ssh", "slurm", "real_weights"])
def test_a_script_without_arguments_says_how_it_is_called(name, tmp_path):
    script = ROOT / "launch" / f"{name}.sh"
    answer = subprocess.run(["bash", script], capture_output=True, text=True, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert f"bash launch/{name}.sh" in answer.stderr or "usage: " in answer.stderr
    assert not list(tmp_path.iterdir())


def test_an_old_python_is_one_clear_line(tmp_path):
    for name in ("python", "python3", "python3.11", "python3.12", "python3.13"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    script = f"cd {tmp_path}; source {ROOT}/launch/environment.sh; PATH={tmp_path}:$PATH prepare_environment"
    answer = subprocess.run(["bash", "-c", f"set -euo pipefail; {script}"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert re.fullmatch(r"lcrag: error: .*3\.11.*3\.13.*\n", answer.stderr)

"""What an installed package holds, and the scripts that install it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lcrag.config import packaged_names

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [ROOT / ".ci" / "run", *sorted((ROOT / "launch").glob("*.sh"))]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which a wheel of this package is installed; built from a copy, which keeps build folders out."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in"):
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


def test_licences_ship_with_the_weights(installed):
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


def test_an_old_python_is_one_clear_line(tmp_path):
    """Where only an unsupported interpreter is on the path, the scripts say so and stop."""
    for name in ("python", "python3", "python3.11", "python3.12", "python3.13"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    script = f"cd {tmp_path}; source {ROOT}/launch/environment.sh; PATH={tmp_path}:$PATH prepare_environment"
    answer = subprocess.run(["bash", "-c", f"set -euo pipefail; {script}"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr == "lcrag: error: Python 3.11, 3.12 or 3.13 is needed; install one and run this again\n"

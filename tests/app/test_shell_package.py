"""What an installed package holds, and the scripts that install it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lcrag.app.composition.gin_files import packaged_folder, packaged_names

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [ROOT / ".ci" / "run", *sorted((ROOT / "launch").glob("*.sh"))]


def test_a_built_package_holds_the_configurations(tmp_path):
    """Built from a copy, so that no build folder is left behind."""
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("gin", "lcrag"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", "out"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    assert packaged_names(tmp_path / "out" / "lcrag" / "gin") == packaged_names()
    weights = {path.relative_to(ROOT / "lcrag") for path in (ROOT / "lcrag").rglob("*.safetensors")}
    assert all((tmp_path / "out" / "lcrag" / path).is_file() for path in weights)


def test_configurations_are_found_from_a_checkout():
    assert packaged_folder() == ROOT / "gin"


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

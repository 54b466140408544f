"""Real data that tests use where it is at hand: the folder LCRAG_TEST_DATA, or shared/data beside the repository."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("LCRAG_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def prepared(name: str) -> Path:
    """A file or folder of the prepared data; without it the test is skipped."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"needs {name} of the prepared data: set LCRAG_TEST_DATA to its folder")
    return path

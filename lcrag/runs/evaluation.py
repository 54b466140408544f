"""`evaluation.json`: rows of measured numbers, added to and replaced, never lost."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lcrag.errors import UserError
from lcrag.runs.atomic import write_json

EVALUATION = "evaluation.json"
KEY = ("method", "model", "dataset", "split", "language", "metric", "seed")


def read_evaluation(folder: Path) -> list[dict[str, Any]]:
    """The rows of a folder's `evaluation.json`, none if it has no such file.

    Raises:
      UserError: The file is not what `write_evaluation` writes.
    """
    path = folder / EVALUATION
    if not path.exists():
        return []
    try:
        return json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} holds no evaluation rows; move it away and evaluate again") from error


def write_evaluation(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows `{method, model, dataset, split, language, metric, value, count, seed}` into a folder.

    A row that measures what an earlier one did replaces it; all other earlier rows are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    merged = {_key(row): dict(row) for row in (*read_evaluation(folder), *rows)}
    write_json(folder / EVALUATION, {"rows": list(merged.values())})


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in KEY)

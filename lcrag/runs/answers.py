"""The answers of evaluations in an output folder: `answers/*.jsonl` and the rows of `evaluation.json`."""

import itertools
import json
import pathlib
from collections.abc import Sequence

from lcrag.errors import UserError
from lcrag.evaluation import Answered, Row, read_rows, write_rows
from lcrag.files import file_name

EVALUATION = "evaluation.json"
BEFORE, AFTER = "before", "after"  # labels of a training run's policy


def answers_path(folder: pathlib.Path, label: str, decoding: str, number: int = 1) -> pathlib.Path:
    """Returns the path of the answers with one decoding (such as "greedy") in inference run `number`."""
    run = f"_run_{number}" if number > 1 else ""
    return folder / "answers" / file_name(f"{label}_{decoding}{run}.jsonl")


def inference_runs(folder: pathlib.Path, label: str, decoding: str) -> list[pathlib.Path]:
    """Returns the existing files of answers with one decoding, one per inference run."""
    paths = (answers_path(folder, label, decoding, number) for number in itertools.count(1))
    return list(itertools.takewhile(pathlib.Path.is_file, paths))


def read_answers(path: pathlib.Path) -> list[Answered]:
    """Reads a file of answers; a UserError names a damaged line."""
    answers = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            answers.append(Answered(**row | {"golds": tuple(row["golds"]), "subsets": tuple(row["subsets"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}, line {number}, is not an answer ({error}): evaluate again") from error
    return answers


def add_rows(folder: pathlib.Path, rows: Sequence[Row]) -> None:
    """Adds rows to `evaluation.json`; they replace rows with the same method, split and seed."""
    path = folder / EVALUATION
    replaced = {(row.method, row.split, row.seed) for row in rows}
    kept = read_rows(path) if path.exists() else []
    write_rows(path, [*(row for row in kept if (row.method, row.split, row.seed) not in replaced), *rows])

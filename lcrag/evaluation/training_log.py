"""Reads `metrics.jsonl`, one object per training step, and tabulates rewards and the parts of a step's wall time."""

import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from lcrag.errors import UserError
from lcrag.evaluation.tables import Cell, Table

Curve = tuple[Int[np.ndarray, " _points"], Float[np.ndarray, " _points"]]
# Parts that add up to a step, their descriptions, and a metric of the share of computed positions that were filled.
PARTS = (
    ("append", "devices: appending prompts and observations", "append/filled"),
    ("decode", "devices: sampling", "slots/occupancy"),
    ("update", "devices: learning", "packing/filled"),
    ("retrieval_wait", "waiting for searches and other models", None),
    ("programs", "host: programs, tokenising, batches", None),
    ("rewards", "host: rewards", None),
    ("rest", "host: checkpoints, logs, new parameters for the sampler", None),
)
REWARD, TOTAL = "reward/", "reward/total"


def read_training_log(path: str | pathlib.Path) -> dict[str, Curve]:
    """Reads the curve of every logged number: name -> (steps, values), steps increasing.

    A resumed run logs the steps after its checkpoint again; the later line counts. Null, a number that was not finite,
    is left out.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no training log {path}: give the output folder of a training run")
    curves: dict[str, dict[int, float]] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            entry = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{where} is not JSON (a killed run can leave an incomplete line): delete it") from error
        if not isinstance(entry, dict) or type(entry.get("step")) is not int:
            raise UserError(f'{where} is not an object with an integer "step": correct or delete it')
        for name, value in entry.items():
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise UserError(f"{where}: {name!r} is {value!r}, not a number: correct or delete the line")
            curve = curves.setdefault(name, {})
            if value is not None:
                curve[entry["step"]] = float(value)
    curves.pop("step", None)
    points = {name: sorted(curves[name].items()) for name in sorted(curves)}
    return {
        name: (np.array([n for n, _ in curve], np.int64), np.array([v for _, v in curve]))
        for name, curve in points.items()
    }


def step_size(log: dict[str, Curve]) -> str:
    """Returns how many prompts and episodes a step of a run has, as a clause; empty if its log does not say."""
    if not {"step/prompts", "step/episodes"} <= log.keys():
        return ""
    prompts, episodes = (np.mean(log[name][1]) for name in ("step/prompts", "step/episodes"))
    return f"{episodes:g} episodes of {prompts:g} prompts a step"


def wall_time_table(log: Mapping[str, Curve], title: str = "Wall time of a training step") -> Table | None:
    """Tabulates the parts of a step, means over the steps after the first, which compiles; None without them."""
    names = [f"seconds/{part}" for part, _, _ in PARTS]
    if any(name not in log or not len(log[name][1]) for name in (*names, "seconds/step")):
        return None

    def mean(name: str) -> float:
        values = np.asarray(log[name][1], float)
        return float(values[1:].mean() if len(values) > 1 else values.mean())

    step = mean("seconds/step")
    rows = []
    for name, (_, what, filled) in zip(names, PARTS, strict=True):
        padding = f"{1 - mean(filled):.0%}" if filled and filled in log else ""
        seconds = mean(name)
        rows.append((Cell(what), Cell(f"{seconds:.3f}"), Cell(f"{seconds / step:.0%}"), Cell(padding)))
    total = (Cell("step"), Cell(f"{step:.3f}"), Cell("100%"), Cell(""))
    note = (
        "Wasted computation is padding of rows and idle slots. If sampling runs ahead of learning, their common time is"
        " subtracted from the last part."
    )
    header = ("", "seconds", "of the step", "computed in vain")
    return Table(title=title, header=header, sections=(tuple(rows), (total,)), note=note)


def rewards_table(logs: Mapping[str, Sequence[Mapping[str, Curve]]]) -> Table | None:
    """Tabulates every term of the reward at the beginning and the end of training; None without any.

    A line is the mean over the runs of a method.
    """
    found = {name for runs in logs.values() for log in runs for name in log if name.startswith(REWARD)}
    names = sorted(found, key=lambda name: (name != TOTAL, name))

    def quarters(runs: Sequence[Mapping[str, Curve]], name: str) -> str:
        values = [np.asarray(log[name][1], float) for log in runs if name in log and len(log[name][1])]
        if not values:
            return "–"
        counts = [-(-len(curve) // 4) for curve in values]
        first = np.mean([curve[:count].mean() for curve, count in zip(values, counts, strict=True)])
        last = np.mean([curve[-count:].mean() for curve, count in zip(values, counts, strict=True)])
        return f"{first:.3f} → {last:.3f}"

    lines = [
        (Cell(method), *(Cell(quarters(runs, name)) for name in names))
        for method, runs in logs.items()
        if any(found & log.keys() for log in runs)
    ]
    if not lines:
        return None
    header = ("", *(name.removeprefix(REWARD).replace("_", " ") for name in names))
    note = (
        "Means over the first → the last quarter of the steps, of what was sampled on training questions. The total is"
        " what each method was rewarded with; terms may be logged without being rewarded."
    )
    return Table(title="Rewards in training", header=header, sections=(tuple(lines),), note=note)

"""Where the wall time of a training step goes, from a run's `metrics.jsonl`."""

from collections.abc import Mapping

import numpy as np

from lcrag.evaluation.tables import Cell, Table
from lcrag.evaluation.training_log import Curve

# Parts that add up to a step, what they are, and a metric of the filled share of what was computed.
PARTS = (
    ("append", "devices: appending prompts and observations", "append/filled"),
    ("decode", "devices: sampling", "slots/occupancy"),
    ("update", "devices: learning", "packing/filled"),
    ("retrieval_wait", "waiting for searches and other models", None),
    ("programs", "host: programs, tokenising, batches", None),
    ("rewards", "host: rewards", None),
    ("rest", "host: checkpoints, logs, parameters handed over", None),
)


def wall_time_table(log: Mapping[str, Curve], title: str = "Wall time of a training step") -> Table | None:
    """Tabulates the parts of a step, means over the steps after the first, which compiles; None without them.

    Args:
      log: From `read_training_log`.
      title: Title of the table.
    """
    names = [f"seconds/{part}" for part, _, _ in PARTS]
    if any(name not in log or not len(log[name][1]) for name in (*names, "seconds/step")):
        return None
    step = _mean(log["seconds/step"])
    rows = []
    for name, (_, what, filled) in zip(names, PARTS, strict=True):
        padding = f"{1 - _mean(log[filled]):.0%}" if filled and filled in log else ""
        seconds = _mean(log[name])
        rows.append((Cell(what), Cell(f"{seconds:.3f}"), Cell(f"{seconds / step:.0%}"), Cell(padding)))
    total = (Cell("step"), Cell(f"{step:.3f}"), Cell("100%"), Cell(""))
    note = (
        "Computed in vain: padding of rows, idle slots. Where sampling runs ahead of learning, the last part is less by"
        " the time that they share."
    )
    header = ("", "seconds", "of the step", "computed in vain")
    return Table(title=title, header=header, sections=(tuple(rows), (total,)), note=note)


def _mean(curve: Curve) -> float:
    values = np.asarray(curve[1], float)
    return float(values[1:].mean() if len(values) > 1 else values.mean())

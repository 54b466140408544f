"""Writes `report.md`: what was run, what came out, and what it does and does not show."""

import dataclasses
import pathlib
from collections.abc import Mapping

from lcrag.evaluation.plots import draw_training_curves
from lcrag.evaluation.table import Table, to_markdown
from lcrag.evaluation.training_log import Curve

FIGURE = "training.png"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The content of a report.

    Attributes:
      title: Its title.
      summary: What was done, in a sentence or two.
      command: The command that reproduces it.
      commit: The commit it was run at.
      versions: Package versions, devices, seeds: whatever else a reader needs to repeat it.
      tables: The results.
      reading: What the numbers show and do not show, in plain words.
      curves: The training log to draw; empty: no figure.
    """

    title: str
    summary: str
    command: str
    commit: str
    versions: Mapping[str, str]
    tables: tuple[Table, ...]
    reading: str
    curves: Mapping[str, Curve] = dataclasses.field(default_factory=dict)


def write_report(folder: str | pathlib.Path, report: Report) -> pathlib.Path:
    """Writes `report.md`, and `training.png` if there are curves, into an existing folder; returns the report's path.

    Raises:
      UserError: the curves have no rewards.
    """
    folder = pathlib.Path(folder)
    if report.curves:
        draw_training_curves(report.curves, folder / FIGURE, report.title)
    path = folder / "report.md"
    path.write_text(_markdown(report), encoding="utf-8")
    return path


def _markdown(report: Report) -> str:
    results = [to_markdown(table) for table in report.tables]
    figure = [f"![Reward, penalty and searches per episode over the training steps]({FIGURE})", _FIGURE_NOTE]
    parts = [
        f"# {report.title}",
        report.summary,
        "## Result",
        *results,
        *(figure if report.curves else []),
        "## How to read this",
        report.reading,
        "## What was run",
        f"```\n{report.command}\n```",
        "\n".join(f"- {name}: {value}" for name, value in {"commit": report.commit, **report.versions}.items()),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


_FIGURE_NOTE = "Thin lines are single steps, thick ones a centred moving average over about a tenth of the run."

"""Writes `report.md` of one run, with its results, their interpretation, and the command that produced them."""

import pathlib
from collections.abc import Mapping, Sequence

from lcrag.evaluation.tables import Table, to_markdown
from lcrag.evaluation.training_log import Curve
from lcrag.files import write_text

FIGURE = "training.png"
FIGURE_NOTE = "Thin lines are single steps, thick ones a centred moving average over about a tenth of the run."


def write_report(
    folder: str | pathlib.Path,
    *,
    title: str,
    summary: str,
    command: str,
    versions: Mapping[str, str],
    tables: Sequence[Table],
    reading: str,
    curves: Mapping[str, Curve] | None = None,
) -> pathlib.Path:
    """Writes `report.md`, and `training.png` if there are curves, into an existing folder; returns the report's path.

    Args:
      folder: The folder.
      title: Title of the report.
      summary: Summary of the run in one or two sentences.
      command: The command that reproduces the run.
      versions: Commit, package versions and devices.
      tables: Tables of results.
      reading: Interpretation of the numbers and its limits.
      curves: The training log to draw; None or empty: no figure.

    Raises:
      UserError: the curves have no rewards.
    """
    folder = pathlib.Path(folder)
    figure = []
    if curves:
        from lcrag.evaluation.plots import draw_training_curves  # here, since Matplotlib takes a second

        draw_training_curves(curves, folder / FIGURE, title)
        figure = [f"![Reward, penalty and searches per episode over the training steps]({FIGURE})", FIGURE_NOTE]
    parts = [
        f"# {title}",
        summary,
        "## Result",
        *map(to_markdown, tables),
        *figure,
        "## How to read this",
        reading,
        "## What was run",
        f"```\n{command}\n```",
        "\n".join(f"- {name}: {value}" for name, value in versions.items()),
    ]
    path = folder / "report.md"
    write_text(path, "\n\n".join(part.strip("\n") for part in parts) + "\n")
    return path

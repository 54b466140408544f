"""Draws the picture of README.md from a finished run of `bash launch/quickstart.sh`.

    python benchmarks/front_page.py runs/quickstart docs/learning.png

Left: searches of an episode whose question the native collection can answer, and of one for which it lacks the fact.
Right: the reward, which is the c3 recall of the answers. Thin lines are steps, thick ones moving averages.
"""

import sys
from pathlib import Path

from lcrag.evaluation import read_training_log
from lcrag.evaluation.plots import COLOURS, SEARCHES_BY_HOLDING, drawing, finish, smoothed
from lcrag.evaluation.tables import TOTAL

# Label of a curve and its height in the panel.
LABELS = ("the native collection holds the fact", 0.07), ("the native collection lacks the fact", 0.94)


def draw(run: Path, picture: Path) -> None:
    """Draws searches and reward of a training run into a PNG."""
    curves = read_training_log(run / "metrics.jsonl")
    searches = list(zip(SEARCHES_BY_HOLDING, COLOURS, LABELS, strict=False))
    panels = {"Searches per question": searches, "Recall of the answers": [(TOTAL, COLOURS[2], ("", 0))]}
    style = {"font.size": 12, "axes.titlesize": 14}
    with drawing(picture, 2, width=5.2, height=3.7, legend=False, style=style) as row:
        for (title, lines), axes in zip(panels.items(), row, strict=True):
            for name, colour, (label, height) in lines:
                steps, values = curves[name]
                axes.plot(steps + 1, values, color=colour, linewidth=1, alpha=0.25)
                axes.plot(steps + 1, smoothed(values), color=colour, linewidth=3)
                place = {"transform": axes.transAxes, "va": "center"}
                axes.text(0.03, height, label, color=colour, fontweight="bold", **place)
            finish(axes, title, "training step", margin=0.02)
            axes.margins(y=0.14)


if __name__ == "__main__":
    draw(*map(Path, sys.argv[1:]))

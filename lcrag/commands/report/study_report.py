"""The report of several runs: its tables, its figures, `report.md`, and every table as LaTeX."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lcrag.evaluation.metrics import METRIC_NAMES
from lcrag.evaluation.paper_tables import (
    Marking,
    difference_table,
    language_table,
    overall_table,
    part_differences,
    part_table,
    runs_table,
    study_table,
)
from lcrag.evaluation.plots import STUDIED_GROUPS, TRAINING_PANELS, draw_differences, draw_method_curves, draw_study
from lcrag.evaluation.scoreboard import Scoreboard, Trial
from lcrag.evaluation.tables import Table, to_latex, to_markdown
from lcrag.evaluation.training_log import Curve, rewards_table
from lcrag.files import file_name, write_text
from lcrag.methods.globalrag.analysis import PlanDiversity, diversity_table, phase_table, plan_diversity
from lcrag.methods.globalrag.figures import draw_costs, draw_searches, has_costs, has_searches
from lcrag.methods.translate_r1.tool_report import (
    asked_repeatedly,
    draw_pareto,
    draw_selectivity,
    draw_tool_rates,
    has_tool_use,
    tiers_in,
    tool_tables,
)

REPORT, LATEX, CURVES = "report.md", "tables.tex", "curves.png"


def write_study_report(
    folder: pathlib.Path,
    *,
    title: str,
    boards: Mapping[tuple[str, str, str], Scoreboard],
    logs: Mapping[str, Sequence[Mapping[str, Curve]]],
    metrics: Sequence[str],
    marking: Marking,
    axis: str,
    runs: Sequence[str],
) -> tuple[pathlib.Path, list[Table]]:
    """Writes `report.md`, `tables.tex` and the figures into a folder; returns the report's path and the tables.

    Every table and figure for which there are results is made.

    Args:
      folder, title: The folder, created if missing, and the title of the report.
      boards: (data set, split, decoding) -> its scoreboard.
      logs: Method -> the training log of each of its runs.
      metrics, marking: Metrics of the tables, the first two also by language; significant differences to mark.
      axis: The name of what a study varies; empty: no study.
      runs: A line about each run: its folder and provenance.
    """
    folder.mkdir(parents=True, exist_ok=True)
    first, first_name = metrics[0], METRIC_NAMES[metrics[0]]
    by_decoding: dict[str, list[Scoreboard]] = {}
    for (_, _, decoding), board in boards.items():
        by_decoding.setdefault(decoding, []).append(board)

    tables: list[Table | None] = []
    for decoding, same in by_decoding.items():
        if axis:
            tables += [
                study_table(board, f"{first_name} of {board.dataset}, {decoding}: {name}", first, axis, group)
                for board in same
                for group, name in {"all": "all languages", **STUDIED_GROUPS}.items()
            ]
        tables.append(overall_table(same, f"Overall, {decoding}", metrics, marking))
        for board in same:
            where = f"{board.dataset}, {decoding}"
            tables += [
                language_table(board, f"{METRIC_NAMES[metric]} by language, {where}", metric, marking)
                for metric in metrics[:2]
            ]
            compared = f"{first_name}: difference from {marking.against}, {where}"
            tables += [
                part_table(board, f"{first_name} by part, {where}", first, marking),
                difference_table(board, compared, first, marking),
                runs_table(board, f"Runs, {where}", metrics),
                diversity_table(_plans(board), f"Plans of right answers, {where}"),
                *tool_tables(board, where),
            ]
    tables += [rewards_table(logs), phase_table(logs)]
    made = [table for table in tables if table is not None]

    figures: dict[str, str] = {}  # file name -> caption

    def draw(name: str, caption: str, function: Callable[..., None], *data: Any) -> None:
        name = file_name(name)
        function(*data, folder / name)
        figures[name] = caption

    if any(name in log for own in logs.values() for log in own for name in TRAINING_PANELS):
        caption = "Training reward, response length and searches per episode over the training steps"
        draw(CURVES, caption, draw_method_curves, logs)
    for (dataset, _, decoding), board in boards.items() if axis else ():
        caption = f"{first_name} of {dataset}, {decoding}, by {axis}"
        draw(f"study_{dataset}_{decoding}.png", caption, draw_study, board, first, axis)
    for (dataset, _, decoding), board in boards.items():
        if part_differences(board, first, marking):
            caption = f"{first_name} of {dataset}, {decoding}: difference from {marking.against}"
            draw(f"differences_{dataset}_{decoding}.png", caption, draw_differences, board, first, marking)
    for decoding, same in by_decoding.items():
        if has_searches(same):
            draw(f"searches_{decoding}.png", f"Searches per question by data set, {decoding}", draw_searches, same)
        if has_costs(same):
            caption = f"Performance against sampled tokens, {decoding}; a bubble's area is the score per log token"
            draw(f"costs_{decoding}.png", caption, draw_costs, same)
    for (dataset, _, decoding), board in boards.items():
        if has_tool_use(board):
            caption = f"Reward against tool rate on {dataset}, {decoding}, by tier; in percent the Pareto share"
            draw(f"pareto_{dataset}_{decoding}.png", caption, draw_pareto, board)
            if asked_repeatedly(board):
                caption = f"Questions of {dataset}, {decoding}, by the share of their samples with a tool call"
                draw(f"selectivity_{dataset}_{decoding}.png", caption, draw_selectivity, board)
    if tiers_in(logs):
        draw("tool_rates.png", "Tool rate over the training steps, by tier", draw_tool_rates, logs)

    write_text(folder / LATEX, "\n".join(map(to_latex, made)))
    parts = [
        f"# {title}",
        *map(to_markdown, made),
        *(f"![{caption}]({name})" for name, caption in figures.items()),
        "## How to read this",
        READING,
        TEST_READING.format(marking) if marking.against else "",
        CURVES_READING if CURVES in figures else "",
        "## Runs",
        "\n".join(f"- {run}" for run in runs),
        f"The tables are in [{LATEX}]({LATEX}) for LaTeX with the package booktabs.",
    ]
    path = folder / REPORT
    write_text(path, "\n\n".join(part.strip("\n") for part in parts if part) + "\n")
    return path, made


def _plans(board: Scoreboard) -> dict[str, list[PlanDiversity]]:
    """Returns, for each system, the plans of each run with several inference runs, which are pooled."""
    trials: dict[str, dict[str, list[Trial]]] = {}
    several_models = len({trial.model for trial in board.trials}) > 1
    for trial in board.trials:
        name = f"{trial.system[1]}, {trial.model}" if several_models else trial.system[1]
        trials.setdefault(name, {}).setdefault(trial.run, []).append(trial)
    return {
        name: [plan_diversity([each for trial in own for each in trial.answered]) for own in runs.values() if own[1:]]
        for name, runs in trials.items()
    }


READING = (
    "A number is the mean over a method's runs (training seeds), each the mean over its inference runs. A mean over"
    " languages is the mean of the languages' means; that of a part of the data is over its questions. Trained on and"
    " zero-shot are the languages that each method was, and was not, trained on. Intervals of 95 % generalise over"
    " questions, of which the language versions are one observation, and over training runs: crossed random effects,"
    " Student's t with Satterthwaite's degrees of freedom. Of a single run they say nothing of other training seeds. Of"
    " two or three they are wide, and still somewhat too narrow where seeds differ much. The correct-language rate is"
    " of the answers that its rule scores."
)
TEST_READING = (
    "A star marks a difference from {0.against} with p < {0.threshold:g} in a two-sided test paired by question (and by"
    " seed, with compare_runs.paired_seeds), which generalises over questions and training runs as the intervals do."
    " Stars are not corrected for the number of tests; the p-values in the tables of differences are. Their figures"
    " show the same: an interval that excludes 0 is coloured, and its point filled if the difference stays significant"
    " once corrected."
)
CURVES_READING = (
    "A curve is the mean over a method's runs, thin ones are the runs, all smoothed over about a tenth of the steps."
    " Rewards are each method's own: one by exact match and one by c3 recall are no comparison."
)

"""Writes the report of several runs: `report.md` with its figures, and every table as LaTeX."""

import dataclasses
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
from lcrag.evaluation.scoreboard import Scoreboard
from lcrag.evaluation.tables import Table, to_latex, to_markdown
from lcrag.evaluation.training_log import Curve, rewards_table
from lcrag.evaluation.trials import Trial
from lcrag.files import file_name, write_text
from lcrag.methods.globalrag.analysis import PlanDiversity, diversity_table, phase_table, plan_diversity
from lcrag.methods.globalrag.cost_plots import draw_costs, draw_searches, has_costs, has_searches
from lcrag.methods.translate_r1.tool_plots import draw_pareto, draw_selectivity, draw_tool_rates, tiers_in
from lcrag.methods.translate_r1.tool_tables import tool_tables
from lcrag.methods.translate_r1.tool_use import asked_repeatedly, has_tool_use

REPORT, LATEX, CURVES = "report.md", "tables.tex", "curves.png"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyReport:
    """The content of a report of several runs."""

    title: str
    boards: Mapping[tuple[str, str, str], Scoreboard]  # (data set, split, decoding) -> its scoreboard
    logs: Mapping[str, Sequence[Mapping[str, Curve]]]  # method -> the log of each of its runs
    metrics: Sequence[str]  # metrics of the tables; the first two also by language
    marking: Marking  # significant differences to mark
    axis: str  # the name of what a study varies; empty: no study
    runs: Sequence[str]  # a line about each run: its folder and provenance

    def by_decoding(self) -> dict[str, list[Scoreboard]]:
        """The scoreboards of each decoding."""
        found: dict[str, list[Scoreboard]] = {}
        for (_, _, decoding), board in self.boards.items():
            found.setdefault(decoding, []).append(board)
        return found


def study_tables(report: StudyReport) -> list[Table]:
    """Returns every table of the report, in reading order."""
    found: list[Table | None] = []
    first = report.metrics[0]
    for decoding, boards in report.by_decoding().items():
        if report.axis:
            found += [
                study_table(board, f"{_name(first)} of {board.dataset}, {decoding}: {name}", first, report.axis, group)
                for board in boards
                for group, name in {"all": "all languages", **STUDIED_GROUPS}.items()
            ]
        found.append(overall_table(boards, f"Overall, {decoding}", report.metrics, report.marking))
        for board in boards:
            found += _board_tables(report, board, f"{board.dataset}, {decoding}")
    found += [rewards_table(report.logs), phase_table(report.logs)]
    return [table for table in found if table is not None]


def _board_tables(report: StudyReport, board: Scoreboard, where: str) -> list[Table | None]:
    """Returns a scoreboard's tables: by language, by part, differences, numbers of runs, and any plans and tool use."""
    first, marking = report.metrics[0], report.marking
    return [
        *(language_table(board, f"{_name(m)} by language, {where}", m, marking) for m in report.metrics[:2]),
        part_table(board, f"{_name(first)} by part, {where}", first, marking),
        difference_table(board, f"{_name(first)}: difference from {marking.against}, {where}", first, marking),
        runs_table(board, f"Runs, {where}", report.metrics),
        diversity_table(_plans(board), f"Plans of right answers, {where}"),
        *tool_tables(board, where),
    ]


def _plans(board: Scoreboard) -> dict[str, list[PlanDiversity]]:
    """Returns, for each system, the plans of each run with several inference runs, which are pooled."""
    found: dict[str, dict[str, list[Trial]]] = {}
    several_models = len({trial.model for trial in board.trials}) > 1
    for trial in board.trials:
        name = f"{trial.system[1]}, {trial.model}" if several_models else trial.system[1]
        found.setdefault(name, {}).setdefault(trial.run, []).append(trial)
    return {
        name: [plan_diversity([each for trial in own for each in trial.answered]) for own in runs.values() if own[1:]]
        for name, runs in found.items()
    }


def _name(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def write_study_report(folder: pathlib.Path, report: StudyReport, tables: Sequence[Table]) -> pathlib.Path:
    """Writes `report.md`, `tables.tex` and the figures into a folder; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = _draw(folder, report)
    write_text(folder / LATEX, "\n".join(map(to_latex, tables)))
    parts = [
        f"# {report.title}",
        *map(to_markdown, tables),
        *(f"![{caption}]({name})" for name, caption in figures.items()),
        "## How to read this",
        _READING,
        _TEST_READING.format(report.marking) if report.marking.against else "",
        _CURVES_READING if CURVES in figures else "",
        "## Runs",
        "\n".join(f"- {run}" for run in report.runs),
        f"The tables are in [{LATEX}]({LATEX}) for LaTeX with the package booktabs.",
    ]
    path = folder / REPORT
    write_text(path, "\n\n".join(part.strip("\n") for part in parts if part) + "\n")
    return path


def _draw(folder: pathlib.Path, report: StudyReport) -> dict[str, str]:
    """Draws every figure that has data; returns file name -> caption."""
    figures: dict[str, str] = {}

    def draw(name: str, caption: str, function: Callable[..., None], *data: Any) -> None:
        name = file_name(name)
        function(*data, folder / name)
        figures[name] = caption

    if any(name in log for own in report.logs.values() for log in own for name in TRAINING_PANELS):
        caption = "Training reward, response length and searches per episode over the training steps"
        draw(CURVES, caption, draw_method_curves, report.logs)
    if report.axis:
        metric = report.metrics[0]
        for (dataset, _, decoding), board in report.boards.items():
            caption = f"{_name(metric)} of {dataset}, {decoding}, by {report.axis}"
            draw(f"study_{dataset}_{decoding}.png", caption, draw_study, board, metric, report.axis)
    for (dataset, _, decoding), board in report.boards.items():
        metric, marking = report.metrics[0], report.marking
        if part_differences(board, metric, marking):
            caption = f"{_name(metric)} of {dataset}, {decoding}: difference from {marking.against}"
            draw(f"differences_{dataset}_{decoding}.png", caption, draw_differences, board, metric, marking)
    for decoding, boards in report.by_decoding().items():
        if has_searches(boards):
            caption = f"Searches per question by data set, {decoding}"
            draw(f"searches_{decoding}.png", caption, draw_searches, boards)
        if has_costs(boards):
            caption = f"Performance against sampled tokens, {decoding}; a bubble's area is the score per log token"
            draw(f"costs_{decoding}.png", caption, draw_costs, boards)
    for (dataset, _, decoding), board in report.boards.items():
        place = f"{dataset}_{decoding}.png"
        if has_tool_use(board):
            caption = f"Reward against tool rate on {dataset}, {decoding}, by tier; in percent the Pareto share"
            draw(f"pareto_{place}", caption, draw_pareto, board)
        if has_tool_use(board) and asked_repeatedly(board):
            caption = f"Questions of {dataset}, {decoding}, by the share of their samples with a tool call"
            draw(f"selectivity_{place}", caption, draw_selectivity, board)
    if tiers_in(report.logs):
        draw("tool_rates.png", "Tool rate over the training steps, by tier", draw_tool_rates, report.logs)
    return figures


_READING = (
    "A number is the mean over a method's runs (training seeds), each the mean over its inference runs. A mean over"
    " languages is the mean of the languages' means; that of a part of the data is over its questions. Trained on and"
    " zero-shot are the languages that each method was, and was not, trained on. Intervals of 95 % generalise over"
    " questions, of which the language versions are one observation, and over training runs: crossed random effects,"
    " Student's t with Satterthwaite's degrees of freedom. Of a single run they say nothing of other training seeds. Of"
    " two or three they are wide, and still somewhat too narrow where seeds differ much. The correct-language rate is"
    " of the answers that its rule scores."
)
_TEST_READING = (
    "A star marks a difference from {0.against} with p < {0.threshold:g} in a two-sided test paired by question (and by"
    " seed, with compare_runs.paired_seeds), which generalises over questions and training runs as the intervals do."
    " Stars are not corrected for the number of tests; the p-values in the tables of differences are. Their figures"
    " show the same: an interval that excludes 0 is coloured, and its point filled if the difference stays significant"
    " once corrected."
)
_CURVES_READING = (
    "A curve is the mean over a method's runs, thin ones are the runs, all smoothed over about a tenth of the steps."
    " Rewards are each method's own: one by exact match and one by c3 recall are no comparison."
)

"""Writes the report of several runs: `report.md` with its figures, and every table as LaTeX."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from lcrag.evaluation.paper_tables import Marking, language_table, overall_table, part_table, spread_table, study_table
from lcrag.evaluation.plots import STUDIED_GROUPS, TRAINING_PANELS, draw_method_curves, draw_study
from lcrag.evaluation.scoreboard import Scoreboard, Trial
from lcrag.evaluation.tables import Table, to_latex, to_markdown
from lcrag.evaluation.training_log import Curve
from lcrag.methods.globalrag.analysis import PlanDiversity, diversity_table, phase_table, plan_diversity
from lcrag.methods.globalrag.cost_plots import draw_costs, draw_searches, has_costs, has_searches
from lcrag.methods.translate_r1.tool_plots import draw_pareto, draw_selectivity, draw_tool_rates, tiers_in
from lcrag.methods.translate_r1.tool_tables import tool_tables
from lcrag.methods.translate_r1.tool_use import asked_repeatedly, has_tool_use

REPORT, LATEX, CURVES, STUDY = "report.md", "tables.tex", "curves.png", "study_{}_{}.png"
SEARCHES, COSTS = "searches_{}.png", "costs_{}.png"
PARETO, SELECTIVITY, TOOL_RATES = "pareto_{}_{}.png", "selectivity_{}_{}.png", "tool_rates.png"
Boards = Mapping[tuple[str, str, str], Scoreboard]
"""(data set, split, decoding) -> its scoreboard."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyReport:
    """The content of a report of several runs.

    Attributes:
      title: Its title.
      boards: The results.
      logs: Method -> the training log of each of its runs.
      metrics: Metrics of the tables; the first two also by language.
      marking: Which differences are marked.
      axis: What the points of the trials are points of; empty: there is no study.
      runs: A line about each run: its folder, what it is, and where it comes from.
    """

    title: str
    boards: Boards
    logs: Mapping[str, Sequence[Mapping[str, Curve]]]
    metrics: Sequence[str]
    marking: Marking
    axis: str
    runs: Sequence[str]


def study_tables(report: StudyReport) -> list[Table]:
    """Every table of the report, in reading order."""
    tables: list[Table | None] = []
    for decoding in dict.fromkeys(decoding for _, _, decoding in report.boards):
        boards = [board for (_, _, own), board in report.boards.items() if own == decoding]
        if report.axis:
            tables += [table for board in boards for table in _points_tables(report, board, decoding)]
        tables.append(overall_table(boards, f"Overall, {decoding}", report.metrics, report.marking))
        for board in boards:
            tables += _tables_of(report, board, f"{board.dataset}, {decoding}")
    tables.append(phase_table(report.logs))
    return [table for table in tables if table is not None]


def _points_tables(report: StudyReport, board: Scoreboard, decoding: str) -> list[Table]:
    metric, where = report.metrics[0], f"{board.dataset}, {decoding}"
    return [
        study_table(board, f"{_name(metric)} of {where}: {name}", metric, report.axis, group)
        for group, name in {"all": "all languages", **STUDIED_GROUPS}.items()
    ]


def _tables_of(report: StudyReport, board: Scoreboard, where: str) -> list[Table | None]:
    """By language, by part, the spread between runs, and where there are plans, how many, and the use of a tool."""
    tables: list[Table | None] = [
        language_table(board, f"{_name(metric)} by language, {where}", metric, report.marking)
        for metric in report.metrics[:2]
    ]
    tables.append(part_table(board, f"{_name(report.metrics[0])} by part, {where}", report.metrics[0], report.marking))
    tables.append(spread_table(board, f"Spread between runs, {where}", report.metrics))
    tables.append(diversity_table(_plans(board), f"Plans of right answers, {where}"))
    return [*tables, *tool_tables(board, where)]


def _plans(board: Scoreboard) -> dict[str, list[PlanDiversity]]:
    """System -> the plans of each of its runs that asked more than once, all inference runs of one together."""
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
    return metric.replace("_", " ")


def write_study_report(folder: pathlib.Path, report: StudyReport, tables: Sequence[Table]) -> pathlib.Path:
    """Writes `report.md`, `tables.tex` and the figures into a folder; returns the report's path."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = _draw(folder, report)
    (folder / LATEX).write_text("\n".join(map(to_latex, tables)), encoding="utf-8")
    parts = [
        f"# {report.title}",
        *map(to_markdown, tables),
        *(f"![{what}]({name})" for name, what in figures.items()),
        "## How to read this",
        _READING,
        _TEST_READING.format(report.marking) if report.marking.against else "",
        _CURVES_READING if CURVES in figures else "",
        "## Runs",
        "\n".join(f"- {run}" for run in report.runs),
        f"The tables are in [{LATEX}]({LATEX}) for LaTeX with the package booktabs.",
    ]
    path = folder / REPORT
    path.write_text("\n\n".join(part.strip("\n") for part in parts if part) + "\n", encoding="utf-8")
    return path


def _draw(folder: pathlib.Path, report: StudyReport) -> dict[str, str]:
    """Draws what there is to draw: name of the file -> what it shows."""
    figures = {}
    if any(name in log for own in report.logs.values() for log in own for name in TRAINING_PANELS):
        draw_method_curves(report.logs, folder / CURVES)
        figures[CURVES] = "Training reward, response length and searches per episode over the training steps"
    for (dataset, _, decoding), board in report.boards.items() if report.axis else ():
        name = STUDY.format(dataset, decoding)
        draw_study(board, report.metrics[0], report.axis, folder / name)
        figures[name] = f"{_name(report.metrics[0])} of {dataset}, {decoding}, by {report.axis}"
    return figures | _draw_costs(folder, report) | _draw_tool_use(folder, report)


def _draw_costs(folder: pathlib.Path, report: StudyReport) -> dict[str, str]:
    """Draws searches, and performance against tokens, for each way of decoding in which they are known."""
    figures = {}
    for decoding in dict.fromkeys(decoding for _, _, decoding in report.boards):
        boards = [board for (_, _, own), board in report.boards.items() if own == decoding]
        if has_searches(boards):
            draw_searches(boards, folder / (name := SEARCHES.format(decoding)))
            figures[name] = f"Searches per question by data set, {decoding}"
        if has_costs(boards):
            draw_costs(boards, folder / (name := COSTS.format(decoding)))
            figures[name] = (
                f"Performance against sampled tokens, {decoding}; a bubble's area is the score per log token"
            )
    return figures


def _draw_tool_use(folder: pathlib.Path, report: StudyReport) -> dict[str, str]:
    """Draws reward against tool rate, the rates of single questions and rates over training, where they are known."""
    figures = {}
    for (dataset, _, decoding), board in report.boards.items():
        if has_tool_use(board):
            draw_pareto(board, folder / (name := PARETO.format(dataset, decoding)))
            figures[name] = f"Reward against tool rate on {dataset}, {decoding}, by tier; in percent the Pareto share"
            if asked_repeatedly(board):
                draw_selectivity(board, folder / (name := SELECTIVITY.format(dataset, decoding)))
                figures[name] = f"Questions of {dataset}, {decoding}, by the share of their samples with a tool call"
    if tiers_in(report.logs):
        draw_tool_rates(report.logs, folder / TOOL_RATES)
        figures[TOOL_RATES] = "Tool rate over the training steps, by tier"
    return figures


_READING = (
    "A number is the mean over a method's runs (training seeds), each the mean over its inference runs. A mean over"
    " languages is the mean of the languages' means; that of a part of the data is over its questions. Trained on and"
    " zero-shot are the languages that each method was, and was not, trained on. Standard errors are between runs and"
    " say nothing of how many questions were asked. The correct-language rate is of the answers that its rule scores."
)
_TEST_READING = (
    "A star marks a difference from {0.against} with p < {0.threshold:g} in a two-sided paired t-test over questions:"
    " all language versions of a question are one observation, and its score is the mean over all runs. Another seed"
    " may still change the ranks: the test generalises over questions, not over training runs. It is not corrected for"
    " the number of tests."
)
_CURVES_READING = (
    "A curve is the mean over a method's runs, smoothed over about a tenth of the steps; its band is from the least to"
    " the largest of them. Rewards are each method's own: one by exact match and one by c3 recall are no comparison."
)

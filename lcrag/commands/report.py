"""`lcrag report`: `report.md` of one run again, or the tables and figures of a paper from runs or their records."""

import dataclasses
import functools
import pathlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
from rich.console import Console

from lcrag.commands.records import Source, read_sources, write_records
from lcrag.config import as_sentence
from lcrag.errors import UserError, typed
from lcrag.evaluation.metrics import EFFICIENCY, EFFICIENCY_INPUTS, METRIC_NAMES
from lcrag.evaluation.scoreboard import (
    Marking,
    Scoreboard,
    Trial,
    difference_table,
    language_table,
    overall_table,
    part_differences,
    part_table,
    runs_table,
    scoreboards,
    study_table,
)
from lcrag.evaluation.tables import Curve, Table, phase_table, rewards_table, to_latex, to_markdown, to_rich
from lcrag.files import expanded, file_name, write_text
from lcrag.methods.globalrag.analysis import PlanDiversity, diversity_table, plan_diversity
from lcrag.runs import check_used, differences
from lcrag.runs.display import make_console
from lcrag.runs.folder import CONFIG, RUN, parse_statements, read_config, statements_for
from lcrag.train.evaluation import AFTER, Evaluation, is_evaluated, report_run

# Bindings in which runs of one system may differ: seeds, the folders of the resulting weights, and settings without
# effect on results.
INCIDENTAL = (
    *("train.seed", "evaluate.seed", "sft.seed", "train/golden_answers.seed", "validation/golden_answers.seed"),
    *("policy.folder", "policy.adapter_seed", "evaluate.label"),
    *("train.checkpoint_every", "train.episodes_every", "train.extreme_groups"),
    *("train.max_consecutive_skips", "sft.max_consecutive_skips"),
    *("Evaluation.before", "Evaluation.runs", "Evaluation.references", "Evaluation.reading", "Evaluation.temperatures"),
    *("remote_collections.url", "atlas_collections.folder", "load_collections.folder"),
    *("EndpointCompleter.url", "EndpointTranslator.url", "RemoteTranslator.url"),
    *("Trackers.names", "Trackers.project", "Trackers.offline", "train.evaluate_every", "evaluate.metrics"),
)
REPORT, LATEX, CURVES = "report.md", "tables.tex", "curves.png"
READING = (
    "A number is the mean over a method's runs (training seeds), each the mean over its inference runs. A mean over"
    " languages is the mean of the languages' means; that of a part of the data is over its questions. Training and"
    " zero-shot languages are those that each method was, and was not, trained on. Intervals of 95 % generalise over"
    " questions, of which the language versions are one observation, and over training runs; of a single run they say"
    " nothing of other training seeds, and of two or three they are somewhat too narrow where seeds differ much."
)
TEST_READING = (
    "A star marks a difference from {0.named} with p < {0.threshold:g} in a two-sided test paired by question (and by"
    " seed, with compare_runs.paired_seeds). Stars are not corrected for the number of tests; the p-values in the"
    " tables of differences are. In their figures an interval that excludes 0 is coloured, and its point is filled if"
    " the corrected difference is significant."
)
CURVES_READING = (
    "A curve is the mean over a method's runs, thin ones are the runs, all smoothed over about a tenth of the steps."
    " Rewards are each method's own: one by exact match and one by c3 recall are no comparison."
)


@gin.configurable
@typed
def report(output_dir: pathlib.Path | None, words: Sequence[str] = ()) -> None:
    """Writes the report of several runs, or rewrites `report.md` of one run with the settings in its config.gin.

    Args:
      output_dir: Folder for the report of several runs; without `words`, the folder of the one run.
      words: Folders of runs, or folders that contain such folders; see `compare_runs`. A single run without
        `output_dir` is the one run.
    """
    console = make_console()
    bound = parse_statements(gin.config_str())
    alone = len(words) == 1 and output_dir is None and bound.get("compare_runs.records") is None
    if alone and (pathlib.Path(words[0]) / RUN).is_file():
        output_dir, words = pathlib.Path(words[0]), ()
    if words:
        compare_runs(output_dir, words, console)
        return
    if output_dir is None or not (output_dir / RUN).is_file():
        where = "no folder is given" if output_dir is None else f"{output_dir} is not the folder of a run"
        raise UserError(f"{where}: lcrag report RUN, or several folders of runs and --output_dir=FOLDER")
    goes_on = any(output_dir.glob("report_after_step_*.md"))
    if not (output_dir / REPORT).exists() and (goes_on or not (output_dir / "policy").exists()):
        raise UserError(f"{output_dir} has not finished, and a report would say that it has: run its command again")
    # All that the run's evaluation was made of, and the modules of its user; bindings given here prevail.
    config, evaluation = read_config(output_dir / CONFIG), None
    written = statements_for(config, "Evaluation")
    recorded = [statement for statement in written if statement.partition(" = ")[0] not in bound]
    if any(statement.startswith("Evaluation.questions ") for statement in recorded) or "Evaluation.questions" in bound:
        with as_sentence(str(output_dir / CONFIG)), gin.unlock_config():
            gin.parse_config("\n".join([*re.findall("^(?:import|from) .*", config, re.MULTILINE), *recorded]))
        evaluation = gin.get_configurable(Evaluation)()
    check_used()
    report_run(output_dir, evaluation if evaluation and is_evaluated(output_dir, evaluation) else None, console)


@gin.configurable
@typed
def compare_runs(
    output_dir: pathlib.Path | None,
    folders: Sequence[str],
    console: Console,
    *,
    records: str | None = None,
    metrics: Sequence[str] = ("c3_recall_bergen", "c3_recall", "flexible_exact_match", "correct_language", "searches"),
    against: str | None = None,
    references: Mapping[str, str] | None = None,
    threshold: float = 0.01,
    paired_seeds: bool = False,
    axis: str | None = None,
    axis_name: str | None = None,
    also: Sequence[str] = (),
    only: Sequence[str] = (),
    order: Sequence[str] = (),
    title: str = "Comparison of runs",
) -> None:
    """Writes the report of several runs and prints its tables, except those by language; or writes their records.

    Runs of one method, which may differ only in their seed, are averaged. All runs must be evaluated on the same
    questions.

    Args:
      output_dir: Folder for `report.md`, `tables.tex` and the figures, which must not be the folder of a run. It may be
        None if `records` is set; no report is written then.
      folders: Folders of runs or of records, or folders that contain such folders.
      console: Console on which tables are printed.
      records: Folder for a record of each run, see `write_records`; None: no records are written.
      metrics: Metrics of the tables and records; the first two also by language, the first along the axis.
      against: The method that all others are tested against, question by question.
      references: Method -> the method that it is tested against instead, because it shares more with that one.
      threshold: Largest marked p-value, exclusive.
      paired_seeds: Whether runs with the same seed are paired in differences, for methods that share what is made for a
        seed.
      axis: The binding, `Name.parameter`, that a study varies: runs that differ in it are points of a curve. Of
        several, with commas between them, a run's point is by the first that it sets.
      axis_name: What tables and figures call the axis; None: as the binding.
      also: Other labels of training runs to show in addition to the methods, such as "before" and "long SFT".
      only: Names of the methods in the report; empty: all.
      order: Names of methods in the desired order; all others follow as they are found.
      title: Title of the report.
    """
    check_used()
    if output_dir is None and records is None:
        raise UserError("lcrag report needs a folder for the tables of several runs: --output_dir=FOLDER")
    if output_dir is not None and (output_dir / RUN).is_file():
        raise UserError(f"{output_dir} is a run itself: give --output_dir another folder for the report of several")
    if unknown := [metric for metric in metrics if metric not in METRIC_NAMES]:
        raise UserError(f"there is no metric {unknown[0]!r} for compare_runs.metrics: use {', '.join(METRIC_NAMES)}")
    sources = read_sources(folders, also)
    if records is not None:
        written = write_records(sources, expanded(records), metrics)
        console.print(f"{len(written)} record{'s' if len(written) > 1 else ''} written into {records}")
    if output_dir is None:
        return
    names = dict.fromkeys(source.name for source in sources)
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"compare_runs.only names {unknown[0]!r}, which was not run: choose among {', '.join(names)}")
    place = {name: number for number, name in enumerate(order)}
    chosen = [source for source in sources if not only or source.name in only]
    pairs: list[tuple[Trial, Source]] = []
    counted: dict[tuple, Source] = {}
    for source in sorted(chosen, key=lambda source: place.get(source.name, len(place))):
        # Runs of one seed share labels such as the policy before training, whose answers count once.
        shared = source.trained and source.label != AFTER
        point: float | str | None = None
        if axis is not None and not shared:  # a number, the length of a list, or a name
            values = source.values
            named = next((name for name in axis.split(",") if name in values), None)
            if named is None:
                raise UserError(f"{source.place} sets no {axis}: choose another --axis, or leave that run out")
            value = len(values[named]) if isinstance(values[named], tuple) else values[named]
            point = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        for trial in source.trials:
            run = source.about["seed"] if shared else source.folder
            if counted.setdefault((source.name, trial.decoding, trial.split, run), source) is source:
                pairs.append((dataclasses.replace(trial, point=point), source))
    check_one_configuration(pairs)
    scored = {name for trial, _ in pairs for name, scores in trial.scores.items() if not np.isnan(scores).all()}
    known = scored & METRIC_NAMES.keys()
    known |= {EFFICIENCY} if known.issuperset(EFFICIENCY_INPUTS) else set()
    lost = [name for name in metrics if name not in known]
    if len(lost) == len(metrics):
        raise UserError(
            f"the records hold no {lost[0]}, only {', '.join(sorted(known))}: choose among these with"
            " compare_runs.metrics, or give the folders of the runs"
        )
    if lost:
        others = ", ".join(sorted(known.difference(metrics)))
        also = f"; compare_runs.metrics can name {others}" if others else ""
        console.print(f"The records hold no {', '.join(lost)}: the tables leave it out{also}")
        metrics = [name for name in metrics if name not in lost]
    methods = dict.fromkeys(trial.method for trial, _ in pairs)
    if against is not None and against not in methods:
        raise UserError(f"there is no run of {against!r} to test against, only runs of {', '.join(methods)}")
    references = {name: other for name, other in (references or {}).items() if name in methods}
    logs: dict[str, dict[pathlib.Path, Mapping[str, Curve]]] = {}
    steps: dict[str, None] = {}  # sizes of a step
    lines: dict[str, None] = {}  # one about each run, in order
    for trial, source in pairs:
        name, about = trial.system[1], source.about
        if source.log:
            logs.setdefault(name, {})[source.folder] = source.log
            steps[source.step] = None
        run = f"`{source.folder}`", f"seed {about['seed']}", source.step, f"commit {about['commit'] or 'unknown'}"
        lines[f"{name} ({trial.model}): {', '.join(filter(None, run))}, `{shlex.join(about['command'])}`"] = None
    boards = list(scoreboards((trial for trial, _ in pairs), paired_seeds).values())
    marking = Marking(against=against, references=references, threshold=threshold)
    curves = {name: list(runs.values()) for name, runs in logs.items()}
    step, axis = " or ".join(filter(None, steps)), (axis_name or axis) if axis else ""

    # --- Every table and figure for which there are results.
    # Here, since every command imports this module, and Matplotlib takes a second.
    from lcrag.evaluation.plots import (
        STUDIED_GROUPS,
        TRAINING_PANELS,
        draw_differences,
        draw_method_curves,
        draw_study,
    )
    from lcrag.methods.translate_r1.tool_report import (
        asked_repeatedly,
        draw_pareto,
        draw_selectivity,
        draw_tool_rates,
        has_tool_use,
        tiers_in,
        tool_tables,
    )

    output_dir.mkdir(parents=True, exist_ok=True)
    first, first_name = metrics[0], METRIC_NAMES[metrics[0]]
    tables: list[Table | None] = []
    figures: dict[str, str] = {}  # file name -> caption

    def draw(name: str, caption: str, function: Callable[..., None], *data: Any) -> None:
        name = file_name(name)
        function(*data, output_dir / name)
        figures[name] = caption

    if any(name in log for runs in curves.values() for log in runs for name in TRAINING_PANELS):
        caption = "Training reward, response length and searches per episode over the training steps"
        draw(CURVES, caption, draw_method_curves, curves, step)
    for decoding in dict.fromkeys(board.decoding for board in boards):
        same = [board for board in boards if board.decoding == decoding]
        if axis:
            tables += [
                study_table(board, f"{first_name} of {board.dataset}, {decoding}: {name}", first, axis, group)
                for board in same
                for group, name in {"all": "all languages", **STUDIED_GROUPS}.items()
            ]
        tables.append(overall_table(same, f"Overall, {decoding}", metrics, marking))
        for board in same:
            where, file = f"{board.dataset}, {decoding}", f"{board.dataset}_{decoding}.png"
            compared = f"{first_name}: difference from {marking.named}, {where}"
            tables += [
                *(
                    language_table(board, f"{METRIC_NAMES[metric]} by language, {where}", metric, marking)
                    for metric in metrics[:2]
                ),
                part_table(board, f"{first_name} by part, {where}", first, marking),
                difference_table(board, compared, first, marking),
                runs_table(board, f"Runs, {where}", metrics),
                diversity_table(_plans(board), f"Plans of right answers, {where}"),
                *tool_tables(board, where),
            ]
            if axis:
                draw(f"study_{file}", f"{first_name} of {where}, by {axis}", draw_study, board, first, axis)
            if part_differences(board, first, marking):
                caption = f"{first_name} of {where}: difference from {marking.named}"
                draw(f"differences_{file}", caption, draw_differences, board, first, marking)
                # Also by language, with the same subsets.
                shown = {code: ("", code) for codes in board.languages for code in codes}
                shown |= {name: part for name, part in board.parts.items() if part[0]}
                if len(shown) > 1:
                    by_part = functools.partial(draw_differences, shown=shown)
                    draw(f"differences_by_language_{file}", f"{caption}, by language", by_part, board, first, marking)
            if has_tool_use(board):
                caption = f"Reward against tool rate on {where}, by tier; in percent the Pareto share"
                draw(f"pareto_{file}", caption, draw_pareto, board)
                if asked_repeatedly(board):
                    caption = f"Questions of {where}, by the share of their samples with a tool call"
                    draw(f"selectivity_{file}", caption, draw_selectivity, board)
    if tiers_in(curves):
        draw("tool_rates.png", "Tool rate over the training steps, by tier", draw_tool_rates, curves, step)
    tables += [rewards_table(curves), phase_table(curves)]
    made = [table for table in tables if table is not None]

    write_text(output_dir / LATEX, "\n".join(map(to_latex, made)))
    parts = [
        f"# {title}",
        *map(to_markdown, made),
        *(f"![{caption}]({name})" for name, caption in figures.items()),
        "## How to read this",
        READING,
        TEST_READING.format(marking) if marking.against else "",
        CURVES_READING if CURVES in figures else "",
        "## Runs",
        "\n".join(f"- {line}" for line in lines),
        f"The tables are in [{LATEX}]({LATEX}) for LaTeX with the package booktabs.",
    ]
    write_text(output_dir / REPORT, "\n\n".join(part.strip("\n") for part in parts if part) + "\n")
    for table in made:
        if " by language" not in table.title:  # too wide for most terminals
            console.print(to_rich(table))
    console.print(f"The report is in {output_dir / REPORT}")


def check_one_configuration(pairs: Sequence[tuple[Trial, Source]]) -> None:
    """Checks that averaged trials have the same configuration, and that no policy counts twice with one seed.

    A training run and an evaluation, or runs of two versions of lcrag, are compared in the bindings that both set.
    """
    first: dict[tuple, Source] = {}
    counted: dict[tuple, Source] = {}
    for trial, source in pairs:
        what = (trial.system, trial.dataset, trial.split, trial.decoding)
        first.setdefault((*what, source.trained), source)
        for trained in (True, False):
            other = first.get((*what, trained))
            if other is None or other.place == source.place:
                continue
            # `lcrag study` names what is made for one seed by it, at the ends of folder names.
            seeds = "|".join(re.escape(str(side.about["seed"])) for side in (other, source))
            there, here = (re.sub(rf"-(?:{seeds})(?=[/'])", "", side.config) for side in (other, source))
            alike = (other.trained, other.about["commit"]) == (source.trained, source.about["commit"])
            if difference := differences(there, here, INCIDENTAL, only_shared=not alike):
                raise UserError(
                    f"{other.folder} and {source.folder} are both called {trial.system[1]!r}, but {difference}: give"
                    " one another Method.name or evaluate.label, or name what a study varies with --axis"
                )
        policy = pathlib.Path(source.policy)
        answered_by = str(policy.resolve()) if policy.is_dir() else source.policy
        twice = counted.setdefault((*what, answered_by, source.about["seed"]), source)
        if twice.place != source.place:
            raise UserError(
                f"{twice.folder} and {source.folder} are the same policy, asked with the same seed and both called"
                f" {trial.system[1]!r}: leave one of them out"
            )


def _plans(board: Scoreboard) -> dict[str, list[PlanDiversity]]:
    """Returns, for each system, the plans of each run with several inference runs, which are pooled."""
    trials: dict[str, dict[str, list[Trial]]] = {}
    for trial in board.trials:
        trials.setdefault(board.name(trial.system), {}).setdefault(trial.run, []).append(trial)
    return {
        name: [
            plan_diversity([row for trial in same_run for row in trial.answered])
            for same_run in runs.values()
            if same_run[1:]
        ]
        for name, runs in trials.items()
    }

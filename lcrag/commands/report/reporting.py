"""The command: which runs are read, that they can be compared, and what is printed and written."""

import pathlib
import re
from collections.abc import Mapping, Sequence

import gin
from rich.console import Console

from lcrag.commands.report.sources import Source, read_sources, write_records
from lcrag.errors import UserError, typed
from lcrag.evaluation import METRIC_NAMES, Curve, to_rich
from lcrag.evaluation.metrics import EFFICIENCY
from lcrag.evaluation.paper_tables import Marking
from lcrag.evaluation.scoreboard import Trial, scoreboards
from lcrag.runs import check_used, differences
from lcrag.runs.display import make_console
from lcrag.runs.folder import RUN
from lcrag.train.evaluation import AFTER, EVALUATION, Evaluation, is_evaluated, report_run

NOT_OF_QUESTIONS = (EFFICIENCY, "seconds_per_question", "plan_diversity")
# Bindings in which runs of one system may differ: seeds, the folders of the resulting weights, and settings without
# effect on results. The names of removed parameters are those of old records.
INCIDENTAL = (
    *("train.seed", "evaluate.seed", "sft.seed", "train/golden_answers.seed", "validation/golden_answers.seed"),
    *("policy.folder", "policy.adapter_seed", "evaluate.label"),
    *("train.checkpoint_every", "train.episodes_every", "train.extreme_groups", "train.sentinels"),
    *("train.max_consecutive_skips", "sft.max_consecutive_skips"),
    *("Sentinels.least", "Sentinels.most", "Sentinels.patience", "Sentinels.shown"),
    *("Evaluation.before", "Evaluation.runs", "Evaluation.references", "Evaluation.reading", "Evaluation.temperatures"),
    *("Evaluation.audit", "remote_collections.url", "routed_collections.hosts"),
    *("atlas_collections.folder", "load_collections.folder"),
)


@gin.configurable
@typed
def report(output_dir: pathlib.Path | None, words: Sequence[str] = (), *, evaluation: Evaluation | None = None) -> None:
    """Writes the report of several runs, or rewrites `report.md` of one run.

    Args:
      output_dir: Folder for the report of several runs; without `words`, the folder of the one run.
      words: Folders of runs, or folders that contain such folders; see `compare_runs`.
      evaluation: Evaluation settings of the one run; tables of results also need its answers before and after training.
    """
    console = make_console()
    if words:
        compare_runs(output_dir, words, console)
        return
    if output_dir is None or not (output_dir / RUN).is_file():
        where = "no folder is given" if output_dir is None else f"{output_dir} is not the folder of a run"
        raise UserError(f"{where}: give a run's with --output_dir=FOLDER, or name several after the command")
    if evaluation is None and (output_dir / EVALUATION).is_file():
        raise UserError(
            f"{output_dir} was evaluated, but nothing binds report.evaluation: name the experiment that it was trained"
            " with (--gin_file=quickstart.gin, say), and its further bindings"
        )
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
    metrics: Sequence[str] = ("c3_recall_bergen", "flexible_exact_match", "correct_language", "searches"),
    against: str | None = None,
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
      records: Folder for a record of each run, see `sources`; None: no records are written.
      metrics: Metrics of the tables and records; the first two also by language, the first along the axis.
      against: The method that all others are tested against, question by question.
      threshold: Largest marked p-value, exclusive.
      paired_seeds: Whether runs with the same seed are paired in differences, for methods that share what is made for a
        seed.
      axis: The binding, `Name.parameter`, that a study varies: runs that differ in it are points of a curve.
      axis_name: What tables and figures call the axis; None: as the binding.
      also: Other labels of training runs to show in addition to the methods, such as "before" and "long SFT".
      only: Names of the methods in the report; empty: all.
      order: Names of methods in the desired order; all others follow as they are found.
      title: Title of the report.
    """
    # Here, since every command imports this module, and Matplotlib takes a second.
    from lcrag.commands.report.study_report import write_study_report

    check_used()
    if output_dir is None and records is None:
        raise UserError("lcrag report needs a folder for the tables of several runs: --output_dir=FOLDER")
    if output_dir is not None and (output_dir / RUN).is_file():
        raise UserError(f"{output_dir} is a run itself: give --output_dir another folder for the report of several")
    if unknown := [metric for metric in metrics if metric not in METRIC_NAMES]:
        raise UserError(f"there is no metric {unknown[0]!r} for compare_runs.metrics: use {', '.join(METRIC_NAMES)}")
    sources = read_sources(folders, also)
    if records is not None:
        written = write_records(sources, pathlib.Path(records), metrics)
        console.print(f"{len(written)} record{'s' if len(written) > 1 else ''} written into {records}")
    if output_dir is None:
        return
    names = dict.fromkeys(source.name for source in sources)
    if unknown := [name for name in only if name not in names]:
        raise UserError(f"compare_runs.only names {unknown[0]!r}, which was not run: choose among {', '.join(names)}")
    place = {name: number for number, name in enumerate(order)}
    chosen = [source for source in sources if not only or source.name in only]
    pairs: list[tuple[Trial, Source]] = []
    first: dict[tuple, Source] = {}
    for source in sorted(chosen, key=lambda source: place.get(source.name, len(place))):
        # Runs of one seed share labels such as the policy before training, whose answers count once.
        shared = source.trained and source.label != AFTER
        point = None if axis is None or shared else _point(source, axis)
        for trial in source.trials:
            run = source.about["seed"] if shared else source.folder
            if first.setdefault((source.name, trial.decoding, trial.split, run), source) is source:
                pairs.append((trial.at(point), source))
    check_one_configuration(pairs)
    known = {name for trial, _ in pairs for name in trial.scores}
    if lost := [name for name in metrics if name not in known and name not in NOT_OF_QUESTIONS]:
        raise UserError(
            f"the records hold no {lost[0]}, only {', '.join(sorted(known))}: choose among these with"
            " compare_runs.metrics, or give the folders of the runs"
        )
    methods = dict.fromkeys(trial.method for trial, _ in pairs)
    if against is not None and against not in methods:
        raise UserError(f"there is no run of {against!r} to test against, only runs of {', '.join(methods)}")
    logs: dict[str, dict[pathlib.Path, Mapping[str, Curve]]] = {}
    lines: dict[str, None] = {}  # one about each run, in order
    for trial, source in pairs:
        name, about = trial.system[1], source.about
        if source.log:
            logs.setdefault(name, {})[source.folder] = source.log
        parts = f"`{source.folder}`", f"seed {about['seed']}", source.step, f"commit {about['commit'] or 'unknown'}"
        lines[f"{name} ({trial.model}): {', '.join(filter(None, parts))}, `{' '.join(about['command'])}`"] = None
    path, tables = write_study_report(
        output_dir,
        title=title,
        boards=scoreboards((trial for trial, _ in pairs), paired_seeds),
        logs={name: list(runs.values()) for name, runs in logs.items()},
        metrics=metrics,
        marking=Marking(against=against, threshold=threshold),
        axis=(axis_name or axis) if axis else "",
        runs=list(lines),
    )
    for table in tables:
        if " by language" not in table.title:  # too wide for most terminals
            console.print(to_rich(table))
    console.print(f"The report is in {path}")


def _point(source: Source, axis: str) -> float | str:
    """Returns the position of a source on an axis: a number, the length of a list, or a name."""
    values = source.values
    if axis not in values:
        raise UserError(f"{source.place} sets no {axis}: choose another --axis, or leave that run out")
    value = values[axis]
    if isinstance(value, tuple | list):
        return float(len(value))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def check_one_configuration(pairs: Sequence[tuple[Trial, Source]]) -> None:
    """Checks that averaged trials have the same configuration, and that no policy counts twice with one seed.

    A training run and an evaluation are compared in the bindings that both set.
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
            there, here = (
                re.sub(rf"-{re.escape(str(side.about['seed']))}(?=[/'])", "", side.config) for side in (other, source)
            )
            if difference := differences(there, here, INCIDENTAL, only_shared=other.trained != source.trained):
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

"""`lcrag report RUN RUN ...`: the tables and figures of a paper from the folders of many runs."""

import pathlib
from collections.abc import Mapping, Sequence

from rich.console import Console

from lcrag.commands.report.records import evaluated, write_records
from lcrag.commands.report.run_folders import Source, check_one_configuration, trials_of
from lcrag.composition.used_bindings import check_used
from lcrag.errors import UserError
from lcrag.evaluation import METRIC_NAMES, Curve, to_rich
from lcrag.evaluation.metrics import EFFICIENCY
from lcrag.evaluation.paper_tables import Marking
from lcrag.evaluation.scoreboard import scoreboards
from lcrag.evaluation.trials import Trial
from lcrag.limits import Share
from lcrag.runs.answers import AFTER
from lcrag.runs.folder import RUN

NOT_OF_QUESTIONS = (EFFICIENCY, "seconds_per_question", "plan_diversity")


def compare_runs(
    output_dir: pathlib.Path | None,
    folders: Sequence[str],
    console: Console,
    *,
    records: str | None = None,
    metrics: Sequence[str] = ("c3_recall_bergen", "flexible_exact_match", "correct_language", "searches"),
    against: str | None = None,
    threshold: Share = 0.01,
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
      records: Folder for a record of each run, see `report.records`; None: no records are written.
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

    Raises:
      UserError: folders without results or with damaged ones, an unknown method or metric, or runs that cannot be
        compared.
    """
    # Here, since every command imports this module, and Matplotlib takes a second.
    from lcrag.commands.report.study_report import StudyReport, study_tables, write_study_report

    check_used()
    if output_dir is None and records is None:
        raise UserError("lcrag report needs a folder for the tables of several runs: --output_dir=FOLDER")
    if output_dir is not None and (output_dir / RUN).is_file():
        raise UserError(f"{output_dir} is a run itself: give --output_dir another folder for the report of several")
    if unknown := [metric for metric in metrics if metric not in METRIC_NAMES]:
        raise UserError(f"there is no metric {unknown[0]!r} for compare_runs.metrics: use {', '.join(METRIC_NAMES)}")
    found = evaluated(folders, also)
    if records is not None:
        written = write_records(found, pathlib.Path(records), metrics)
        console.print(f"{len(written)} record{'s' if len(written) > 1 else ''} written into {records}")
    if output_dir is None:
        return
    trials, origins = _read(_chosen(found, only), axis, order)
    check_one_configuration(trials, origins)
    _check_metrics(trials, metrics)
    if against is not None and all(trial.method != against for trial in trials):
        known = ", ".join(dict.fromkeys(trial.method for trial in trials))
        raise UserError(f"there is no run of {against!r} to test against, only runs of {known}")
    report = StudyReport(
        title=title,
        boards=scoreboards(trials, paired_seeds),
        logs=_logs(trials, origins),
        metrics=metrics,
        marking=Marking(against=against, threshold=threshold),
        axis=(axis_name or axis) if axis else "",
        runs=list(dict.fromkeys(map(_line, trials, origins))),
    )
    tables = study_tables(report)
    for table in tables:
        if " by language" not in table.title:  # too wide for most terminals
            console.print(to_rich(table))
    console.print(f"The report is in {write_study_report(output_dir, report, tables)}")


def _check_metrics(trials: Sequence[Trial], metrics: Sequence[str]) -> None:
    """Raises a UserError for metrics that are missing in records."""
    known = {name for trial in trials for name in trial.scores}
    if lost := [name for name in metrics if name not in known and name not in NOT_OF_QUESTIONS]:
        raise UserError(
            f"the records hold no {lost[0]}, only {', '.join(sorted(known))}: choose among these with"
            " compare_runs.metrics, or give the folders of the runs"
        )


def _chosen(found: Sequence[tuple[Source, str, str]], only: Sequence[str]) -> list[tuple[Source, str, str]]:
    """Returns what belongs to the methods named by `only`, or everything if it is empty."""
    known = list(dict.fromkeys(source.name for source, *_ in found))
    if unknown := [name for name in only if name not in known]:
        raise UserError(f"compare_runs.only names {unknown[0]!r}, which was not run: choose among {', '.join(known)}")
    return [each for each in found if not only or each[0].name in only]


def _read(
    found: Sequence[tuple[Source, str, str]], axis: str | None, order: Sequence[str]
) -> tuple[list[Trial], list[Source]]:
    """Returns every trial with its source, in the order of methods; a label shared by runs of one seed is read once."""
    place = {name: number for number, name in enumerate(order)}
    trials, origins, known = [], [], set()
    for source, decoding, split in sorted(found, key=lambda each: place.get(each[0].name, len(place))):
        shared = source.trained and source.label != AFTER
        key = (source.name, decoding, split, source.about["seed"] if shared else source.folder)
        if key not in known:
            known.add(key)
            own = list(trials_of(source, decoding, split, None if shared else axis))
            trials += own
            origins += [source] * len(own)
    return trials, origins


def _logs(trials: Sequence[Trial], origins: Sequence[Source]) -> dict[str, list[Mapping[str, Curve]]]:
    """Returns the logs of each system's training runs."""
    logs: dict[str, dict[pathlib.Path, Mapping[str, Curve]]] = {}
    for trial, source in zip(trials, origins, strict=True):
        if source.log:
            logs.setdefault(trial.system[1], {})[source.folder] = source.log
    return {name: list(own.values()) for name, own in logs.items()}


def _line(trial: Trial, source: Source) -> str:
    about = source.about
    parts = (f"`{source.folder}`", f"seed {about['seed']}", source.step, f"commit {about['commit'] or 'unknown'}")
    return f"{trial.system[1]} ({trial.model}): {', '.join(filter(None, parts))}, `{' '.join(about['command'])}`"

"""`lcrag report RUN RUN ...`: the tables and figures of a paper from the folders of many runs."""

import pathlib
from collections.abc import Sequence

from rich.console import Console

from lcrag.app.commands.report.run_folders import (
    Source,
    check_one_configuration,
    run_folders,
    sources,
    trials_of,
)
from lcrag.app.composition.used_bindings import check_used
from lcrag.app.runs.answers import AFTER
from lcrag.app.runs.folder import RUN
from lcrag.app.runs.metrics import METRICS as LOG
from lcrag.errors import UserError
from lcrag.evaluation import METRIC_NAMES, Curve, read_training_log, step_size, to_rich
from lcrag.evaluation.paper_tables import Marking
from lcrag.evaluation.scoreboard import scoreboards
from lcrag.evaluation.trials import Trial
from lcrag.limits import Share


def compare_runs(
    output_dir: pathlib.Path,
    folders: Sequence[str],
    console: Console,
    *,
    metrics: Sequence[str] = ("c3_recall_bergen", "flexible_exact_match", "correct_language", "searches"),
    against: str | None = None,
    threshold: Share = 0.01,
    axis: str | None = None,
    also: Sequence[str] = (),
    order: Sequence[str] = (),
    title: str = "Comparison of runs",
) -> pathlib.Path:
    """Writes the report of several runs, prints its tables except those by language, and returns its path.

    Runs of one method, which may differ in their seed only, are averaged. All must be evaluated on the same questions.

    Args:
      output_dir: Where `report.md`, `tables.tex` and the figures are written; not the folder of a run.
      folders: Folders of runs, or folders that contain some.
      console: Where to print.
      metrics: Metrics of the tables; the first two also by language, the first along the axis.
      against: The method that all others are tested against, question by question.
      threshold: Largest marked p-value, exclusive.
      axis: The binding, `Name.parameter`, that a study varies: runs that differ in it are points of a curve.
      also: Other labels of training runs to show in addition to the methods, such as "before" and "long SFT".
      order: Names of methods in the desired order; all others follow as they are found.
      title: Title of the report.

    Raises:
      UserError: folders without results or with damaged ones, an unknown method or metric, or runs that cannot be
        compared.
    """
    # Here, since every command imports this module, and Matplotlib takes a second.
    from lcrag.app.commands.report.study_report import StudyReport, study_tables, write_study_report

    check_used()
    if (output_dir / RUN).is_file():
        raise UserError(f"{output_dir} is a run itself: give --output_dir another folder for the report of several")
    if unknown := [metric for metric in metrics if metric not in METRIC_NAMES]:
        raise UserError(f"there is no metric {unknown[0]!r} for compare_runs.metrics: use {', '.join(METRIC_NAMES)}")
    found = [each for folder in run_folders(folders) for each in sources(folder, also)]
    if not found:
        raise UserError(f"no policy was evaluated in {', '.join(folders)}: give folders of runs or of evaluations")
    trials, origins = _read(found, axis, order)
    check_one_configuration(trials, origins)
    if against is not None and all(trial.method != against for trial in trials):
        known = ", ".join(dict.fromkeys(trial.method for trial in trials))
        raise UserError(f"there is no run of {against!r} to test against, only runs of {known}")
    report = StudyReport(
        title=title,
        boards=scoreboards(trials),
        logs=_logs(trials, origins),
        metrics=metrics,
        marking=Marking(against=against, threshold=threshold),
        axis=axis or "",
        runs=list(dict.fromkeys(map(_line, trials, origins))),
    )
    tables = study_tables(report)
    for table in tables:
        if " by language" not in table.title:  # too wide for most terminals
            console.print(to_rich(table))
    return write_study_report(output_dir, report, tables)


def _read(
    found: Sequence[tuple[Source, str, str]], axis: str | None, order: Sequence[str]
) -> tuple[list[Trial], list[Source]]:
    """Every trial with its source, in the order of the methods; a label that runs of one seed share is read once."""
    place = {name: number for number, name in enumerate(order)}
    trials, origins, known = [], [], set()
    for source, decoding, split in sorted(found, key=lambda each: place.get(each[0].name, len(place))):
        shared = source.name == source.label != AFTER and source.config.parent == source.folder
        key = (source.name, decoding, split, source.about["seed"] if shared else source.folder)
        if key not in known:
            known.add(key)
            own = list(trials_of(source, decoding, split, None if shared else axis))
            trials += own
            origins += [source] * len(own)
    return trials, origins


def _logs(trials: Sequence[Trial], origins: Sequence[Source]) -> dict[str, list[dict[str, Curve]]]:
    """The training logs of each system's training runs."""
    logs: dict[str, dict[pathlib.Path, dict[str, Curve]]] = {}
    for trial, source in zip(trials, origins, strict=True):
        path, name = source.folder / LOG, trial.system[1]
        if source.label == AFTER and path.is_file() and path not in logs.setdefault(name, {}):
            logs[name][path] = read_training_log(path)
    return {name: list(own.values()) for name, own in logs.items() if own}


def _line(trial: Trial, source: Source) -> str:
    about, log = source.about, source.folder / LOG
    size = step_size(read_training_log(log)) if source.label == AFTER and log.is_file() else ""
    parts = (f"`{source.folder}`", f"seed {about['seed']}", size, f"commit {about['commit'] or 'unknown'}")
    return f"{trial.system[1]} ({trial.model}): {', '.join(filter(None, parts))}, `{' '.join(about['command'])}`"

"""`lcrag study`: runs the unfinished points of a study, several at once, and then its report.

`points` describes studies, one module per paper contains their tables, `running` runs them.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from lcrag.cli.arguments import Arguments, closest, whole_number
from lcrag.commands.report.sources import read_record, record_files
from lcrag.commands.study import globalrag, lcrl, r_search, rag_r1, running, translate_r1
from lcrag.commands.study.points import Point, Settings, Study, left
from lcrag.errors import UserError, without_secrets

STUDIES: Mapping[str, Study] = {
    name: study
    for module in (lcrl, r_search, rag_r1, globalrag, translate_r1)
    for name, study in module.STUDIES.items()
}


def study(arguments: Arguments) -> None:
    """Runs a study; the same command continues after an interruption.

    Args:
      arguments: The name as the only word; `--gin_file` and `--gin.` are passed to every command but the cold starts.

    Raises:
      UserError: There is no such study or variant, an option has no meaning, a record is of another command than the
        study's, or a run failed.
    """
    chosen = _study_of(arguments.words)
    settings, jobs = settings_of(chosen, arguments)
    records = Path(dict(arguments.others).get("--records", settings.output / "records" / arguments.words[0]))
    _check_options(chosen, settings)
    _check_folder(records, settings)
    points = [_recorded(point, settings.output / chosen.reported, records) for point in chosen.points(settings)]
    for point in points:
        if point.record is not None and point.record.exists():
            _check_record(point, point.record, settings.output)
    folder = f"--output_dir={settings.output / chosen.report_folder}"
    if "--dry_run" in arguments.switches:
        waiting = left(points)
        commands = [words for point in waiting for words in running.commands(point, chosen.report)]
        for words in (*commands, ["report", str(records), *chosen.report, folder]):
            print(shlex.join(["lcrag", *words]), flush=True)
        return
    running.run_points(points, jobs, chosen.report)
    running.run_report(["report", str(records), *_comparable(chosen.report, records), folder])


def _check_options(chosen: Study, settings: Settings) -> None:
    """Raises a UserError for an option that changes no point of the study."""
    without = {
        "--no_cold_start": dataclasses.replace(settings, cold_start=True),
        "--sft_experiment": dataclasses.replace(settings, sft_experiment=""),
    }
    for option, others in without.items():
        if others != settings and chosen.points(others) == chosen.points(settings):
            raise UserError(f"{option} changes none of the study's runs: leave it out")


def _recorded(point: Point, reported: Path, records: Path) -> Point:
    """A point with its record if the report is on it; the others are preparations."""
    is_reported = reported in point.folder.parents
    return dataclasses.replace(point, record=records / f"{point.folder.name}.json") if is_reported else point


def _check_folder(records: Path, settings: Settings) -> None:
    """Raises a UserError if the folder of the records has those of another experiment.

    The baseline SFT is left out: it may have an experiment of its own (`--sft_experiment`).
    """
    experiment = f"{settings.experiment}.gin"
    for record in record_files(records):
        command = read_record(record)["command"]
        if "sft" not in command[1:2] and f"--gin_file={experiment}" not in command:
            raise UserError(
                f"{record} is a record of another experiment than {experiment}: give another folder as --records"
            )


def _check_record(point: Point, record: Path, output: Path) -> None:
    """Raises a UserError if the recorded command differs from the point's in more than the study's output folder."""
    recorded = read_record(record)
    command = recorded["command"]
    earlier = str(Path(recorded["folder"])).removesuffix(str(point.folder.relative_to(output)))
    old = [word.replace(earlier, "") if earlier else word for word in command[1:]]
    new = [word.replace(f"{output}/", "") for word in map(without_secrets, point.words())]
    if old != new:
        recorded, wanted = ([word for word in own if word not in other] for own, other in ((old, new), (new, old)))
        raise UserError(
            f"{record} is not of this study's run: it was recorded with {shlex.join(recorded) or 'fewer options'},"
            f" and the study has {shlex.join(wanted) or 'fewer options'}; give another folder as --records, or remove"
            " the file to run it again"
        )


def _comparable(report: Sequence[str], records: Path) -> list[str]:
    """Returns the arguments of a report, without the comparison with a method that has no record yet."""
    against = "--against="
    known = {read_record(path)["method"] for path in record_files(records)}
    return [word for word in report if not word.startswith(against) or word.removeprefix(against) in known]


def _study_of(words: Sequence[str]) -> Study:
    if len(words) != 1 or words[0] not in STUDIES:
        hint = (closest(words[0], STUDIES) if words else "") or f": {', '.join(STUDIES)}"
        raise UserError(f"lcrag study takes the name of one study{hint}")
    return STUDIES[words[0]]


def settings_of(chosen: Study, arguments: Arguments) -> tuple[Settings, int]:
    """Returns the settings of the command line, with the study's defaults, and the number of concurrent points."""
    typed = dict(arguments.others)
    seeds = [whole_number("--seeds", seed) for seed in _listed(typed.get("--seeds", ""))]
    jobs = whole_number("--jobs", typed.get("--jobs", "1"), least=1)
    settings = Settings(
        output=arguments.output_dir or Path(chosen.output),
        experiment=typed.get("--experiment", chosen.experiment).removesuffix(".gin"),
        seeds=tuple(seeds) or chosen.seeds,
        only=_listed(typed.get("--only", "")),
        cold_start="--no_cold_start" not in arguments.switches,
        sft_experiment=typed.get("--sft_experiment", "").removesuffix(".gin"),
        gin_files=arguments.gin_files,
        bindings=(*chosen.bindings, *arguments.bindings),
    )
    return settings, jobs


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def described() -> str:
    """One line for each study, for the help of the command."""
    width = max(map(len, STUDIES))
    return "\n".join(f"  {name:{width}}  {each.summary}" for name, each in STUDIES.items())

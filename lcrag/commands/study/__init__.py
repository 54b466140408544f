"""`lcrag study`: runs the unfinished points of a study, several at once, and then its report.

`points` describes studies, `lcrl`, `rag_r1` and `cold_started` hold their tables, `running` runs them.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from lcrag.commands.arguments import Arguments, whole_number
from lcrag.commands.report.sources import as_now, read_record, record_files
from lcrag.commands.study import cold_started, lcrl, rag_r1, running
from lcrag.commands.study.points import Point, Settings, Study, unfinished
from lcrag.errors import UserError, closest, without_secrets

STUDIES: Mapping[str, Study] = {
    name: study for module in (lcrl, cold_started, rag_r1) for name, study in module.STUDIES.items()
}


def study(arguments: Arguments) -> None:
    """Runs a study; the same command continues after an interruption.

    Args:
      arguments: The name as the only word; `--gin_file` and `--gin.` are passed to every command but the cold starts.

    Raises:
      UserError: There is no such study or variant, an option has no meaning, a record is of another command than the
        study's, or a run failed.
    """
    words, typed = arguments.words, dict(arguments.others)
    if len(words) != 1 or words[0] not in STUDIES:
        hint = (closest(words[0], STUDIES) if words else "") or f": {', '.join(STUDIES)}"
        raise UserError(f"lcrag study takes the name of one study{hint}")
    chosen = STUDIES[words[0]]
    settings, jobs = settings_of(chosen, arguments), whole_number("--jobs", typed.get("--jobs", "1"), 1)
    without = {
        "--no_cold_start": dataclasses.replace(settings, cold_start=True),
        "--sft_experiment": dataclasses.replace(settings, sft_experiment=""),
    }
    for option, others in without.items():
        if others != settings and chosen.points(others) == chosen.points(settings):
            raise UserError(f"{option} changes none of the study's runs: leave it out")
    records = Path(typed.get("--records", settings.output / "records" / words[0]))
    points = [
        dataclasses.replace(point, record=records / f"{point.folder.name}.json")
        if settings.output / chosen.reported in point.folder.parents
        else point  # a preparation, which is not reported
        for point in chosen.points(settings)
    ]
    _check_records(records, points, settings)
    folder = f"--output_dir={settings.output / chosen.report_folder}"
    if "--dry_run" in arguments.switches:
        commands = [each for point in unfinished(points) for each in running.commands(point, chosen.report)]
        for each in (*commands, ["report", str(records), *chosen.report, folder]):
            print(shlex.join(["lcrag", *each]), flush=True)
        return
    running.run_points(points, jobs, chosen.report)
    # Without the comparison with a method that has no record yet.
    methods = {f"--against={read_record(path)['method']}" for path in record_files(records)}
    report = [word for word in chosen.report if not word.startswith("--against=") or word in methods]
    running.run_report(["report", str(records), *report, folder])


def _check_records(records: Path, points: Sequence[Point], settings: Settings) -> None:
    """Raises a UserError for a record of another experiment, or of a point whose command was another.

    Commands may differ in the study's output folder, and the baseline SFT may have an experiment of its own
    (`--sft_experiment`).
    """
    of_record = {point.record: point for point in points}
    for path in record_files(records):
        record = read_record(path)
        command = [as_now(word) for word in record["command"]]
        if "sft" not in command[1:2] and f"--gin_file={settings.experiment}.gin" not in command:
            raise UserError(
                f"{path} is a record of another experiment than {settings.experiment}.gin: give another folder as"
                " --records"
            )
        if path not in of_record:
            continue
        point = of_record[path]
        earlier = str(Path(record["folder"])).removesuffix(str(point.folder.relative_to(settings.output)))
        old = [word.replace(earlier, "") if earlier else word for word in command[1:]]
        new = [word.replace(f"{settings.output}/", "") for word in map(without_secrets, point.words())]
        if old != new:
            recorded, wanted = ([word for word in own if word not in other] for own, other in ((old, new), (new, old)))
            raise UserError(
                f"{path} is not of this study's run: it was recorded with {shlex.join(recorded) or 'fewer options'},"
                f" and the study has {shlex.join(wanted) or 'fewer options'}; give another folder as --records, or"
                " remove the file to run it again"
            )


def settings_of(chosen: Study, arguments: Arguments) -> Settings:
    """Returns the settings of the command line, with the study's defaults."""
    typed = dict(arguments.others)
    seeds, only = (tuple(filter(None, typed.get(option, "").split(","))) for option in ("--seeds", "--only"))
    return Settings(
        output=arguments.output_dir or Path(chosen.output),
        experiment=typed.get("--experiment", chosen.experiment).removesuffix(".gin"),
        seeds=tuple(whole_number("--seeds", seed) for seed in seeds) or chosen.seeds,
        only=only,
        cold_start="--no_cold_start" not in arguments.switches,
        sft_experiment=typed.get("--sft_experiment", "").removesuffix(".gin"),
        gin_files=arguments.gin_files,
        bindings=(*chosen.bindings, *arguments.bindings),
    )


def described() -> str:
    """One line for each study, for the help of the command."""
    width = max(map(len, STUDIES))
    return "\n".join(f"  {name:{width}}  {each.summary}" for name, each in STUDIES.items())

"""`lcrag study`: runs the unfinished points of a study, several at once, and then its report."""

import dataclasses
import logging
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lcrag.commands.command_line import Arguments, whole_number
from lcrag.commands.records import read_record, record_files
from lcrag.commands.studies import STUDIES, Point, Settings, Study
from lcrag.errors import UserError, closest, without_secrets
from lcrag.runs.processes import raise_stopped

LCRAG = (sys.executable, "-m", "lcrag.main")
POLL_SECONDS = 0.05


def study(arguments: Arguments) -> None:
    """Runs a study; the same command continues after an interruption.

    Args:
      arguments: The name as the only word; `--gin_file` and `--gin.` go to all but the initial policies.
    """
    words, typed = arguments.words, arguments.options
    if len(words) != 1 or words[0] not in STUDIES:
        hint = (closest(words[0], STUDIES) if words else "") or f": {', '.join(STUDIES)}"
        raise UserError(f"lcrag study takes the name of one study{hint}")
    chosen = STUDIES[words[0]]
    settings, jobs = settings_of(chosen, arguments), whole_number("--jobs", typed.get("--jobs", "1"), 1)
    points = chosen.points(settings)
    records = Path(typed.get("--records", settings.output / "records" / words[0]))
    points = [
        dataclasses.replace(point, record=records / f"{point.folder.name}.json")
        if settings.output / chosen.reported in point.folder.parents
        else point  # a preparation, which is not reported
        for point in points
    ]
    _check_records(records, points, settings)
    folder = f"--output_dir={settings.output / chosen.report_folder}"
    if "--dry_run" in arguments.options:
        remaining = [words for point in unfinished(points) for words in commands(point, chosen.report)]
        for command in (*remaining, ["report", str(records), *chosen.report, folder]):
            print(shlex.join(["lcrag", *command]), flush=True)
        return
    logging.getLogger("lcrag.activity").info("")  # the commands say what they do in their logs
    run_points(points, jobs, chosen.report)
    # Without the comparison with a method that has no record yet.
    methods = {f"--against={read_record(path)['method']}" for path in record_files(records)}
    report = [word for word in chosen.report if not word.startswith("--against=") or word in methods]
    if subprocess.run([*LCRAG, "report", str(records), *report, folder]).returncode:
        raise UserError("every run of the study has finished, but the report on them failed")


def settings_of(chosen: Study, arguments: Arguments) -> Settings:
    """Returns the settings of the command line, with the study's defaults."""
    typed = arguments.options
    seeds, only = (
        tuple(filter(None, dict.fromkeys(typed.get(option, "").split(",")))) for option in ("--seeds", "--only")
    )
    return Settings(
        output=arguments.output_dir or Path(chosen.output),
        experiment=typed.get("--experiment", chosen.experiment).removesuffix(".gin"),
        seeds=tuple(whole_number("--seeds", seed) for seed in seeds) or chosen.seeds,
        only=only,
        gin_files=arguments.gin_files,
        bindings=(*chosen.bindings, *arguments.bindings),
    )


def described() -> str:
    """One line for each study, for the help of the command."""
    width = max(map(len, STUDIES))
    return "\n".join(f"  {name:{width}}  {known.summary}" for name, known in STUDIES.items())


def _check_records(records: Path, points: Sequence[Point], settings: Settings) -> None:
    """Raises a UserError for a record of another experiment, or of a point whose command was another.

    Commands may differ in the study's output folder, and the baseline SFT may have an experiment of its own.
    """
    of_record = {point.record: point for point in points}
    for path in record_files(records):
        record = read_record(path)
        command = record["command"]
        experiments = {f"--gin_file={settings.experiment}{ending}.gin" for ending in ("", "_sft")}
        if "sft" not in command[1:2] and experiments.isdisjoint(command):
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
            recorded, wanted = [word for word in old if word not in new], [word for word in new if word not in old]
            raise UserError(
                f"{path} is not of this study's run: it was recorded with {shlex.join(recorded) or 'fewer options'},"
                f" and the study has {shlex.join(wanted) or 'fewer options'}; give another folder as --records, or"
                " remove the file to run it again"
            )


def unfinished(points: Sequence[Point]) -> list[Point]:
    """Returns the points without their record, and the unfinished preparations that these need."""
    needed: set[Path] = set()
    points_to_run = []
    for point in reversed(points):
        missing = point.folder in needed and not point.finished if point.record is None else not point.record.exists()
        if missing:
            points_to_run.append(point)
            needed |= set(() if point.finished else point.needs)
    return points_to_run[::-1]


def commands(point: Point, report: Sequence[str]) -> list[list[str]]:
    """Returns the arguments of the `lcrag` commands that an unfinished point still needs: its own, and its record's.

    The study's arguments of `lcrag report` select the metrics that are recorded.
    """
    words = [] if point.finished else [point.words()]
    if point.record is not None:
        words.append(["report", str(point.folder), *report, f"--records={point.record.parent}"])
    return words


def run_points(points: Sequence[Point], jobs: int, report: Sequence[str]) -> None:
    """Runs the unfinished points as processes of `lcrag`, each after the points that it needs, and records them."""
    waiting = unfinished(points)
    print(f"{len(waiting)} of {len(points)} runs to do", flush=True)
    running: dict[Path, tuple[Point, list[list[str]], subprocess.Popen]] = {}

    def start(point: Point, words: list[str], left: list[list[str]], mode: str) -> None:
        with point.log.open(mode, encoding="utf-8") as log:
            process = subprocess.Popen([*LCRAG, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        running[point.folder] = point, left, process

    try:
        while waiting or running:
            blocked = {point.folder for point in waiting} | running.keys()
            ready = [point for point in waiting if blocked.isdisjoint(point.needs)]
            for point in ready[: jobs - len(running)]:
                waiting.remove(point)
                point.log.parent.mkdir(parents=True, exist_ok=True)
                words, *left = commands(point, report)
                # What a finished run printed is kept when it is only recorded.
                start(point, words, left, "a" if point.finished else "w")
                print(f"{point.folder} started, its log is {point.log}", flush=True)
            time.sleep(POLL_SECONDS)
            raise_stopped()
            for folder, (point, left, process) in list(running.items()):
                status = process.poll()
                if status is None:
                    continue
                if status:
                    lines = filter(str.strip, point.log.read_text(encoding="utf-8", errors="replace").split("\n"))
                    said = ["it printed nothing", *lines][-1].removeprefix("lcrag: ")
                    raise UserError(f"{folder} failed with status {status}, see {point.log}: {said}")
                if not point.finished or not (left or point.record is None or point.record.exists()):
                    raise UserError(f"{folder} ended without its result, see {point.log}")
                if left:
                    start(point, left[0], left[1:], "a")
                    continue
                del running[folder]
                print(f"{folder} finished", flush=True)
    finally:
        for _, _, process in running.values():
            process.terminate()  # a training saves its last finished step
        for _, _, process in running.values():
            process.wait()

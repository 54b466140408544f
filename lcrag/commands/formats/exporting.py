"""`lcrag export RUN --to=FORMAT`: the episodes of a run in another format, and trajectories as episodes again."""

import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.cli.arguments import Arguments, closest
from lcrag.commands.formats.atif import row_of, trajectory_of
from lcrag.commands.formats.inspect_log import write_log
from lcrag.commands.formats.messages import messages_of
from lcrag.errors import UserError
from lcrag.runs.files import write_json_lines

USAGE = "lcrag export RUN [STEP] --to=FORMAT --output_dir=FOLDER"
Row = Mapping[str, Any]
Writer = Callable[[pathlib.Path, pathlib.Path, str], None]  # (file of rows, folder to write into, name of the run)


def export_episodes(arguments: Arguments) -> None:
    """Writes a run's episodes in another format; writes no files if an error occurs.

    Args:
      arguments: The run's folder, and optionally a step or the name of a file in `episodes/` without its extension. The
        format is the last `--to`.

    Raises:
      UserError: there is no such format, run or step, a row is damaged or was written by an older version, or the
        output folder is not empty.
    """
    name, output = dict(arguments.others)["--to"], arguments.output_dir
    if name not in FORMATS:
        hint = closest(name, FORMATS) or f"; there are {', '.join(FORMATS)}"
        raise UserError(f"there is no format {name}{hint}; without --to the policy is written as a Hugging Face folder")
    if arguments.gin_files or arguments.bindings:
        raise UserError("lcrag export --to takes no configuration: leave out --gin_file and --gin.")
    if output is None:
        raise UserError(f"lcrag export needs a folder to write to: {USAGE}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is not empty: choose another --output_dir")
    run, files = _run_and_files(arguments.words, name)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as place:
            made = pathlib.Path(place) / "made"
            made.mkdir()
            for file in files:
                FORMATS[name](file, made, run.resolve().name)
            os.replace(made, output)
    except OSError as error:
        said = error.strerror or error
        raise UserError(f"{output} cannot be written ({said}): choose another --output_dir") from error
    print(f"{len(files)} {'file' if len(files) == 1 else 'files'} of {run} as {name} in {output}")


def _run_and_files(words: Sequence[str], name: str) -> tuple[pathlib.Path, list[pathlib.Path]]:
    if not 1 <= len(words) <= 2:
        raise UserError(f"lcrag export takes a run's folder and optionally a step: {USAGE}")
    run = pathlib.Path(words[0])
    folder = run if name == EPISODES else run / "episodes"
    files = sorted(folder.glob("*.jsonl"), key=lambda path: (len(path.stem), path.stem))
    if not files:
        needed = "files of trajectories, as --to=atif writes them" if name == EPISODES else "episodes/*.jsonl"
        raise UserError(f"{run} holds no {needed}: name the --output_dir of another command")
    if len(words) == 1:
        return run, files
    wanted = f"step_{words[1]}" if words[1].isdecimal() else words[1]
    chosen = [path for path in files if path.stem == wanted]
    if not chosen:
        raise UserError(f"{folder} holds no {wanted}.jsonl; there are {', '.join(path.stem for path in files)}")
    return run, chosen


def converted(path: pathlib.Path, convert: Callable[[Row, int], Row]) -> Iterator[Row]:
    """Yields `convert(row, line)` for each row of a JSON Lines file; `line` is the line's number.

    Raises:
      UserError: a line is damaged, or cannot be converted.
    """
    with path.open("rb") as file:
        for line, text in enumerate(file, start=1):
            try:
                value = json.loads(text)
                if not isinstance(value, dict):
                    raise ValueError("it is not a JSON object")
                yield convert(value, line)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                raise UserError(f"{path}, line {line}, cannot be exported: {_said(error)}") from error


def _said(error: Exception) -> str:
    match error:
        case json.JSONDecodeError():
            return f"it is not JSON ({error.msg} at column {error.colno})"
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case KeyError():
            return f"it has no {error}"
        case ValueError():
            return str(error)
    return f"one of its fields has the wrong type ({error})"


def _json_lines(convert: Callable[[Row, str, str], Row], subfolder: str = "") -> Writer:
    """Returns a writer of JSON Lines files, whose objects are `convert(row, run, name of the row)`."""

    def write(source: pathlib.Path, folder: pathlib.Path, run: str) -> None:
        target = folder / subfolder / source.name
        target.parent.mkdir(exist_ok=True)
        rows = converted(source, lambda row, line: convert(row, run, f"{source.stem}/{line}"))
        write_json_lines(target, rows)

    return write


def _write_inspect(source: pathlib.Path, folder: pathlib.Path, run: str) -> None:
    target = folder / f"{source.stem}.eval"
    write_log(target, converted(source, lambda row, line: row), task=f"{run}/{source.stem}", model=f"lcrag/{run}")


EPISODES = "episodes"
FORMATS: Mapping[str, Writer] = {
    "atif": _json_lines(lambda row, run, name: trajectory_of(row, session_id=run, trajectory_id=f"{run}/{name}")),
    "inspect": _write_inspect,
    "messages": _json_lines(lambda row, run, name: messages_of(row)),
    EPISODES: _json_lines(lambda trajectory, run, name: row_of(trajectory), EPISODES),
}

"""The `lcrag` command: `lcrag COMMAND --gin_file=FILE [--gin.Name.parameter=value] [--output_dir=FOLDER]`.

Everything that can be checked without importing JAX is checked first. `lcrag.commands.command_line` has the commands.
"""

import contextlib
import importlib
import importlib.metadata
import io
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lcrag.commands.command_line import COMMANDS, CONFIG, Arguments, Command, command_help, general_help, parse
from lcrag.errors import UserError, closest, exhausted_memory, one_line
from lcrag.files import check_writable, full_disk, is_remote, refused_file
from lcrag.runs import processes
from lcrag.runs.display import Activity
from lcrag.runs.processes import end_process, exit_status, set_compilation_cache, stopped_by_signals

QUIET_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow's and XLA's C++ log
    "GRPC_VERBOSITY": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",  # otherwise there is a warning at every fork
    "TRANSFORMERS_VERBOSITY": "error",  # it announces the absence of PyTorch, which nothing needs
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}
QUIET_LOGGERS = ("jax", "orbax", "transformers", "tensorflow", "matplotlib")


def run(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status: 0, 2 after a mistake, 130 after Ctrl-C, 143 after SIGTERM.

    Without `argv` it runs the command line of the process, and an interruption ends the process here.
    """
    own_process, argv = argv is None, sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows ASCII only gets escapes, not an exception
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    place: Path | str | None = None  # where the command writes
    continues = False

    def say_interrupted() -> None:
        said = "nothing was written, as no --output_dir was given" if place is None else "nothing was written"
        if continues:
            said = f"the same command continues from what is saved in {place}"
        with contextlib.suppress(OSError):  # nobody reads it
            print(f"lcrag: interrupted; {said}", file=sys.stderr)

    def end(number: int) -> None:
        """Ends the command after a signal that it does not get to: it may be loading, compiling or searching."""
        say_interrupted()
        try:
            if folders := sys.modules.get("lcrag.runs.folder"):
                folders.upload_copies()
            if processes.several_processes():
                processes.leave()
        except UserError as error:
            print(f"lcrag: error: {one_line(str(error))}", file=sys.stderr)
        finally:
            end_process(128 + number)

    try:
        if list(argv) == ["--version"]:
            print(f"lcrag {importlib.metadata.version('lcrag')}", flush=True)
            return 0
        arguments = parse(argv)
        if arguments.command is None:
            print(general_help(COMMANDS), flush=True)
            return 0
        if arguments.command not in COMMANDS:
            hint = closest(arguments.command, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
            raise UserError(f"there is no command {arguments.command}{hint}")
        command = COMMANDS[arguments.command]
        if "--help" in arguments.options:
            listed = _imported(command.listing)() if command.listing else ""
            print(command_help(arguments.command, command, listed), flush=True)
            return 0
        place = arguments.output_dir or ("the study's folder" if arguments.command == "study" else None)
        continues = command.continues and place is not None
        with (
            stopped_by_signals(end if own_process else None),
            Activity() if own_process else contextlib.nullcontext() as activity,
        ):
            _execute(command, arguments, activity)
        return 0
    except UserError as error:
        if "--traceback" in argv:
            raise
        print(f"lcrag: error: {one_line(str(error))}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt as interruption:
        say_interrupted()
        status = exit_status(interruption)
    except BrokenPipeError:  # `lcrag ... | head`; nothing reads what Python would still flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        full, refused, memory = full_disk(error), refused_file(error), exhausted_memory(error)
        if not (full or refused or memory) or "--traceback" in argv:
            if not own_process or not processes.several_processes():
                raise
            traceback.print_exception(error)
            status = 1
        else:
            mend = "the same command continues from what is saved" if continues else "run the same command again"
            if full:
                said = f"cannot write {full.filename or place or 'a file'}: {full.strerror}; make room, then {mend}"
            elif memory:
                said = f"{memory}; then {mend}"
            else:
                assert refused is not None
                said = f"cannot read or write {refused.filename}: {refused.strerror}; correct this, then {mend}"
            print(f"lcrag: error: {one_line(said)}", file=sys.stderr)
            status = 2
    if own_process and processes.several_processes():
        processes.leave()  # without waiting for the others, which may wait for this one
        end_process(status)
    if own_process and status > 128:
        end_process(status)
    return status


def _execute(command: Command, arguments: Arguments, activity: Activity | None = None) -> None:
    given = arguments.options
    for option in given:
        if option not in command.accepted():
            raise UserError(f"lcrag {arguments.command} has no option {option}")
    if arguments.output_dir and is_remote(arguments.output_dir) and not command.shared:
        raise UserError(
            f"lcrag {arguments.command} writes to a local --output_dir: copy it to object storage afterwards"
        )
    if arguments.output_dir and not is_remote(arguments.output_dir):
        check_writable(arguments.output_dir)
    set_compilation_cache(os.environ, enabled="--no_compilation_cache" not in given)
    # Libraries log much that is no news; this must come before they are imported.
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("absl", "gcsfs", "google"):  # Orbax and clients of stores log with a traceback what they then raise
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=FutureWarning)
    instead = next((command.instead[option] for option in given if option in command.instead), None)
    if instead or not command.configured:
        _imported(instead or command.function)(arguments)
        return
    if (choices := re.findall(r"^\w+(?:\|\w+)+$", command.words)) and arguments.words:
        names = choices[0].split("|")
        if len(arguments.words) > 1 or arguments.words[0] not in names:
            hint = closest(arguments.words[0], names) or f"; there are {', '.join(names)}"
            raise UserError(f"lcrag {arguments.command} takes one word, not {' '.join(arguments.words)}{hint}")
    gin_files, recorded = arguments.gin_files or tuple(filter(None, [command.gin_file])), list[str]()
    if command.of_run and not gin_files:
        run_folder = next(iter(arguments.words), None)
        if run_folder is None:
            usage = f"lcrag {arguments.command} {command.words}"
            raise UserError(f"lcrag {arguments.command} needs the folder of a run: {usage}")
        if is_remote(run_folder):
            raise UserError(f"{run_folder} is in object storage: copy the run to a local folder first")
        if not (Path(run_folder) / CONFIG).is_file():
            raise UserError(f"{run_folder} is no run of lcrag: it holds no {CONFIG}")
        from lcrag.runs.folder import read_config, statements_for  # imports gin

        recorded = statements_for(read_config(Path(run_folder) / CONFIG), "policy")
    if not gin_files and not recorded:
        raise UserError(f"lcrag {arguments.command} needs a configuration: --gin_file=FILE (see --help)")
    if arguments.words and not command.words:
        raise UserError(f"lcrag {arguments.command} takes no word {arguments.words[0]}; options begin with --")
    options = [f"{command.options[name]} = {value!r}" for name, value in given.items() if name in command.options]
    options += [statement for switch, statement in command.switches.items() if switch in given]

    from lcrag import config  # imports gin, and with `configure` JAX and every room: not for --help
    from lcrag.runs.folder import check_named, output_folder

    # Files and spelling are checked before other processes are joined or waited for.
    config.configure(
        gin_files,
        (*recorded, *command.bindings, *arguments.bindings, *options),
        must_be_used=() if "--allow_unused" in given else arguments.bindings,
    )
    if activity is not None:
        activity.watch_compilations()
    if command.builds:
        named = check_named(command.function.partition(":")[2], *command.calls, *arguments.words)
        with config.missing_as_sentence():
            config.check_types(named)
    if command.shared and not processes.has_joined():
        found = processes.find_processes(given)
        if found is not None:
            processes.join(found, f"{arguments.command} {arguments.output_dir}\n{config.gin.config_str()}")
    function = _imported(command.function)
    words = (arguments.words,) if command.words else ()
    with config.missing_as_sentence():
        if not command.folder:
            function(arguments.output_dir, *words)
            return
        may_change = sys.modules[function.__module__].MAY_CHANGE if command.folder == "run" else None
        with output_folder(arguments.command or "", arguments.output_dir, may_change) as folder:
            if command.check:
                _imported(command.check)(arguments.command)
            function(folder, *words)


def _imported(path: str) -> Callable[..., Any]:
    """The function at `module:name`."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    sys.exit(run())

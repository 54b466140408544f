"""The output folder of a run: its configuration, metrics and episodes, and its copy in object storage.

Everything is written atomically or appended and flushed, and earlier content is never lost. With several processes,
only the first one writes.
"""

import contextlib
import dataclasses
import datetime
import functools
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import gin
from etils import epath
from gin import config_parser

from lcrag.errors import UserError, typed, without_secrets
from lcrag.files import (
    PATTERN,
    check_writable,
    is_remote,
    json_line,
    lock,
    naming,
    read_json_object,
    read_metrics_file,
    remote_path,
    write_json,
    write_json_lines,
    write_text,
)
from lcrag.runs.processes import is_writer, writer_does

# --- The folder ---


CONFIG, RUN, LOCK, CHECKPOINTS = "config.gin", "run.json", ".lock", "checkpoints"
PACKAGES = ("lcrag", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scann", "tensorflow", "seqio",
            "gin-config", "babel", "transformers", "tokenizers")  # fmt: skip


class RunFolder:
    """The folder of one run, opened for writing by `open_run`."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints `<step>/`; it is in object storage if the run's folder is."""
        return stored(self.path / CHECKPOINTS)

    def metrics(self, after_step: int = -1, settings: "Trackers | None" = None) -> "MetricsLog":
        """Opens the metrics log and drops the records after `after_step`, whose steps will run again."""
        return MetricsLog(self.path if is_writer() else None, after_step=after_step, settings=settings or Trackers())

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rows of supervised fine-tuning to `rows.jsonl`, for inspection."""
        if is_writer():
            write_json_lines(self.path / "rows.jsonl", rows)

    def write_episodes(self, step: int, episodes: Iterable[Mapping[str, Any]], *, extremes: bool = False) -> None:
        """Writes the episodes of a step, or only those with the highest and lowest reward of each group."""
        if is_writer():
            write_json_lines(self.path / "episodes" / f"{'extremes' if extremes else 'step'}_{step}.jsonl", episodes)


@contextlib.contextmanager
def output_folder(
    command: str, place: Path | None, may_change: Collection[str] | None = None, *, configurable: str | None = None
) -> Iterator[Path]:
    """Yields the local output folder of a command, checked before anything is built; see `check_folder`.

    A folder in object storage gets a local copy. `configurable` is the command's name in bindings if it is another.
    """
    if place is None:
        raise UserError(f"lcrag {command} needs a folder for its results: --output_dir=FOLDER")
    config = gin.config_str()
    if is_remote(place) and PATTERN.search(str(place)):
        raise UserError(f"{place} has one of * ? [ ] \\ in its name, a pattern in object storage: choose another name")
    with local_copy(place) if is_remote(place) else contextlib.nullcontext(place) as path:
        writer_does(lambda: check_folder(path, configurable or command, config, may_change))
        yield path


def check_folder(path: Path, command: str, config: str, may_change: Collection[str] | None = ()) -> None:
    """Makes the checks of an output folder that are possible before anything is built; changes nothing.

    `config` has all bindings, including unused ones. `open_run` makes the remaining checks; without `may_change` the
    folder is not a run's.
    """
    check_writable(path)
    if may_change is None and (path / CONFIG).exists():
        raise UserError(f"{path} holds a run, to whose results {command} would add: choose another --output_dir")
    if may_change is None or not path.exists():
        return
    if (path / LOCK).exists():
        with (path / LOCK).open("r+") as file:
            _lock(file, path)
    if not _holds_run(path):
        return
    there = read_config(path / CONFIG)
    if not any(key.startswith(f"{command}.") for key in read_values(there, str(path / CONFIG))):
        raise UserError(f"{path} holds the run of another command than {command}; choose another --output_dir")
    if difference := differences(there, config, may_change, only_shared=True):
        raise _another_run(path, difference)


@contextlib.contextmanager
def open_run(
    path: Path,
    *,
    config: str,
    about: Mapping[str, Any],
    may_change: Collection[str] = (),
) -> Iterator[RunFolder]:
    """Opens and locks the output folder for the run that `config` describes; created if missing.

    With several processes, the first one checks, locks and writes the folder, and all processes raise its error.

    Args:
      config: gin's operative configuration, taken at the same point in every run, after everything is built.
      about: Result of `provenance`. A continued run has the same hashes; it keeps the first one and adds this one under
        "continued".
      may_change: Bindings that may differ when a run is continued, such as `train.steps`.
    """
    held = contextlib.ExitStack()

    def claim() -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((path / LOCK).open("w"))
        except OSError as error:
            raise UserError(f"cannot write to the output folder {path}: {error.strerror}") from error
        _lock(file, path)
        for partial in path.rglob("*.[0-9]*.tmp"):  # left by a killed process
            partial.unlink(missing_ok=True)
        record = dict(about)
        if _holds_run(path):
            first = read_provenance(path / RUN)
            difference = differences(read_config(path / CONFIG), config, may_change)
            if not difference and first["seed"] != about.get("seed"):
                difference = f"the seed is {first['seed']} there and {about.get('seed')} here"
            difference = difference or changed_content(first.get("hashes", {}), about.get("hashes", {}))
            if difference:
                raise _another_run(path, difference)
            record = {**first, "continued": [*first.get("continued", []), record]}
            _match_checkpoints(path)
        write_json(path / RUN, record)
        write_text(path / CONFIG, config)

    with held:
        writer_does(claim)
        yield RunFolder(path)


def _lock(file: IO[str], path: Path) -> None:
    if not lock(file.fileno(), path / LOCK):
        raise UserError(f"another process is writing to {path}; wait for it or choose another --output_dir")


def _holds_run(path: Path) -> bool:
    """Returns whether a folder holds a run; raises a UserError if it holds other files but no run."""
    if (path / CONFIG).exists():
        return True
    others = [item.name for item in path.iterdir() if item.name not in (LOCK, RUN) and item.suffix != ".tmp"]
    if others:
        raise UserError(f"{path} holds {min(others)} but no run to continue; choose another --output_dir")
    return False


def _match_checkpoints(path: Path) -> None:
    """Makes the checkpoints and the metrics of a run fit each other, and says what it sets aside.

    Both are written in order, but files may have been deleted, edited or copied. A checkpoint has the metrics of all of
    its steps, else an older one is continued from; metrics without any checkpoint are of steps that begin anew.
    """
    place, metrics = stored(path / CHECKPOINTS), path / METRICS
    checkpoints = remote_path(place) if is_remote(place) else place
    steps = (
        sorted(int(folder.name) for folder in checkpoints.iterdir() if folder.name.isdecimal())
        if checkpoints.exists()
        else []
    )
    logged = {record["step"] for record in read_metrics(path)}
    reached = next(step for step in itertools.count() if step not in logged)

    def set_aside(kept: Any, name: str) -> str:
        free = next(free for n in itertools.count(1) if not (free := kept.with_name(name.format(n))).exists())
        kept.rename(free)
        return free.name

    first = max((step for step in steps if step <= reached), default=0)
    if later := [set_aside(checkpoints / str(step), f"unlogged_{step}_{{}}") for step in steps if step > reached]:
        print(
            f"lcrag: {metrics} lacks step {reached}, so the run continues from step {first}; later checkpoints are now"
            f" called {', '.join(later)}: to use them, stop, restore that file, and rename them",
            file=sys.stderr,
        )
    if not first and logged:
        aside = set_aside(metrics, "metrics_{}.jsonl")
        print(
            f"lcrag: {path} has metrics of {len(logged)} steps but no checkpoint, so the run begins anew at step 0; the"
            f" metrics are kept as {aside}",
            file=sys.stderr,
        )


def read_config(path: Path) -> str:
    """Returns the text of a recorded configuration."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): copy the file again") from error


def read_provenance(path: Path, *fields: str) -> dict[str, Any]:
    """Reads a `run.json`, which must have a seed and some other fields."""
    about = read_json_object(path)
    kinds = {"seed": int, "hashes": dict, "command": list, "continued": list, "packages": dict, "devices": list}
    lost = [name for name in ("seed", *fields) if name not in about]
    lost += [name for name, kind in kinds.items() if not isinstance(about.get(name, kind()), kind)]
    if lost:
        raise UserError(f"{path} is damaged, its {lost[0]!r} is lost: copy the file again, or choose another folder")
    return about


def changed_content(there: Mapping[str, str], here: Mapping[str, str]) -> str | None:
    """Returns a clause that names all hashes that differ; None if there are none.

    Search servers that do not describe their content have an address, with spaces, in place of a hash.
    """
    names = sorted(there.keys() | here.keys())
    changed = [name for name in names if there.get(name) != here.get(name)]
    changed = [name for name in changed if " " not in f"{there.get(name)}{here.get(name)}"]
    return f"the content of its {', '.join(changed)} differs" if changed else None


def _another_run(path: Path, difference: str) -> UserError:
    return UserError(f"{path} holds another run: {difference}; choose another --output_dir, or set it back")


def provenance(*, seed: int, hashes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the content of `run.json`; `hashes` are content hashes of data sets and indexes by name."""
    import jax  # imported here, because run folders are also read without JAX

    def git(*words: str) -> str:
        folder = Path(__file__).parent
        try:
            answer = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError):
            return ""  # git is not installed, or the package is not in a repository
        return answer.stdout.strip()

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    # Not that of a repository in whose virtual environment lcrag is installed.
    commit = (git("ls-files", "--error-unmatch", Path(__file__).name) and git("rev-parse", "HEAD")) or None
    if commit and git("status", "--porcelain", "--untracked-files=no"):
        commit += "+changes"
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["lcrag", *map(without_secrets, sys.argv[1:])],
        "seed": seed,
        "commit": commit,
        "python": platform.python_version(),
        "packages": versions,
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "processor_count": len(affinity(0)) if affinity else os.cpu_count() or 1,
        "hashes": dict(hashes or {}),
    }


# --- Metrics ---


METRICS = "metrics.jsonl"
WANDB_RUN = "wandb_run.txt"
# What a continued run in object storage reads; checkpoints and episodes stay where they are.
CONTINUED = ("answers", CONFIG, RUN, METRICS, "evaluation.json", "report.md", WANDB_RUN)
TENSORBOARD, WANDB = "tensorboard", "wandb"


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Trackers:
    """Where metrics go in addition to `metrics.jsonl`."""

    names: Sequence[str] = (TENSORBOARD,)  # "tensorboard", "wandb", both or none
    project: str = "lcrag"  # of Weights & Biases
    offline: bool = False  # whether Weights & Biases writes to the run's folder only, for a later `wandb sync`

    def __post_init__(self):
        if unknown := [name for name in self.names if name not in (TENSORBOARD, WANDB)]:
            raise UserError(f"there is no tracker {unknown[0]!r} for Trackers.names: use {TENSORBOARD} or {WANDB}")
        if WANDB in self.names and importlib.util.find_spec(WANDB) is None:
            raise UserError("Trackers.names has wandb, which is not there: pip install 'lcrag[wandb]', or leave it out")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Returns the records of a run's `metrics.jsonl`, oldest first; ignores an incomplete last line."""
    path = folder / METRICS
    return read_metrics_file(path) if path.exists() else []


class MetricsLog(contextlib.AbstractContextManager["MetricsLog"]):
    """Appends one record a step, which is on disk when `write` returns; without a folder nothing is written.

    Existing records are kept up to and including `after_step`, one a step, and dropped after it.
    """

    def __init__(self, folder: Path | None, *, after_step: int = -1, settings: Trackers | None = None):
        self._closed_at_end = contextlib.ExitStack()
        self._trackers: list[EventFile | WandbRun] = []
        self._path = folder and folder / METRICS
        if folder is None or self._path is None:
            return
        records = {record["step"]: record for record in read_metrics(folder) if record["step"] <= after_step}
        write_text(self._path, "".join(json_line(records[step]) for step in sorted(records)))
        self._file = self._closed_at_end.enter_context(self._path.open("a", encoding="utf-8"))
        settings = settings or Trackers()
        if TENSORBOARD in settings.names:
            self._trackers.append(EventFile(folder, first_step=after_step + 1))
        if WANDB in settings.names:
            self._trackers.append(WandbRun(folder, settings))
        for tracker in self._trackers:
            self._closed_at_end.callback(tracker.close)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends the record of a step, `{"step": step, name: number, ...}`; non-finite numbers become null."""
        if self._path is None:
            return
        numbers = {name: value if isinstance(value, int) else float(value) for name, value in values.items()}
        with naming(self._path):
            self._file.write(json_line({"step": step, **numbers}))
            self._file.flush()
            os.fsync(self._file.fileno())  # before a checkpoint of this step is complete
        for tracker in self._trackers:
            tracker.write(step, {name: float(value) for name, value in numbers.items()})

    def __exit__(self, *exception: object) -> None:
        self._closed_at_end.close()


class EventFile:
    """A TensorBoard event file of scalars.

    TensorBoard reads all event files of a folder as one run; a new file replaces the scalars of `first_step` and later
    steps in older files. `clu.metric_writers` imports TensorFlow, and has no such replacement. `tensorboardX` writes on
    a thread: what it has flushed may lack the last steps, and after a full disk training waits for it without end.
    """

    def __init__(self, folder: Path, *, first_step: int = 0):
        from tensorboard.compat.proto import event_pb2, summary_pb2  # here, because --help needs none of it
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        self._writer = RecordWriter(self._path.open("wb"))
        self._add(file_version="brain.Event:2")
        self._add(session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START), step=first_step)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the scalars of a step."""
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step=step, summary=self._summary(value=scalars))

    def _add(self, **content: Any) -> None:
        with naming(self._path):
            self._writer.write(self._event(wall_time=time.time(), **content).SerializeToString())
            self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


class WandbRun:
    """A run of Weights & Biases with the name of the run's folder; its id is kept there, to be continued.

    wandb sends on a process of its own. An error of it is printed once, and does not end the training.
    """

    def __init__(self, folder: Path, settings: Trackers):
        import wandb

        kept = folder / WANDB_RUN
        known = kept.read_text(encoding="utf-8").strip() if kept.exists() else None
        quiet = wandb.Settings(silent=True, console="off")
        mode = "offline" if settings.offline else None
        about = {"project": settings.project, "name": folder.absolute().name, "dir": str(folder), "settings": quiet}
        self._run = self._tried(lambda: wandb.init(id=known, resume="allow", mode=mode, **about))
        if self._run is not None:
            write_text(kept, f"{self._run.id}\n")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics of a step; steps that a continued run repeats are ignored by the service."""
        if self._run is not None:
            self._tried(lambda: self._run.log(dict(values), step=step))

    def close(self) -> None:
        """Waits until all metrics are sent or on disk."""
        if self._run is not None:
            self._tried(self._run.finish)

    def _tried(self, call):
        try:
            return call()
        except Exception as error:  # training continues after any error of a tracker
            reason = " ".join(without_secrets(f"{type(error).__name__}: {error}").split())
            print(f"lcrag: wandb failed ({reason}); metrics.jsonl has all metrics", file=sys.stderr)
            self._run = None
            return None


# --- Configuration ---


_EXPECTED: list[str] = []  # bindings of the command line, which must be used before results are written
# Configurables that code calls, so that they are used although no binding names them.
CALLED = ("BadRows", "atlas_world", "load_collections", "load_encoder")
_READ: set[tuple[str, str]] = set()  # (configurable, parameter or "") that a command reads without calling it


class Reference(str):
    """A value `@scope/Name` or `@scope/Name()` of a recorded configuration, as it is written."""

    __repr__ = str.__str__


class Macro(str):
    """A value `%NAME` of a recorded configuration, as the macro's name."""

    def __repr__(self) -> str:
        return f"%{self}"


class _PlainValues(config_parser.ParserDelegate):
    """Reads references and macros as plain data: what they name may no longer exist."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        return Reference(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


_REFERRED = re.compile(r"[@%](?:\w+/)*(\w+)")
_REFERENCE = re.compile(r"@([\w/.]+)")
_TEXT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""")  # of a Python literal: "@" names nothing there


def parse_statements(config: str, place: str = "config.gin") -> dict[str, Any]:
    """Returns every statement of a configuration without includes: `scope/Name.parameter` or macro -> value."""
    statements = {}
    try:
        for statement in config_parser.ConfigParser(config, _PlainValues()):
            if isinstance(statement, config_parser.BindingStatement):
                key = "/".join(filter(None, (statement.scope, statement.selector)))
                statements[f"{key}.{statement.arg_name}" if statement.arg_name else key] = statement.value
    except (SyntaxError, ValueError, tokenize.TokenError) as error:
        raise UserError(f"{place} cannot be read: {' '.join(str(error).split())}") from error
    return statements


def _values(config: str, place: str, of_reference: Callable[[Reference], Any] = lambda value: value) -> dict[str, Any]:
    """`scope/Name.parameter` -> value of every binding, macros replaced by their values and lists by tuples."""
    statements = parse_statements(config, place)

    def resolve(value: Any) -> Any:
        if isinstance(value, Macro):
            return resolve(statements[value]) if value in statements else value
        if isinstance(value, Reference):
            return of_reference(value)
        if isinstance(value, dict):
            return {resolve(key): resolve(item) for key, item in value.items()}
        return tuple(map(resolve, value)) if isinstance(value, list | tuple) else value

    try:
        return {key: resolve(value) for key, value in statements.items() if "." in key}
    except RecursionError:
        raise UserError(f"{place}: a macro is set to itself") from None


@functools.lru_cache(maxsize=256)
def read_values(config: str, place: str = "config.gin") -> Mapping[str, Any]:
    """Reads every binding of an operative configuration: `scope/Name.parameter` -> value.

    A reference to a configurable is returned as its name with spaces ("native collection").
    """
    return _values(config, place, lambda reference: reference.strip("@()").rpartition("/")[2].replace("_", " "))


def read_configured(path: Path) -> Mapping[str, Any]:
    """Reads every binding of a `config.gin` as `read_values` does."""
    return read_values(read_config(path), str(path))


def statements(config: str) -> dict[str, str]:
    """Returns every statement of an operative configuration: name -> value, both as gin writes them."""
    return {key: repr(value) for key, value in parse_statements(config).items()}


def statements_for(config: str, name: str) -> list[str]:
    """Returns the statements of an operative configuration that a configurable reads, also through others.

    Without imports: what the configurable does not name, such as a user's source of rows, need not exist.
    """
    written, wanted = statements(config), [name]
    owners = {key: key.rpartition(".")[0].rpartition("/")[2] or key for key in written}
    for reader in wanted:  # it grows
        named = (other for key in written if owners[key] == reader for other in _REFERRED.findall(written[key]))
        wanted += [other for other in dict.fromkeys(named) if other not in wanted]
    return [f"{key} = {value}" for key, value in written.items() if owners[key] in wanted]


def differences(there: str, here: str, may_change: Collection[str] = (), only_shared: bool = False) -> str | None:
    """Returns a clause that names all bindings in which two configurations differ; None if there are none.

    `only_shared` compares only bindings that both set, for configurations of different commands.
    """
    old, new = ({key: repr(value) for key, value in _values(config, "config.gin").items()} for config in (there, here))
    compared = sorted(set(old.keys() & new.keys() if only_shared else old.keys() | new.keys()).difference(may_change))
    differing = (key for key in compared if old.get(key) != new.get(key))
    clauses = (f"{key} is {old.get(key, 'not set')} there and {new.get(key, 'not set')} here" for key in differing)
    return ", ".join(clauses) or None


def expect_used(bindings: Sequence[str]) -> None:
    """Records statements of the command line, `Name.parameter = value`, for `check_used`."""
    _EXPECTED[:] = bindings
    forget_used()


def forget_used() -> None:
    """Forgets what `mark_used` has marked."""
    _READ.clear()


def mark_used(name: str, *parameters: str) -> None:
    """Marks the bindings of a configurable, or of some of its parameters, as used, although gin does not call it."""
    called = name.rpartition("/")[2].rpartition(".")[2]
    _READ.update((called, parameter) for parameter in parameters or ("",))


def _split(key: str) -> tuple[str, str, str]:
    """Splits the key of a binding into its scope, the name of the configurable, and the parameter."""
    scope, _, rest = key.rpartition("/")
    selector, _, parameter = rest.rpartition(".")
    return scope, selector.rpartition(".")[2], parameter


def check_named(*functions: str) -> dict[str, list[tuple[str, Any]]]:
    """Checks, before anything is built, that something in the configuration uses every binding of the command line.

    The bindings of `functions`, and of what these name in turn, count as used. `check_used` is exact,
    but only after everything is built. Returns all that is named, with the parameters and values that are bound.
    """
    config = gin.config_str()
    if re.search("^import ", config, re.MULTILINE):
        return {}  # the code of others may call any configurable

    bound = [(*_split(key), value) for key, value in _values(config, "the configuration").items()]
    named: dict[str, list[tuple[str, Any]]] = {name: [] for name in (*functions, *CALLED)}
    called_in: dict[str, set[str]] = {name: {""} for name in named}  # the scopes of each name's references
    scopes, unread = {""}, bound
    while (
        left := [binding for binding in unread if binding[1] not in named or not set(binding[0].split("/")) <= scopes]
    ) != unread:
        for _, name, parameter, value in (binding for binding in unread if binding not in left):
            named[name].append((parameter, value))
            references = _REFERENCE.findall(_TEXT.sub("", repr(value)))
            for scope, other, _ in (_split(f"{reference}.") for reference in references):
                scopes |= set(scope.split("/"))
                named.setdefault(other, [])
                called_in.setdefault(other, set()).add(scope)
        unread = left
    for key in (key for binding in _EXPECTED for key in parse_statements(binding) if "." in key):
        scope, name, parameter = _split(key)
        if name not in named or not set(scope.split("/")) <= scopes:
            raise _without_effect(key, f"nothing in this configuration names {f'{scope}/' if scope else ''}{name}")
        # A binding of an inner scope comes before one of an outer scope or of none.
        inner = {within for within, *same, _ in bound if same == [name, parameter] and within != scope}
        nearer = {
            place: next((within for within in inner if _covers(scope, within) and _covers(within, place)), None)
            for place in called_in[name]
            if _covers(scope, place)
        }
        if nearer and None not in nearer.values():
            instead = " and ".join(
                f"{within}/{name}.{parameter}" for within in sorted({*filter(None, nearer.values())})
            )
            raise _without_effect(key, f"{instead} comes before it, so bind that")
    return named


def _covers(scope: str, within: str) -> bool:
    """Whether gin uses the bindings of a scope in calls within another one."""
    return f"{within}/".startswith(scope and f"{scope}/")


def _without_effect(key: str, why: str) -> UserError:
    return UserError(f"--gin.{key} has no effect: {why}; leave it out, or keep it with --allow_unused")


def check_used() -> None:
    """Checks that everything that the command has built so far has used every binding of the command line."""
    used = {key: _split(key) for key in parse_statements(gin.operative_config_str())}
    for key in (key for binding in _EXPECTED for key in parse_statements(binding)):
        scope, name, parameter = _split(key)
        same = {other: parts for other, parts in used.items() if parts[2] == parameter}
        # A binding without a scope, or of an outer one, is used by calls in the scopes within it.
        fits = (called == name and _covers(scope, within) for within, called, _ in same.values())
        if not any(fits) and not {(name, ""), (name, parameter)} & _READ:
            hint = f" (used are {', '.join(sorted(same)[:4])})" if same else ""
            raise _without_effect(key, f"nothing that this command built uses it{hint}")


def operative_config() -> str:
    """Returns the bindings that have been used so far as the text of a gin file; see `check_used`."""
    check_used()
    return gin.operative_config_str()


# --- Object storage ---


_OPEN: dict[Path, epath.Path] = {}  # local copy -> the folder in object storage
_UPLOADED: dict[Path, tuple[int, int]] = {}


@contextlib.contextmanager
def local_copy(place: Path) -> Iterator[Path]:
    """Yields a local copy of a folder in object storage, and uploads it at the end, also after an error.

    Before that, the writer tries whether it can write and delete there.
    """
    remote = remote_path(place)

    def try_it() -> None:
        (remote / ".writable").write_text("")
        (remote / ".writable").unlink()

    with tempfile.TemporaryDirectory(prefix="lcrag-run-") as folder:
        local = Path(folder)
        try:
            writer_does(try_it)
            for path in remote.iterdir() if remote.exists() else ():
                if path.name in CONTINUED:
                    path.copytree(epath.Path(local) / path.name) if path.is_dir() else path.copy(local / path.name)
        except Exception as error:  # whatever the store's client raises
            raise UserError(f"cannot read or write {remote}: {' '.join(str(error).split())[:300]}") from error
        _OPEN[local] = remote
        try:
            yield local
            writer_does(upload_copies)  # the others wait: JAX ends every process if one is gone for five minutes
        except UserError as error:
            raise UserError(str(error).replace(str(local), str(remote))) from error
        finally:
            upload_copies()
            del _OPEN[local]


def upload_copies() -> None:
    """Uploads new and changed files of every open local copy; of other processes than 0 the answers that they saved."""
    pattern = "*" if is_writer() else f"*_saved_{sys.modules['jax'].process_index()}.jsonl"
    for local, remote in _OPEN.items():
        for path in local.rglob(pattern):
            if path.is_file() and not path.name.endswith((".tmp", ".lock")):
                status = path.stat()
                version = status.st_mtime_ns, status.st_size
                if _UPLOADED.get(path) != version:
                    target = remote / path.relative_to(local)
                    try:
                        epath.Path(path).copy(target, overwrite=True)
                    except Exception as error:  # whatever the store's client raises
                        raise UserError(f"cannot write {target}: {' '.join(str(error).split())[:300]}") from error
                    _UPLOADED[path] = version


def remove_stored(path: Path) -> None:
    """Removes what is stored of a file in a local copy, which `upload_copies` would leave."""
    if is_remote(place := stored(path)):
        remote_path(place).unlink(missing_ok=True)


def stored(path: Path) -> Path:
    """Returns the address in object storage of a path in a local copy; returns any other path unchanged."""
    for local, remote in _OPEN.items():
        if local in path.parents:
            return Path(str(remote)) / path.relative_to(local)
    return path

"""Runs one command line on several hosts, with a log for each; forwards SIGTERM, and restarts all if one is lost."""

import dataclasses
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lcrag.errors import UserError
from lcrag.runs.stopping import exit_status

POLL_SECONDS = 0.1
MISTAKE = 2  # exit status after which a restart does not help


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """One process of the job.

    Attributes:
      name: Name of its log, `<logs>/<name>.log`.
      words: The local command that runs a command line there: ssh and its arguments.
    """

    name: str
    words: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a job.

    Attributes:
      logs: Folder of the logs, which are appended to.
      restarts: Largest number of restarts of a job that has lost a process.
      pause_seconds: Pause before a restart.
      grace_seconds: Time between SIGTERM and SIGKILL, in which a run saves.
    """

    logs: Path
    restarts: int
    pause_seconds: float
    grace_seconds: float


def remote_line(folder: str, setup: str, words: Sequence[str], grace_seconds: float) -> str:
    """Returns a shell line that runs the words, and ends them by SIGTERM, then SIGKILL, when standard input ends.

    ssh does not forward signals, but it forwards the end of standard input, also if the connection or launcher breaks.
    """
    before = f"cd {_quoted(folder)} && " + (f"{{ {setup}; }} && " if setup else "")
    stop = f"read -r _ <&3; kill -TERM $p; sleep {grace_seconds:g}; kill -KILL $p"
    run = f"exec 3<&0; {shlex.join(words)} & p=$!; ({stop}) >/dev/null 2>&1 & w=$!; wait $p; s=$?; kill $w; exit $s"
    return f"{before}{{ {run}; }}"


def _quoted(folder: str) -> str:
    return f"~/{shlex.quote(folder[2:])}" if folder.startswith("~/") else shlex.quote(folder)


def run_on(
    hosts: Sequence[Host], lines: Sequence[str], settings: Settings, prepare: Callable[[int], None] = lambda start: None
) -> None:
    """Runs each line on its host until all end well.

    Args:
      hosts: The hosts; the output of the first one is also shown.
      lines: The shell line of each host.
      settings: Logs, restarts and waits.
      prepare: Called before each start with its number.

    Raises:
      UserError: a process ended with an error after which a restart does not help, or there were too many restarts.
      SystemExit: a signal ended the job, with the status of that signal.
    """
    for start in range(settings.restarts + 1):
        if start:
            print(f"lcrag: start {start + 1} of at most {settings.restarts + 1}", flush=True)
            time.sleep(settings.pause_seconds)
        prepare(start)
        failed = Attempt(hosts, lines, settings).wait()
        if failed is None:
            return
        host, status = failed
        log = settings.logs / f"{host.name}.log"
        print(f"lcrag: {host.name} ended with status {status}: {_last_line(log)}", file=sys.stderr, flush=True)
        if status == MISTAKE:
            raise UserError(f"the command cannot run on {host.name}, as {log} says")
    raise UserError(f"{host.name} ended with status {status} at start {settings.restarts + 1}, the last; see {log}")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "it said nothing")


class Attempt:
    """One start of all processes."""

    def __init__(self, hosts: Sequence[Host], lines: Sequence[str], settings: Settings):
        self._hosts, self._settings, self._show = hosts, settings, None
        settings.logs.mkdir(parents=True, exist_ok=True)
        self._running: list[subprocess.Popen[bytes]] = []
        for host, line in zip(hosts, lines, strict=True):
            shown = not self._running
            with (settings.logs / f"{host.name}.log").open("ab") as log:
                # A session of its own: the terminal's Ctrl-C reaches it through this process alone.
                process = subprocess.Popen(
                    [*host.words, line],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE if shown else log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._running.append(process)
            if shown:
                self._show = threading.Thread(target=_show, args=(process, Path(log.name)), daemon=True)
                self._show.start()

    def wait(self) -> tuple[Host, int] | None:
        """Returns the host that failed first and its status, or None.

        The others get SIGTERM when they have not ended by themselves for a while after it.

        Raises:
          SystemExit: a signal came; all have ended.
        """
        failed: tuple[Host, int] | None = None
        end: float | None = None
        try:
            while any(process.poll() is None for process in self._running):
                if failed is None and (failed := self._failed()):
                    end = time.monotonic() + self._settings.grace_seconds
                if end is not None and time.monotonic() > end:
                    self.stop()
                time.sleep(POLL_SECONDS)
            failed = failed or self._failed()
        except KeyboardInterrupt as interruption:
            print("lcrag: SIGTERM is passed on; a run saves its last finished step", file=sys.stderr, flush=True)
            self.stop()
            raise SystemExit(exit_status(interruption)) from None
        finally:
            self.stop()
            if self._show is not None:
                self._show.join()
        return failed

    def _failed(self) -> tuple[Host, int] | None:
        """Returns the failed process, preferably one whose error prevents a restart."""
        codes = [process.poll() for process in self._running]
        found = [(host, _shell_status(code)) for host, code in zip(self._hosts, codes, strict=True) if code]
        return min(found, key=lambda each: each[1] != MISTAKE, default=None)

    def stop(self) -> None:
        """Closes standard input on all hosts, which sends SIGTERM there, and waits; a second SIGINT ends the wait."""
        for process in self._running:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
        end = time.monotonic() + self._settings.grace_seconds
        for process in self._running:
            try:
                process.wait(max(0.0, end - time.monotonic()) + 1)
            except subprocess.TimeoutExpired:
                process.kill()


def _shell_status(code: int) -> int:
    return code if code >= 0 else 128 - code


def _show(process: subprocess.Popen[bytes], log: Path) -> None:
    """Copies the output of a process to its log and to standard output."""
    assert process.stdout is not None
    with log.open("ab") as file:
        while chunk := process.stdout.read1(65536):  # type: ignore[attr-defined]
            file.write(chunk)
            file.flush()
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()


def run_settings(settings: Mapping[str, str]) -> Settings:
    """Returns the settings of a job from the command line."""
    return Settings(
        logs=Path(settings["--logs"]),
        restarts=int(settings["--restarts"]),
        pause_seconds=float(settings["--pause_seconds"]),
        grace_seconds=float(settings["--grace_seconds"]),
    )


def call(words: list[str], hint: str) -> str:
    """Runs a command and returns its output, which is also shown.

    Raises:
      UserError: it is not installed, or failed.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(f"there is no command {words[0]}: {hint}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise UserError(f"{shlex.join(words[:5])} ... failed: {said}")
    if done.stdout.strip():
        print(done.stdout.strip(), flush=True)
    return done.stdout

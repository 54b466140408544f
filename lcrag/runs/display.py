"""Progress of a run in the terminal, with what JAX compiles, and printed episodes."""

import contextlib
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from lcrag.runs import processes

SECONDS_PER_LINE = 10.0  # if the output is not a terminal
SECONDS_UNTIL_COMPILING_SHOWS = 1.0
MIN_STEPS, MIN_SHARE = 3, 0.1  # after which the time left is estimated
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # reported when a compilation begins
COMPILED = "/jax/core/compile/backend_compile_duration"  # also reported when a program is read from the cache
PROVENANCE_STYLES = {"policy": "bold green", "environment": "dim cyan"}


class _Console(Console):
    """Rich's console, which by itself ends the process with status 1 and no word once nobody reads its output."""

    def on_broken_pipe(self) -> None:
        if not processes.is_stopping():  # after a signal, which also ends what reads, the command saves and ends
            raise  # noqa: PLE0704, called while the BrokenPipeError is handled


def make_console() -> Console:
    """Returns a console for standard output, wide enough for the tables if it is not a terminal."""
    console = _Console(markup=False)  # paths and names may hold what Rich takes for markup: `lr[red]`, `[/]`
    return console if console.is_terminal else _Console(width=120, markup=False)


def size_text(count: float | None) -> str:
    """Returns a number of bytes as `1.25 GiB` or `3.4 MiB`; empty for None."""
    if count is None:
        return ""
    return f"{count / 2**30:,.2f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:,.1f} MiB"


def hours_and_minutes(seconds: float) -> str:
    """Returns a duration as `1h 02m`, `3m 05s` or `12s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def _summary(metrics: Mapping[str, float]) -> dict[str, str]:
    """Returns the rows of the display, label -> text, for the present metrics (names as in `metrics.jsonl`)."""

    def number(name: str, digits: int = 3) -> str:
        value = metrics.get(name)
        return "" if value is None else f"{value:,.{digits}f}"

    def group(prefix: str, digits: int) -> str:
        whole = ("reward/total", "reward/first")
        names = [name for name in metrics if name.startswith(f"{prefix}/") and name not in whole]
        return "  ".join(f"{name.removeprefix(f'{prefix}/')} {metrics[name]:.{digits}f}" for name in names)

    used, peak = (size_text(metrics.get(f"device/{name}")) for name in ("memory_bytes", "memory_peak_bytes"))
    rows = {
        "reward": " -> ".join(dict.fromkeys(filter(None, (number("reward/first"), number("reward/total"))))),
        "loss": number("loss/supervised"),
        "validation loss": number("validation/loss"),
        "by term": group("reward", 3),
        "searches per episode": number("episode/searches"),
        "episodes finished": number("episode/finished"),
        "tokens per second": number("tokens_per_second/sampled", 0) or number("tokens_per_second/trained", 0),
        "seconds by phase": group("seconds", 2),
        "device memory": used and f"{used}, peak {peak}",
        "retrieval failures": number("episode/retrieval_failures") if metrics.get("episode/retrieval_failures") else "",
        "skipped updates": number("update/skipped", 0) if metrics.get("update/skipped") else "",
    }
    return {label: text for label, text in rows.items() if text}


class CompilationWatch:
    """Follows the compilations of all threads while its block runs; `seconds` is the total of the finished ones."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running: dict[int, tuple[str, float]] = {}

    def __enter__(self) -> "CompilationWatch":
        from jax import monitoring  # here, because displays are also made without JAX

        monitoring.register_event_duration_secs_listener(self._record)
        return self

    def __exit__(self, *exception: object) -> None:
        from jax import monitoring

        monitoring.unregister_event_duration_listener(self._record)

    def current(self) -> str:
        """Names the longest running compilation, if it has taken a second."""
        running = list(self._running.values())  # a copy: other threads begin and end compilations
        program, began = min(running, key=lambda row: row[1], default=("", math.inf))
        taken = time.monotonic() - began
        return f"compiling {program} for {hours_and_minutes(taken)}" if taken >= SECONDS_UNTIL_COMPILING_SHOWS else ""

    def _record(self, event: str, seconds: float, **about: Any) -> None:
        thread = threading.get_ident()
        if event == LOWERED:
            name = str(about.get("fun_name", "a program"))
            self._running[thread] = name.removeprefix("jit(").removesuffix(")"), time.monotonic()
        elif event == COMPILED:
            self._running.pop(thread, None)
            self.seconds += seconds


class Activity(logging.Handler):
    """Says on standard error what the command does, while its block runs and no progress is displayed.

    What it does are the messages of the logger `lcrag.activity`, such as "embedding passage 240 of 960", or a running
    compilation; an empty message says that the command now prints itself. A terminal shows one line, which is renewed
    and disappears; otherwise there is a line every ten seconds, if there is something new to say.
    """

    def __init__(self) -> None:
        super().__init__()
        self.compilations: CompilationWatch | None = None  # None before JAX is imported
        self._text, self._shown, self._said, self._printed = "starting", False, "", time.monotonic()
        self._ended = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self._text = record.getMessage()
        if not self._text:
            self.clear()

    def watch_compilations(self) -> None:
        """Says from now on what is being compiled, too; for this JAX must have been imported."""
        self.compilations = CompilationWatch().__enter__()

    def clear(self) -> None:
        """Removes the renewed line."""
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError):
            if self._shown:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False

    def _show(self) -> None:
        text, now = self._text, time.monotonic()
        if self.compilations is not None:
            text = self.compilations.current() or text
        if _displays:
            self.clear()
            self._printed = now
        elif text and self._text and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            with self.lock or contextlib.nullcontext():
                width = shutil.get_terminal_size().columns - 1
                print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
                self._shown = True
        elif text and text != self._said and now - self._printed >= SECONDS_PER_LINE:
            self._said, self._printed = text, now
            print(f"lcrag: {text}", file=sys.stderr, flush=True)

    def __enter__(self) -> "Activity":
        logger = logging.getLogger("lcrag.activity")
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        logger.propagate = False

        def show() -> None:
            with contextlib.suppress(OSError):  # nobody reads them
                while not self._ended.wait(0.5):
                    self._show()

        threading.Thread(target=show, name="activity", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self.clear()
        logging.getLogger("lcrag.activity").removeHandler(self)
        if self.compilations is not None:
            self.compilations.__exit__()


_displays: list["ProgressDisplay"] = []  # those that are shown now


class ProgressDisplay:
    """Progress of a command, which `progress_display` shows."""

    def __init__(
        self, title: str, total: float, first: float, unit: str, tokens: Callable[[], int] | None, console: Console
    ):
        self._title, self._total, self._first, self._done, self._unit = title, total, first, first, unit
        self._console, self.compilations = console, CompilationWatch()
        self._started = self.printed = time.monotonic()
        self._metrics: Mapping[str, float] = {}
        self._first_reward: Mapping[str, float] = {}  # that of the first step of this process
        self._estimated = self._started, 0.0  # when the time left was estimated, in seconds; 0: not yet
        self._phase = self._note = ""
        self._count_tokens, self._rate = tokens, 0.0
        self._counted = self._started, tokens() if tokens else 0
        texts = {name: TextColumn(f"{{task.fields[{name}]}}", markup=False) for name in ("count", "left")}
        title_column = TextColumn("{task.description}", style="bold", markup=False)
        self._progress = Progress(title_column, BarColumn(), texts["count"], texts["left"])
        self._task = self._progress.add_task(title, total=total, completed=int(first), count="", left="")

    def update(self, done: float, metrics: Mapping[str, float] | None = None, *, note: str = "") -> None:
        """Shows the progress, with the metrics of a finished step (names as in `metrics.jsonl`) or a note."""
        now, new = time.monotonic(), done - self._first
        self._done, self._note = done, note
        # The first amounts mislead: those of many concurrent questions come late, and the first step makes ready.
        if new > 0 and new >= min(MIN_STEPS if self._unit == "step" else MIN_SHARE * self._total, self._total - done):
            # Without compilations, which happen only once.
            worked = max(0.0, now - self._started - self.compilations.seconds)
            self._estimated = now, worked / new * (self._total - done)
        if metrics is not None:
            first = {"reward/first": metrics["reward/total"]} if "reward/total" in metrics else {}
            self._first_reward = self._first_reward or first
            self._metrics = {**metrics, **self._first_reward}
            if not self._console.is_interactive:
                parts = [f"{label} {text}" for label, text in _summary(self._metrics).items()]
                self.say("; ".join(filter(None, [self._count(), *parts, self._left()])))

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """Shows the phase of the current step and its progress."""
        if self._count_tokens is not None and not self._phase.startswith(name):  # another phase has another rate
            self._counted, self._rate = (time.monotonic(), self._count_tokens()), 0.0
        self._phase = f"{name} {done:,}/{total:,} episodes" if total else name

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self.printed = time.monotonic()
        self._console.print(text, highlight=False, soft_wrap=True)

    def line(self) -> str:
        """Returns the plain line: progress, phase, tokens per second, a running compilation, and the time left."""
        return f"{self._title}: {'; '.join(filter(None, (self._count(), *self._now(), self._left())))}"

    def _count(self) -> str:
        """Returns how much is done, as a number: steps have names from 0, in `metrics.jsonl` and in plots."""
        return f"{self._done:.1f} %" if self._unit == "%" else f"{self._done:,.0f}/{self._total:,.0f} {self._unit}s"

    def _now(self) -> Iterator[str]:
        yield self._phase
        yield self._note
        if self._count_tokens is not None:
            now, (then, counted) = time.monotonic(), self._counted
            if now - then >= SECONDS_PER_LINE / 2:  # otherwise the rate of shortly before is shown again
                self._counted = now, self._count_tokens()
                self._rate = max(0, self._counted[1] - counted) / (now - then)
            yield f"{self._rate:,.0f} tokens/s" if self._rate else ""
        yield self.compilations.current()

    def _left(self) -> str:
        """Returns the time left, which only a further step estimates again: it never rises while one runs."""
        left = self._estimated[1] - (time.monotonic() - self._estimated[0])
        return f"{hours_and_minutes(left)} left" if left >= 1 and self._done < self._total else ""

    def __rich__(self) -> Group:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        now = "; ".join(filter(None, self._now()))
        for label, text in (*_summary(self._metrics).items(), *([("now", now)] if now else [])):
            table.add_row(label, text)
        self._progress.update(self._task, completed=self._done, count=self._count(), left=self._left())
        return Group(self._progress, table)


@contextlib.contextmanager
def progress_display(
    title: str,
    total: float,
    *,
    first: float = 0,
    unit: str = "step",
    tokens: Callable[[], int] | None = None,
    transient: bool = False,
    console: Console | None = None,
) -> Iterator[ProgressDisplay]:
    """Shows progress while the block runs: a live table on a terminal, otherwise a plain line every ten seconds.

    Args:
      first: Amount that was done before, if a run is continued.
      unit: Unit of the amounts; "%" for a share.
      tokens: Returns the number of tokens so far, for the rate.
      transient: Whether the live display disappears at the end.
    """
    console = console or _Console(markup=False)
    display = ProgressDisplay(title, total, first, unit, tokens, console)
    ended = threading.Event()

    def print_lines() -> None:
        with contextlib.suppress(OSError):  # nobody reads them, or the disk is full: the command's next line says so
            while not ended.wait(SECONDS_PER_LINE / 10):
                if time.monotonic() - display.printed >= SECONDS_PER_LINE:
                    display.say(display.line())

    with contextlib.ExitStack() as entered:
        entered.enter_context(display.compilations)
        _displays.append(display)
        entered.callback(_displays.remove, display)
        logging.getLogger("lcrag.activity").info("")  # what follows prints itself
        if console.is_interactive:
            with Live(display, console=console, refresh_per_second=4, transient=transient):
                yield display
            return
        # A thread prints the lines, also while the command computes or compiles.
        printing = threading.Thread(target=print_lines, name="progress", daemon=True)
        printing.start()
        try:
            yield display
        finally:
            ended.set()
            printing.join()


class EpisodePrinter:
    """Prints the texts of an episode as they come, in colour by author; without colours, with headings."""

    def __init__(self, console: Console):
        self._console, self._coloured = console, console.is_terminal and not console.no_color
        self._previous: str | None = None

    def add(self, by: str, text: str) -> None:
        """Prints a text of an author, "policy" or "environment"."""
        if not self._coloured and by != self._previous:
            self._console.print(f"\n[{by}]", markup=False, highlight=False)
        style = PROVENANCE_STYLES[by] if self._coloured else ""
        self._console.print(Text(text, style=style), end="", soft_wrap=True)
        self._previous = by

    def finish(self) -> None:
        """Ends the last line, and explains the colours."""
        self._console.print()
        if self._coloured:
            self._console.print(Text.assemble(*((f"{by}  ", style) for by, style in PROVENANCE_STYLES.items())))

"""Progress of a run in the terminal, and printed episodes."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

PROVENANCE_STYLES = {"policy": "bold green", "environment": "dim cyan"}


def make_console() -> Console:
    """Returns a console for standard output, wide enough for the tables if it is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def hours_and_minutes(seconds: float) -> str:
    """Returns a duration as `1h 02m`, `3m 05s` or `12s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def _summary(metrics: Mapping[str, float]) -> dict[str, str]:
    """The rows of the display, label -> text, of the metrics that are present (names as in `metrics.jsonl`)."""

    def of(name: str, digits: int = 3) -> str:
        value = metrics.get(name)
        return "" if value is None else f"{value:,.{digits}f}"

    def group(prefix: str, digits: int) -> str:
        names = [name for name in metrics if name.startswith(f"{prefix}/") and name != "reward/total"]
        return "  ".join(f"{name.removeprefix(f'{prefix}/')} {metrics[name]:.{digits}f}" for name in names)

    rows = {
        "reward": of("reward/total"),
        "loss": of("loss/supervised"),
        "validation loss": of("validation/loss"),
        "by term": group("reward", 3),
        "searches per episode": of("episode/searches"),
        "episodes finished": of("episode/finished"),
        "tokens per second": of("tokens_per_second/sampled", 0) or of("tokens_per_second/trained", 0),
        "slot occupancy": of("slots/occupancy"),
        "seconds by phase": group("seconds", 2),
        "retrieval failures": of("episode/retrieval_failures") if metrics.get("episode/retrieval_failures") else "",
        "skipped updates": of("update/skipped", 0) if metrics.get("update/skipped") else "",
    }
    return {label: text for label, text in rows.items() if text}


class TrainingDisplay:
    """Progress of a run: a live table on a terminal, one plain line a step elsewhere; made by `training_display`."""

    def __init__(self, steps: int, first_step: int, console: Console, title: str):
        self._steps, self._first_step, self._console = steps, first_step, console
        self._started = time.monotonic()
        self._metrics: Mapping[str, float] = {}
        self._phase = ""
        self._progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}")
        )
        self._task = self._progress.add_task(title, total=steps, completed=first_step, left="")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows that `step` steps are done, with the metrics of the last one (names as in `metrics.jsonl`)."""
        self._metrics = metrics
        done = step - self._first_step
        seconds_left = (time.monotonic() - self._started) / done * (self._steps - step) if done > 0 else None
        left = [] if seconds_left is None else [f"{hours_and_minutes(seconds_left)} left"]
        if self._console.is_terminal:
            self._progress.update(self._task, completed=step, left="".join(left))
        else:
            parts = [f"{label} {text}" for label, text in _summary(metrics).items()]
            self.say("; ".join([f"step {step}/{self._steps}", *parts, *left]))

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """Shows the phase of the current step and its progress."""
        self._phase = f"{name} {done}/{total}" if total else name

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def __rich__(self) -> Group:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        for label, text in _summary(self._metrics).items():
            table.add_row(label, text)
        if self._phase:
            table.add_row("now", self._phase)
        return Group(self._progress, table)


@contextlib.contextmanager
def training_display(
    steps: int, *, first_step: int = 0, title: str = "train", console: Console | None = None
) -> Iterator[TrainingDisplay]:
    """Shows progress while the block runs.

    Args:
      steps: Number of steps of the whole run.
      first_step: Number of steps done before, when a run is continued.
      title: Title of the progress bar.
      console: Where to print; None: standard output.
    """
    console = console or Console()
    display = TrainingDisplay(steps, first_step, console, title)
    with Live(display, console=console, refresh_per_second=4) if console.is_terminal else contextlib.nullcontext():
        yield display


def print_episode(turns: Iterable[tuple[str, str]], console: Console | None = None) -> None:
    """Prints an episode in colour by author; without colours, with a heading at each change of author.

    Args:
      turns: (author, text) in order; the author is "policy" or "environment".
      console: Where to print; None: standard output.
    """
    console = console or Console()
    coloured = console.is_terminal and not console.no_color
    previous = None
    for by, text in turns:
        if not coloured and by != previous:
            console.print(f"\n[{by}]", markup=False, highlight=False)
        console.print(Text(text, style=PROVENANCE_STYLES[by] if coloured else ""), end="", soft_wrap=True)
        previous = by
    console.print()
    if coloured:
        console.print(Text.assemble(*((f"{by}  ", style) for by, style in PROVENANCE_STYLES.items())))

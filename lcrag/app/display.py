"""What a person sees while a run goes on, and how an episode is printed."""

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
    """Standard output; where it is no terminal, as wide as the tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def hours_and_minutes(seconds: float) -> str:
    """A duration as `1h 02m`, `3m 05s` or `12s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def group_of(metrics: Mapping[str, float], prefix: str) -> dict[str, float]:
    """The metrics whose names begin with `prefix/`, by the rest of their names."""
    return {name.removeprefix(f"{prefix}/"): value for name, value in metrics.items() if name.startswith(f"{prefix}/")}


def summary(metrics: Mapping[str, float]) -> dict[str, str]:
    """The rows of the display, label to text; names of metrics are those of `metrics.jsonl`, of which some may lack."""
    rewards = group_of(metrics, "reward")
    phases = group_of(metrics, "seconds")
    rows = {
        "reward": _number(rewards.pop("total", None)),
        "loss": _number(metrics.get("loss/supervised")),
        "validation loss": _number(metrics.get("validation/loss")),
        "by term": "  ".join(f"{name} {value:.3f}" for name, value in rewards.items()),
        "searches per episode": _number(metrics.get("episode/searches")),
        "episodes finished": _number(metrics.get("episode/finished")),
        "tokens per second": _number(_tokens_per_second(metrics), digits=0),
        "slot occupancy": _number(metrics.get("slots/occupancy")),
        "seconds by phase": "  ".join(f"{name} {value:.2f}" for name, value in phases.items()),
        "retrieval failures": _number(metrics.get("episode/retrieval_failures") or None),
        "skipped updates": _number(metrics.get("update/skipped") or None, digits=0),
    }
    return {label: text for label, text in rows.items() if text}


def _tokens_per_second(metrics: Mapping[str, float]) -> float | None:
    """Of reinforcement learning those sampled, of fine-tuning those trained."""
    return metrics.get("tokens_per_second/sampled", metrics.get("tokens_per_second/trained"))


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def step_line(step: int, steps: int, metrics: Mapping[str, float], seconds_left: float | None) -> str:
    """One line for logs and pipes: the step, what it measured and how long the rest will take."""
    parts = [f"{label} {text}" for label, text in summary(metrics).items()]
    left = [] if seconds_left is None else [f"{hours_and_minutes(seconds_left)} left"]
    return "; ".join([f"step {step}/{steps}", *parts, *left])


class TrainingDisplay:
    """Progress of a run; a live table on a terminal, one plain line a step elsewhere. Made by `training_display`."""

    def __init__(self, steps: int, first_step: int, console: Console, title: str):
        self._steps, self._first_step, self._console, self._title = steps, first_step, console, title
        self._started = time.monotonic()
        self._metrics: Mapping[str, float] = {}
        self._phase = ""
        self._progress = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}")
        )
        self._task = self._progress.add_task(title, total=steps, completed=first_step, left="")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows that `step` steps are done, and the numbers of the last one (names as in `metrics.jsonl`)."""
        self._metrics = metrics
        seconds_left = self._seconds_left(step)
        if self._console.is_terminal:
            left = "" if seconds_left is None else f"{hours_and_minutes(seconds_left)} left"
            self._progress.update(self._task, completed=step, left=left)
        else:
            self._console.print(step_line(step, self._steps, metrics, seconds_left), soft_wrap=True, highlight=False)

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """Shows what the current step is doing, and how far it is with that."""
        self._phase = f"{name} {done}/{total}" if total else name

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def _seconds_left(self, step: int) -> float | None:
        done = step - self._first_step
        return (time.monotonic() - self._started) / done * (self._steps - step) if done > 0 else None

    def __rich__(self) -> Group:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        for label, text in summary(self._metrics).items():
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
      steps: How many steps the whole run has.
      first_step: How many were done before, when a run is continued.
      title: What to call it.
      console: Where to print; None: standard output.
    """
    display = TrainingDisplay(steps, first_step, console or Console(), title)
    if not display._console.is_terminal:
        yield display
        return
    with Live(display, console=display._console, refresh_per_second=4):
        yield display


def print_episode(turns: Iterable[tuple[str, str]], console: Console | None = None) -> None:
    """Prints an episode in colour by who wrote it; without colours a heading says so at each change.

    Args:
      turns: (who, text) in order, who being "policy" or "environment".
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

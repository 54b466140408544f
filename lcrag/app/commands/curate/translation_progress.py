"""How far `lcrag curate translations` is, on a line now and then."""

import time

from rich.console import Console

from lcrag.app.display import hours_and_minutes

SECONDS_PER_LINE = 10.0


class FillingProgress:
    """Counts attempts, and prints how many places are filled and how long the rest will take.

    The estimate begins with the first line, since what an earlier call was answered comes at once.

    Args:
      places: How many there are.
      console: Where to print.
    """

    def __init__(self, places: int, console: Console):
        self._places, self._console = places, console
        self._filled, self._tried = 0, 0
        self._printed = time.monotonic()
        self._first: tuple[float, int] | None = None

    def saw(self, filled: bool) -> None:
        """An attempt more, and whether it filled its place."""
        self._filled += filled
        self._tried += 1
        now = time.monotonic()
        if now - self._printed >= SECONDS_PER_LINE:
            self._printed = now
            self._console.print(self._line(now), highlight=False, soft_wrap=True)

    def _line(self, now: float) -> str:
        if self._first is None:
            self._first = now, self._filled
        then, before = self._first
        seconds = (now - then) / (self._filled - before) * (self._places - self._filled) if self._filled > before else 0
        left = f"; {hours_and_minutes(seconds)} left" if seconds else ""
        return f"{self._filled:,} of {self._places:,} places filled, {self._tried:,} sources tried{left}"

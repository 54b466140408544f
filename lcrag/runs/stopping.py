"""SIGTERM (schedulers, preemption) and Ctrl-C: they end a command at once, or between the steps of a run."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_SECONDS = 2.0  # how long a stopped command waits for a thread, which may be compiling or searching
SHOW_CURSOR = "\x1b[?25h"


class Stopped(KeyboardInterrupt):
    """Raised when a signal ends the command.

    Attributes:
      number: The signal.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_status(interruption: KeyboardInterrupt) -> int:
    """Returns the exit status that shells expect after a signal: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (interruption.number if isinstance(interruption, Stopped) else signal.SIGINT)


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Handles the signals within the block, except those that the process was started to ignore (`nohup`, `&`).

    Python handles signals in the main thread only: in other threads the block runs without the handler.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    main = threading.current_thread() is threading.main_thread()
    changed = {number: old for number, old in before.items() if main and old not in (signal.SIG_IGN, None)}
    try:
        for number in changed:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in changed.items():
            signal.signal(number, old)


def stopped_by_signals() -> contextlib.AbstractContextManager[None]:
    """Makes SIGTERM raise `Stopped` within the block, as Ctrl-C raises KeyboardInterrupt by default."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    return handled(stop, signal.SIGTERM)


def end_process(status: int) -> None:
    """Ends the process at once, without waiting for threads that still search or compile.

    It flushes the output first. The caller must have saved its results.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if stream.isatty():
                stream.write(SHOW_CURSOR)  # a live display may have hidden it
            stream.flush()
    os._exit(status)


class HeldSignals:
    """Defers signals within its block; a Ctrl-C after another signal ends the command at once.

    Attributes:
      number: The first signal, of this process or of another one that told it; 0: none.
    """

    def __init__(self) -> None:
        self.number, self._let_through = 0, False
        self._handled = handled(self._signalled, *SIGNALS)

    def __enter__(self) -> "HeldSignals":
        self._handled.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._handled.__exit__(None, None, None)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        impatient = bool(self.number) and number == signal.SIGINT
        self.number = self.number or number
        if impatient:
            raise KeyboardInterrupt
        if self._let_through:
            self.raise_held()

    def raise_held(self) -> None:
        """Raises `Stopped` if a signal came."""
        if self.number:
            self._let_through = False  # shutdown must not be interrupted
            raise Stopped(self.number)

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Lets a signal, including a deferred one, end the block at any point by `Stopped`."""
        self._let_through = True
        try:
            self.raise_held()
            yield
        finally:
            self._let_through = False

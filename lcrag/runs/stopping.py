"""Handling of SIGTERM (schedulers, preemption) and Ctrl-C: they end a command at once or at a point that it allows."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_SECONDS = 2.0
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
def stopped_by_signals() -> Iterator[None]:
    """Makes SIGTERM raise `Stopped` within the block, as Ctrl-C raises KeyboardInterrupt by default."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handled(stop, (signal.SIGTERM,)):
        yield


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


@contextlib.contextmanager
def answered_in_time(rescue: Callable[[int], None]) -> Iterator[None]:
    """Calls `rescue(number)` on another thread if a signal does not end the block within `PATIENCE_SECONDS`.

    Python handles signals between two of its instructions, and so not during a compilation in the main thread, which
    may take minutes. In other threads, which handle no signals, the block runs without this protection.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    left = threading.Event()

    def watch() -> None:
        while numbers := os.read(reader, 1):  # empty: the block has ended
            if numbers[0] in SIGNALS and not left.wait(PATIENCE_SECONDS):
                rescue(numbers[0])

    watching = threading.Thread(target=watch, name="signals", daemon=True)
    watching.start()
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        os.close(writer)
        watching.join()
        os.close(reader)


@contextlib.contextmanager
def killed_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM end the process at once within the block, without Python's shutdown.

    It is for blocks with threads that wait for input, because Python's shutdown would wait for them.
    """
    with _handled(signal.SIG_DFL, (signal.SIGTERM,)):
        yield


@contextlib.contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, numbers: Sequence[int] = SIGNALS
) -> Iterator[None]:
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


class HeldSignals:
    """Defers signals within its block; a Ctrl-C after another signal ends the command at once.

    Attributes:
      number: The first signal received by this process or, as reported by `came`, by another one; 0: none.
    """

    def __init__(self) -> None:
        self.number, self._let_through, self._handled = 0, False, contextlib.ExitStack()

    def __enter__(self) -> "HeldSignals":
        self._handled.enter_context(_handled(self._signalled))
        return self

    def __exit__(self, *exception: object) -> None:
        self._handled.close()

    def came(self, number: int) -> None:
        """Records a signal that ends all processes and that any of them may have received."""
        self.number = number

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        impatient = bool(self.number) and number == signal.SIGINT
        self.number = self.number or number
        if impatient:
            raise KeyboardInterrupt
        if self._let_through:
            self.raise_held()

    def raise_held(self) -> None:
        """Raises an exception for the deferred signal, if there is one.

        Raises:
          Stopped: a signal came.
        """
        if self.number:
            self._let_through = False  # shutdown must not be interrupted
            raise Stopped(self.number)

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Lets a signal, including a deferred one, end the block at any point.

        Raises:
          Stopped: a signal came.
        """
        self._let_through = True
        try:
            self.raise_held()
            yield
        finally:
            self._let_through = False

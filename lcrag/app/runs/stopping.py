"""What SIGTERM (of schedulers and preempted machines) and Ctrl-C do: end a command at once, or where it says it can."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal ends the command.

    Attributes:
      number: The signal.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_status(interruption: KeyboardInterrupt) -> int:
    """What shells expect of a command that a signal ended: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + (interruption.number if isinstance(interruption, Stopped) else signal.SIGINT)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Lets SIGTERM raise `Stopped` while the block runs, as Ctrl-C raises KeyboardInterrupt by itself."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with _handled(stop, (signal.SIGTERM,)):
        yield


@contextlib.contextmanager
def killed_by_sigterm() -> Iterator[None]:
    """Lets SIGTERM end the process at once while the block runs, without Python: for blocks that leave threads behind
    which wait for input, and which the end of Python would wait for."""
    with _handled(signal.SIG_DFL, (signal.SIGTERM,)):
        yield


@contextlib.contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers, numbers: Sequence[int] = SIGNALS
) -> Iterator[None]:
    """Handles the signals while the block runs, but for those that the process was started to ignore (`nohup`, `&`).

    Only a main thread can: in any other the block runs without.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    mine = threading.current_thread() is threading.main_thread()
    changed = {number: old for number, old in before.items() if mine and old not in (signal.SIG_IGN, None)}
    try:
        for number in changed:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in changed.items():
            signal.signal(number, old)


class HeldSignals:
    """Holds the signals back while its block runs; a Ctrl-C behind another signal ends the command at once.

    Attributes:
      number: The first signal that came, or what another process was told; 0: none did.
    """

    def __init__(self) -> None:
        self._number, self._let_through, self._handled = 0, False, contextlib.ExitStack()

    @property
    def number(self) -> int:
        return self._number

    def __enter__(self) -> "HeldSignals":
        self._handled.enter_context(_handled(self._signalled))
        return self

    def __exit__(self, *exception: object) -> None:
        self._handled.close()

    def came(self, number: int) -> None:
        """Holds the signal that all of several processes end by, which may have come to another one."""
        self._number = number

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        impatient = bool(self._number) and number == signal.SIGINT
        self._number = self._number or number
        if impatient:
            raise KeyboardInterrupt
        if self._let_through:
            self.raise_held()

    def raise_held(self) -> None:
        """Raises what came, if anything did.

        Raises:
          Stopped: it did.
        """
        if self._number:
            self._let_through = False  # what follows is the end, which is not to be interrupted
            raise Stopped(self._number)

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Lets a signal, one that was held back too, end the block wherever it is.

        Raises:
          Stopped: one came.
        """
        self._let_through = True
        try:
            self.raise_held()
            yield
        finally:
            self._let_through = False

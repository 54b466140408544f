"""SIGTERM and Ctrl-C: at once, held back, let through; nothing of it outlives the block."""

import signal
import threading

import pytest

from lcrag.app.runs.stopping import SIGNALS, HeldSignals, Stopped, exit_status, stopped_by_signals


@pytest.fixture(autouse=True)
def nothing_stays():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_sigterm_ends_a_block_at_once_as_ctrl_c_does():
    with pytest.raises(Stopped) as stopped, stopped_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert exit_status(stopped.value) == 143 and str(stopped.value) == "SIGTERM"
    with pytest.raises(KeyboardInterrupt) as interrupted, stopped_by_signals():
        signal.raise_signal(signal.SIGINT)
    assert exit_status(interrupted.value) == 130


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_held_back(number):
    done = []
    with HeldSignals() as held:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        done.append(held.number)
    assert done == [number]
    with pytest.raises(Stopped) as stopped:
        held.raise_held()
    assert exit_status(stopped.value) == 128 + number


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_let_through_where_it_may_be(number):
    done = []
    with HeldSignals() as held:
        with held.let_through():
            done.append("undisturbed")
        with pytest.raises(Stopped), held.let_through():
            signal.raise_signal(number)
            done.append("never")
        signal.raise_signal(signal.SIGTERM)  # what follows is not disturbed
    assert done == ["undisturbed"] and held.number == number


def test_a_signal_that_was_held_back_ends_the_next_block_before_it_begins():
    with HeldSignals() as held:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped), held.let_through():
            raise AssertionError


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_behind_another_signal_waits_for_nothing(first):
    with HeldSignals():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            signal.raise_signal(signal.SIGINT)
    assert not isinstance(interrupted.value, Stopped)


def test_a_process_that_was_started_to_ignore_a_signal_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldSignals() as held:
            signal.raise_signal(signal.SIGINT)
        assert not held.number and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_runs_its_block_without():
    entered = []

    def work():
        with stopped_by_signals(), HeldSignals() as held:
            entered.append(held.number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [0]

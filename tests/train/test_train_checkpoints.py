"""Which states are saved: those that are due, and where a signal comes the last finished one."""

import signal

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from lcrag.learning.checkpoints import Checkpoints
from lcrag.runs.stopping import Stopped
from lcrag.train.checkpoints import StepCheckpoints


class NotedCheckpoints(Checkpoints):
    def __init__(self):
        self.noted = []

    def save(self, step, state, validation_loss=None):
        self.noted.append((step, state, validation_loss))

    def wait(self):
        self.noted.append("complete")


@pytest.fixture
def checkpoints():
    return NotedCheckpoints()


def steps(checkpoints, first=0):
    return StepCheckpoints(checkpoints, lambda: f"state {len(checkpoints.noted)}", first)


def test_what_is_due_is_saved_and_complete_at_the_end(checkpoints):
    with steps(checkpoints, 4) as saved:
        saved.finish(4, save=False)
        saved.finish(5, save=True, validation_loss=0.5)
    assert checkpoints.noted == [(6, "state 0", 0.5), "complete"]


def test_a_signal_within_a_step_waits_for_its_end(checkpoints):
    with pytest.raises(Stopped), steps(checkpoints) as saved:
        saved.finish(0, save=True)
        signal.raise_signal(signal.SIGTERM)
        saved.finish(1, save=False)
        raise AssertionError
    assert checkpoints.noted == [(1, "state 0", None), (2, "state 1", None), "complete"]


def test_a_signal_within_what_may_be_abandoned_saves_the_step_before(checkpoints):
    with pytest.raises(Stopped), steps(checkpoints) as saved:
        saved.finish(0, save=False)
        with saved.interruptible():
            signal.raise_signal(signal.SIGINT)
            raise AssertionError
    assert checkpoints.noted == [(1, "state 0", None), "complete"]


@pytest.mark.parametrize("first", [0, 7])
def test_nothing_is_saved_twice_nor_before_a_step_is_finished(checkpoints, first):
    with pytest.raises(Stopped), steps(checkpoints, first) as saved, saved.interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert checkpoints.noted == ["complete"]


def test_a_signal_after_the_last_step_is_not_lost(checkpoints):
    with pytest.raises(Stopped), steps(checkpoints) as saved:
        saved.finish(0, save=True)
        signal.raise_signal(signal.SIGTERM)
    assert checkpoints.noted == [(1, "state 0", None), "complete"]


def test_an_impatient_end_and_a_mistake_save_nothing(checkpoints):
    for ending in (KeyboardInterrupt, ValueError):
        with pytest.raises(ending), steps(checkpoints) as saved:
            saved.finish(0, save=False)
            raise ending
    assert not checkpoints.noted


@pytest.fixture
def agreements(monkeypatch):
    """Two processes; what this one says, and while it says it for the first time SIGTERM comes to it."""
    said = []

    def gathered(number):
        said.append(int(number))
        if len(said) == 1:
            signal.raise_signal(signal.SIGTERM)
        return np.array([number, 0])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", gathered)
    return said


def test_a_signal_that_comes_while_processes_agree_is_known_after_the_next_step(checkpoints, agreements):
    with pytest.raises(Stopped), steps(checkpoints) as saved:
        saved.finish(0, save=False)
        saved.finish(1, save=False)
        raise AssertionError
    assert agreements == [0, signal.SIGTERM]
    assert checkpoints.noted == [(2, "state 0", None), "complete"]


def test_processes_agree_at_the_end_of_the_block_too(checkpoints, agreements):
    with pytest.raises(Stopped), steps(checkpoints) as saved:
        saved.finish(0, save=True)
    assert agreements == [0, signal.SIGTERM]
    assert checkpoints.noted == [(1, "state 0", None), "complete"]


def test_a_signal_to_another_process_ends_this_one_by_the_same(checkpoints, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda number: np.array([number, signal.SIGTERM]))
    with pytest.raises(Stopped) as stopped, steps(checkpoints) as saved:
        saved.finish(0, save=False)
    assert stopped.value.number == signal.SIGTERM
    assert checkpoints.noted == [(1, "state 0", None), "complete"]

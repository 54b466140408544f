"""Which states are saved: those that are due, and where a signal comes the last finished one."""

import signal

import pytest

from lcrag.experiments.finished_steps import FinishedSteps
from lcrag.learning.checkpoints import Checkpoints
from lcrag.runs.stopping import Stopped


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
    return FinishedSteps(checkpoints, lambda: f"state {len(checkpoints.noted)}", first)


def test_what_is_due_is_saved_and_complete_at_the_end(checkpoints):
    with steps(checkpoints, 4) as finished:
        finished.finished(4, save=False)
        finished.finished(5, save=True, validation_loss=0.5)
    assert checkpoints.noted == [(6, "state 0", 0.5), "complete"]


def test_a_signal_within_a_step_waits_for_its_end(checkpoints):
    with pytest.raises(Stopped), steps(checkpoints) as finished:
        finished.finished(0, save=True)
        signal.raise_signal(signal.SIGTERM)
        finished.finished(1, save=False)
        raise AssertionError
    assert checkpoints.noted == [(1, "state 0", None), (2, "state 1", None), "complete"]


def test_a_signal_within_what_may_be_abandoned_saves_the_step_before(checkpoints):
    with pytest.raises(Stopped), steps(checkpoints) as finished:
        finished.finished(0, save=False)
        with finished.abandonable():
            signal.raise_signal(signal.SIGINT)
            raise AssertionError
    assert checkpoints.noted == [(1, "state 0", None), "complete"]


@pytest.mark.parametrize("first", [0, 7])
def test_nothing_is_saved_twice_nor_before_a_step_is_finished(checkpoints, first):
    with pytest.raises(Stopped), steps(checkpoints, first) as finished, finished.abandonable():
        signal.raise_signal(signal.SIGTERM)
    assert checkpoints.noted == ["complete"]


def test_a_signal_behind_the_last_step_is_not_lost(checkpoints):
    with pytest.raises(Stopped), steps(checkpoints) as finished:
        finished.finished(0, save=True)
        signal.raise_signal(signal.SIGTERM)
    assert checkpoints.noted == [(1, "state 0", None), "complete"]


def test_an_impatient_end_and_a_mistake_save_nothing(checkpoints):
    for ending in (KeyboardInterrupt, ValueError):
        with pytest.raises(ending), steps(checkpoints) as finished:
            finished.finished(0, save=False)
            raise ending
    assert not checkpoints.noted

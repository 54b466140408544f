"""Which states are saved: those that are due, and where a signal comes the last finished one."""

import signal

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from lcrag.learning.checkpoints import Checkpoints
from lcrag.runs.processes import Stopped
from lcrag.train.setup import StepCheckpoints


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


def within_a_step(saved):
    saved.finish(7, save=True)
    signal.raise_signal(signal.SIGTERM)
    saved.finish(8, save=False)
    pytest.fail("the step ended the run")


def within_a_rollout(saved):
    saved.finish(7, save=False)
    with saved.interruptible():
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the signal ended the rollout")


def after_the_last_step(saved):
    saved.finish(7, save=True)
    signal.raise_signal(signal.SIGTERM)


def before_any_step(saved):
    with saved.interruptible():
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("call", "kept"),
    [
        (within_a_step, [(8, "state 0", None), (9, "state 1", None)]),
        (within_a_rollout, [(8, "state 0", None)]),
        (after_the_last_step, [(8, "state 0", None)]),
        (before_any_step, []),
    ],
)
def test_a_signal_saves_the_last_finished_step_once(checkpoints, call, kept):
    with pytest.raises(Stopped), steps(checkpoints, first=7) as saved:
        call(saved)
    assert checkpoints.noted == [*kept, "complete"]


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


@pytest.mark.parametrize("last", [0, 1])
def test_a_signal_that_comes_while_processes_agree_is_known_after_the_next_step_or_at_the_end(
    checkpoints, agreements, last
):
    with pytest.raises(Stopped), steps(checkpoints) as saved:
        for step in range(last + 1):
            saved.finish(step, save=step == 0)
    assert agreements == [0, signal.SIGTERM]
    assert checkpoints.noted[-1] == "complete"
    assert [step for step, *_ in checkpoints.noted[:-1]] == list(range(1, last + 2))


def test_a_signal_to_another_process_ends_this_one_by_the_same(checkpoints, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda number: np.array([number, signal.SIGTERM]))
    with pytest.raises(Stopped) as stopped, steps(checkpoints) as saved:
        saved.finish(0, save=False)
    assert stopped.value.number == signal.SIGTERM
    assert checkpoints.noted == [(1, "state 0", None), "complete"]

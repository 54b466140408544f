"""The admission of asynchronous training: its bounds hold and nothing is lost, however long anything takes."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lcrag.train.admission import Admission


@dataclasses.dataclass
class Simulated:
    """A run in which chance says what happens next: groups begin, one finishes, an update starts or ends."""

    admission: Admission
    seed: int
    begun_with: dict = dataclasses.field(default_factory=dict)
    sampling: list = dataclasses.field(default_factory=list)
    learned: list = dataclasses.field(default_factory=list)
    staleness: list = dataclasses.field(default_factory=list)
    updating: list | None = None

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.haste = {name: 10 ** self.random.uniform(-2, 0) for name in ("begin", "finish", "update")}

    def possible(self):
        admission = self.admission
        actions = {self.begin: "begin"} if self._admissible() else {}
        actions |= {self.finish: "finish"} if self.sampling else {}
        if self.updating is not None:
            return actions | {self.end_update: "update"}
        if admission.ready() is not None:
            return actions | {self.start_update: "update"}
        assert actions.keys() & {self.begin} or admission.missing <= len(self.sampling) or not admission.under_way
        return actions

    def _admissible(self):
        admission = self.admission
        return not admission.all_begun and (
            admission._again or admission._next < (admission.version + admission.staleness + 1) * admission.batch
        )

    def begin(self):
        new = self.admission.begin()
        assert not set(new) & (set(self.sampling) | set(self.learned))
        self.sampling += new
        self.begun_with |= dict.fromkeys(new, self.admission.version)
        total = len(self.learned) + len(self.updating or ()) + len(self.admission.under_way)
        assert total <= (self.admission.version + self.admission.staleness + 1) * self.admission.batch

    def finish(self):
        last = self.random.random() < 0.5  # else a straggler may stay for long
        self.admission.finish(self.sampling.pop(-1 if last else self.random.randrange(len(self.sampling))))

    def start_update(self):
        self.updating = self.admission.ready()
        ages = [self.begun_with[group] for group in self.updating]
        waiting = [self.begun_with[group] for group in self.admission._finished - set(self.updating)]
        assert len(self.updating) == self.admission.batch
        assert max(ages) <= min(waiting, default=max(ages))
        self.staleness += [self.admission.version - age for age in ages]
        self.admission.take(self.updating)

    def end_update(self):
        self.learned += self.updating
        self.updating = None
        self.admission.learned()

    def run(self, most=10**6):
        for _ in range(most):
            if not (actions := self.possible()):
                return
            weights = [self.haste[name] for name in actions.values()]
            self.random.choices(list(actions), weights)[0]()


numbers = {"batch": st.integers(1, 4), "staleness": st.integers(0, 4), "steps": st.integers(1, 9)}
runs = given(**numbers, seed=st.integers(0, 2**32), stop=st.integers(0, 60))


@runs
@settings(max_examples=200, deadline=None)
def test_the_bound_holds_and_every_group_is_learned_from_once(batch, staleness, steps, seed, stop):
    run = Simulated(Admission(batch, staleness, batch * steps), seed)
    run.run()
    assert sorted(run.learned) == list(range(batch * steps))
    assert run.admission.version == steps
    assert max(run.staleness) <= staleness


@runs
@settings(max_examples=200, deadline=None)
def test_a_continued_run_learns_from_what_was_under_way_first(batch, staleness, steps, seed, stop):
    """A stop at any point; what the next process knows is what a checkpoint after the last update holds."""
    admission = Admission(batch, staleness, batch * steps)
    before = Simulated(admission, seed)
    before.run(stop)
    if before.updating is not None:
        before.end_update()
    under_way = admission.under_way
    assert len(under_way) <= (staleness + 1) * batch
    resumed = Admission(batch, staleness, batch * steps, version=admission.version, under_way=under_way)
    after = Simulated(resumed, seed)
    assert resumed.under_way == under_way
    after.run()
    assert sorted(before.learned + after.learned) == list(range(batch * steps))
    assert max(after.staleness, default=0) <= staleness


def test_without_staleness_sampling_and_learning_take_turns():
    admission = Admission(2, 0, 6)
    assert admission.begin() == [0, 1]
    assert admission.begin() == []
    admission.finish(1)
    assert admission.ready() is None
    admission.finish(0)
    assert admission.ready() == [0, 1]
    admission.take([0, 1])
    assert admission.begin() == []
    admission.learned()
    assert admission.begin() == [2, 3]


def test_a_batch_waits_for_a_group_that_would_be_too_old_for_the_next():
    admission = Admission(2, 1, 100)
    assert admission.begin() == [0, 1, 2, 3]
    for group in (1, 2, 3):
        admission.finish(group)
    assert admission.ready() == [1, 2]  # group 0 can wait once
    admission.take([1, 2])
    admission.learned()
    assert admission.begin() == [4, 5]
    for group in (4, 5):
        admission.finish(group)
    assert admission.ready() is None
    admission.finish(0)
    assert admission.ready() == [0, 3]


@pytest.mark.parametrize("group", [0, 1, 2])
def test_what_is_not_under_way_cannot_finish(group):
    admission = Admission(1, 1, 100)
    admission.begin()
    for own in (0, 1):
        admission.finish(own)
    with pytest.raises(ValueError, match="not under way"):
        admission.finish(group)

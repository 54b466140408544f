"""Rollouts of a tiny policy, and what they sample."""

import dataclasses
import functools

import jax
import numpy as np
from support import tiny_config, tiny_tokenizer
from support.pretended_collections import PretendedCollections

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Generate, Observe, Outcome, Retrieve, Runner, Turn
from lcrag.policy import Policy, initialise, make_mesh
from lcrag.runs.display import ProgressDisplay
from lcrag.sampling import Sampler
from lcrag.train.method import Method
from lcrag.train.rollout import Lanes, Rollouts


def question(number, language="en"):
    return Question(id=str(number), dataset="d", language=language, text=f"Capital {number}?", answers=("Lima",))


GROUPS = [(question(0), question(0, "fi")), *((question(number),) for number in range(1, 5))]


def record_of(asked, **changes):
    """The record of an episode of three tokens, two of them the policy's."""
    record = EpisodeRecord(
        question=asked,
        prompt="",
        turns=(Turn("policy", ""),),
        tokens=np.zeros(3, np.int32),
        by_policy=np.array([False, True, True]),
        log_probabilities=np.zeros(3, np.float32),
        turn=np.array([-1, 0, 0], np.int32),
        policy_version=0,
        outcome=Outcome(answer="Lima"),
        counts={"searches": 1, "retrieval_failures": 0},
        finished=True,
        episode=0,
    )
    return dataclasses.replace(record, **changes)


def searching(asked, languages):
    yield Observe(asked.text)
    query = yield Generate(stop=(), max_tokens=3)
    (((hit, *_),),) = yield Retrieve((query,), (asked.language,), 1)
    yield Observe(hit.text[:20])
    return Outcome(answer=(yield Generate(stop=(), max_tokens=4)))


def above_group(episodes):
    """The length of an answer compared with its group's."""
    lengths = np.array([float(len(answer)) for answer in episodes.answers])
    means = [lengths[episodes.group_ids == group].mean() for group in episodes.group_ids]
    return {"total": lengths - means, "length": lengths}


def method_of(reward, program=searching):
    return Method(name="m", program=program, reward=reward, samples=2)


def make_rollouts(count, devices=1, reward=above_group, program=searching, **lanes):
    """Lanes of four slots each; one compiled sampler serves those of all tests."""
    slots = lanes.pop("slots", 4 * count)
    sampler = Sampler(slots=slots, context=64, block=4, append_tokens=(16,), append_rows=(slots,))
    config, mesh = tiny_config(layers=1), make_mesh(devices=jax.devices()[:devices])
    policy = Policy("tiny", config, initialise(config, jax.random.key(0), mesh), tiny_tokenizer(), mesh)
    method = method_of(reward, program)
    settings = Lanes(sampler=sampler, runner=functools.partial(Runner), count=count, **lanes)
    return Rollouts(settings, policy, PretendedCollections(), method, seed=3)


class Shown(ProgressDisplay):
    def __init__(self):
        self.phases = []

    def phase(self, *about):
        self.phases.append(about)


def roll_out(rollouts, groups=GROUPS, first=0, *, step=0):
    episodes, taken = rollouts.join(rollouts.sample(groups, first, step=step, display=Shown()))
    rollouts.method.set_advantages(episodes)
    return episodes, taken


def rows(episodes):
    return [each.json() | {"seconds": None} for each in episodes]

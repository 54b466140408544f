"""Episodes that processes hand each other arrive as they were sampled."""

import dataclasses

import numpy as np
from episode_scripts import lcrl_programs, runner, searches_then_answers

from lcrag.episodes.exchange import packed, unpacked
from lcrag.episodes.record import SideCompletion
from lcrag.episodes.requests import Outcome

ARRAYS = ("tokens", "by_policy", "log_probabilities", "turn")


def received(records, more=None):
    return unpacked(packed(records, more), {each.episode: each.question for each in records})


def test_every_field_arrives():
    """Also those that this program leaves empty, lone surrogates and numbers that are not finite."""
    record, other = runner(searches_then_answers).run(lcrl_programs(2), policy_version=4)
    scores = np.where(record.by_policy, np.float32(np.nan), np.float32(0))
    full = dataclasses.replace(
        record,
        log_probabilities=scores,
        outcome=Outcome(answer="\ud800", invalid_actions=1, counts={"plans": 2}, extra={"plan": {"Q1": ["a", "#1"]}}),
        failure="the search failed",
        completions=(SideCompletion(None, "p", "t", 3, "o", 2),),
        opening=("a", "b"),
        system="be brief",
        policy_changes=((2, 5), (7, 6)),
    )
    for sent, again in zip((full, other), received([full, other])[0], strict=True):
        for name in (field.name for field in dataclasses.fields(full)):
            one, two = getattr(sent, name), getattr(again, name)
            if name in ARRAYS:
                assert (one.dtype, one.tobytes()) == (two.dtype, two.tobytes())
            else:
                assert one == two, name


def test_what_comes_with_them_and_no_episode():
    more = {"lane": 3, "rewards": [0.1, float("inf")]}
    assert received([], more) == ([], more)

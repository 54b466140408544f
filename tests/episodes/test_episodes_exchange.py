"""Episodes that processes hand each other arrive as they were sampled."""

import dataclasses
import json

import numpy as np
import pytest
from episode_scripts import fickle, lcrl_programs, runner, searches_then_answers

from lcrag.episodes import episode_json
from lcrag.episodes.exchange import packed, unpacked
from lcrag.episodes.record import SideCompletion
from lcrag.episodes.requests import Outcome

ARRAYS = ("tokens", "by_policy", "log_probabilities", "turn")


def received(records, more=None):
    return unpacked(packed(records, more), {each.episode: each.question for each in records})


@pytest.mark.parametrize("script", [searches_then_answers, fickle])
def test_records_arrive_bit_for_bit(script):
    records = runner(script).run(lcrl_programs(3), policy_version=4)
    again, _ = received(records)
    for record, other in zip(records, again, strict=True):
        assert json.dumps(episode_json(other)) == json.dumps(episode_json(record))
        for name in ARRAYS:
            assert getattr(other, name).dtype == getattr(record, name).dtype
            assert getattr(other, name).tobytes() == getattr(record, name).tobytes()


def test_every_field_arrives():
    """Also those that this program leaves empty, lone surrogates and numbers that are not finite."""
    (record,) = runner(searches_then_answers).run(lcrl_programs(1))
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
    ((again,), _) = received([full])
    for field in dataclasses.fields(full):
        if field.name in ARRAYS:
            np.testing.assert_array_equal(getattr(again, field.name), getattr(full, field.name))
        else:
            assert getattr(again, field.name) == getattr(full, field.name), field.name


def test_what_comes_with_them_and_no_episode():
    more = {"lane": 3, "rewards": [0.1, float("inf")]}
    assert received([], more) == ([], more)

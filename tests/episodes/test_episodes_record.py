"""What an episode leaves behind."""

import json

import numpy as np
import pytest
from episode_scripts import fickle, lcrl_programs, runner

from lcrag.episodes import EpisodeRecord, Outcome, episode_json
from lcrag.episodes.slot_scheduler import Admission, plan_admissions


def test_the_line_of_json():
    (record,) = runner(lambda *_: "<answer>Lima</answer>").run(lcrl_programs(1), policy_version=2)
    line = json.loads(json.dumps(episode_json(record, rewards={"total": np.float32(0.5)}), ensure_ascii=False))
    assert line == {
        "question_id": "0",
        "dataset": "d",
        "language": "ar",
        "group": "d/0",
        "episode": 0,
        "prompt": "Capital of Peru?\n",
        "turns": [{"by": "policy", "text": "<answer>Lima</answer>"}],
        "answer": "Lima",
        "outcome": {
            "answer": "Lima",
            "invalid_actions": 0,
            "extra": {},
            "finished": True,
            "counts": record.counts,
        },
        "rewards": {"total": 0.5},
        "policy_version": 2,
    }


def test_every_episode_can_be_written():
    for record in runner(fickle).run(lcrl_programs(12)):
        assert json.loads(json.dumps(episode_json(record, group=4)))["group"] == 4


def test_arrays_are_equally_long():
    (record,) = runner(fickle).run(lcrl_programs(1))
    fields = {
        name: getattr(record, name) for name in ("question", "prompt", "turns", "tokens", "log_probabilities", "turn")
    }
    with pytest.raises((ValueError, TypeError)):
        EpisodeRecord(
            **fields,
            by_policy=np.zeros(len(record.tokens) + 1, bool),
            policy_version=0,
            outcome=Outcome(answer=None),
            counts={},
            finished=True,
            episode=0,
        )


def test_siblings_enter_with_the_head_of_the_queue():
    assert plan_admissions(["a", "b", "a", "c", "a"], 3) == [Admission(0, (2, 4))]
    assert plan_admissions(["a", "b", "a", "c"], 3) == [Admission(0, (2,)), Admission(1, ())]
    assert plan_admissions(["a", "a", "a"], 2) == [Admission(0, (1,))]
    assert plan_admissions(["a"], 0) == [] == plan_admissions([], 4)

"""Records of episodes, and the rows of `episodes/*.jsonl` that they are written as."""

import dataclasses
import json

import numpy as np
import pytest
from episode_scripts import lcrl_programs, runner, searches_then_answers

from lcrag.episodes import episode_json, token_arrays


def test_the_line_of_json():
    (record,) = runner(lambda *_: "<answer>Lima</answer>").run(lcrl_programs(1), policy_version=2)
    row = episode_json(record, rewards={"total": np.float32(0.5)}, advantage=np.float32(0.25))
    line = json.loads(json.dumps(row, ensure_ascii=False))
    sampled = int(record.by_policy.sum())
    assert line.pop("tokens")["pieces"] == [[-1, len(record.tokens) - sampled], [0, sampled]]
    (wait,) = line.pop("seconds")["waits"]
    assert (wait["turn"], wait["for"], wait["start"] <= wait["end"]) == (0, "generation", True)
    assert line == {
        "question_id": "0",
        "dataset": "d",
        "language": "ar",
        "question": "Capital of Peru?",
        "golds": ["Lima"],
        "group": "d/0",
        "episode": 0,
        "prompt": "Capital of Peru?\n",
        "turns": [{"by": "policy", "text": "<answer>Lima</answer>"}],
        "answer": "Lima",
        "outcome": {"answer": "Lima", "invalid_actions": 0, "extra": {}, "finished": True, "counts": record.counts},
        "rewards": {"total": 0.5},
        "advantage": 0.25,
        "policy_version": 2,
    }
    assert episode_json(record, group=4)["group"] == 4


def test_the_tokens_of_a_row_read_back_bit_for_bit():
    (record,) = runner(searches_then_answers).run(lcrl_programs(1))
    scores = np.random.default_rng(0).integers(0, 2**31, len(record.tokens), np.uint32).view(np.float32)
    scores = np.where(record.by_policy & np.isfinite(scores), -scores, np.float32(0))
    record = dataclasses.replace(record, log_probabilities=scores)
    read = token_arrays(json.loads(json.dumps(episode_json(record))))
    for name, values in read.items():
        assert values.dtype == getattr(record, name).dtype
        assert values.tobytes() == getattr(record, name).tobytes()
    row = episode_json(record)
    assert [(wait["for"], wait["turn"]) for wait in row["seconds"]["waits"]] == [
        *(("generation", 0), ("search", 1), ("generation", 2))
    ]
    row["tokens"]["pieces"][0][1] += 1
    with pytest.raises(ValueError, match="do not add up"):
        token_arrays(row)

"""Episodes as trajectories of ATIF 1.7: real rows of five methods return to the byte, and Harbor's models accept them.

`episodes.jsonl` holds rows of `lcrag train --gin_file=METHOD/atlas.gin --gin.STEPS=1` for lcrl (two), r_search, rag_r1,
globalrag and translate_r1, all begun with the policy `atlas/cold_start`.
"""

import json
import pathlib

import numpy as np
import pytest

from lcrag.commands.formats.atif import row_of, trajectory_of
from lcrag.episodes import token_arrays

LINES = (pathlib.Path(__file__).parent / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
METHODS = ("lcrl", "lcrl again", "r_search", "rag_r1", "globalrag", "translate_r1")
BARE = {
    "dataset": "d",
    "prompt": "Q\n",
    "turns": [{"by": "policy", "text": "a"}, {"by": "environment", "text": "b"}, {"by": "environment", "text": "c"}],
    "advantage": None,
    "tokens": {"ids": [5, 6, 7, 8], "log_probabilities": [-0.5], "pieces": [[-1, 1], [0, 1], [1, 1], [2, 1]]},
}
UNUSUAL = {
    "observations in a row": BARE,
    "a log-probability that is no number": BARE | {"tokens": BARE["tokens"] | {"log_probabilities": [None]}},
    "a turn without tokens": BARE | {"tokens": {"ids": [5, 6], "log_probabilities": [], "pieces": [[-1, 1], [2, 1]]}},
    "no turn": BARE | {"turns": [], "tokens": {"ids": [5], "log_probabilities": [], "pieces": [[-1, 1]]}},
    "an observation first": BARE
    | {"turns": BARE["turns"][::-1], "tokens": BARE["tokens"] | {"log_probabilities": [-0.0]}},
    "a chat, completions and a failure": BARE
    | {"opening": ["Q"], "system": "s", "completions": [{"model": None, "text": "x"}], "failure": "down"},
}


def exported(line):
    trajectory = trajectory_of(json.loads(line), session_id="run", trajectory_id="run/step_0/1")
    return json.loads(json.dumps(trajectory))


@pytest.mark.parametrize("line", LINES, ids=METHODS)
def test_a_row_returns_to_the_byte(line):
    returned = row_of(exported(line))
    assert json.dumps(returned, ensure_ascii=False) == line
    for name, array in token_arrays(json.loads(line)).items():
        np.testing.assert_array_equal(token_arrays(returned)[name], array, strict=True)


@pytest.mark.parametrize("row", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_row_returns(row):
    assert json.dumps(row_of(exported(json.dumps(row)))) == json.dumps(row)


@pytest.mark.parametrize("package", ["atif", "harbor.models.trajectories"])
def test_models_of_the_format_accept_it_and_lose_nothing(package):
    """`atif` copies the models of RFC 0001; Harbor's own need Python 3.12."""
    models = pytest.importorskip(package, reason=f"the package {package.partition('.')[0]} is not installed")
    for line in (*LINES, *map(json.dumps, UNUSUAL.values())):
        trajectory = models.Trajectory.model_validate(exported(line))
        assert row_of(trajectory.model_dump(mode="json", exclude_unset=True)) == json.loads(line)


def test_a_model_of_the_format_rejects_what_it_does_not_know():
    models = pytest.importorskip("atif", reason="the package atif is not installed")
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        models.Trajectory.model_validate(exported(LINES[0]) | {"advantage": 1.0})


def test_steps_hold_what_the_policy_saw_and_wrote():
    row = json.loads(LINES[0])
    prompt, first, second = exported(LINES[0])["steps"][:3]
    ids, lengths = row["tokens"]["ids"], [length for _, length in row["tokens"]["pieces"]]
    [observation] = first["observation"]["results"]
    assert [prompt["source"], first["source"], second["source"]] == ["user", "agent", "agent"]
    assert [prompt["message"], first["message"]] == [row["prompt"], row["turns"][0]["text"]]
    assert observation["content"] == row["turns"][1]["text"]
    assert first["metrics"]["prompt_token_ids"] == ids[: lengths[0]]
    assert first["metrics"]["completion_token_ids"] == ids[lengths[0] : sum(lengths[:2])]
    assert second["metrics"]["prompt_token_ids"] == ids[: sum(lengths[:3])]
    assert second["metrics"]["logprobs"] == row["tokens"]["log_probabilities"][lengths[1] : lengths[1] + lengths[3]]
    assert [prompt["extra"]["mask"], first["extra"]["mask"], observation["extra"]["mask"]] == [0, 1, 0]
    for key in ("policy_version", "advantage", "language"):
        assert first["extra"][key] == row[key]


def test_the_trajectory_names_the_episode_and_keeps_its_scores():
    row, trajectory = json.loads(LINES[0]), exported(LINES[0])
    assert (trajectory["session_id"], trajectory["trajectory_id"]) == ("run", "run/step_0/1")
    for key in ("rewards", "group", "outcome", "golds", "seconds"):
        assert trajectory["extra"][key] == row[key]


def broken(change):
    trajectory = exported(LINES[0])
    change(trajectory)
    return trajectory


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda made: made.update(schema_version="ATIF-v1.4"), "schema_version is 'ATIF-v1.4', not 'ATIF-v1.7'"),
        (lambda made: made.pop("extra"), "was not exported by lcrag"),
        (lambda made: made["steps"].pop(0), "prompt_token_ids of step 2 are not the tokens before it"),
        (lambda made: made["steps"][0]["extra"]["token_ids"].pop(), "prompt_token_ids of step 2"),
        (lambda made: made["steps"].clear(), "first step is not the prompt"),
    ],
)
def test_a_changed_trajectory_is_no_episode(change, problem):
    with pytest.raises(ValueError, match=problem):
        row_of(broken(change))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda row: row.pop("tokens"), "it holds no token ids, as in runs of older versions"),
        (lambda row: row["tokens"]["ids"].pop(), "do not add up"),
        (lambda row: row["tokens"]["log_probabilities"].pop(), "do not add up"),
        (lambda row: row["tokens"]["pieces"].reverse(), "do not add up"),
        (lambda row: row["turns"].pop(), "do not add up"),
        (lambda row: row["turns"][0].update(learn=False), "keys that this version does not know"),
        (lambda row: row["tokens"].update(versions=[]), "keys that this version does not know"),
    ],
)
def test_a_row_whose_tokens_do_not_agree_is_not_exported(change, problem):
    row = json.loads(LINES[0])
    change(row)
    with pytest.raises(ValueError, match=problem):
        exported(json.dumps(row))

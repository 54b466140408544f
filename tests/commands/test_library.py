"""docs/library.md: its loop runs, also on a folder of texts, and its rewards have TRL's signature."""

import re
from pathlib import Path

import numpy as np
import pytest

import lcrag
from lcrag.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "library.md").read_text(encoding="utf-8")
LOOP, TEXTS, REWARDS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# What the block of one's own texts replaces.
WORLD = LOOP[LOOP.index("collections = ") : LOOP.index("sampler = ")]
SIZES = 'STEPS, SAMPLES, LANGUAGES = 3, 2, ("en", "fi", "ja", "ar")'
assert SIZES in LOOP


def test_the_page_s_loop_trains_and_saves_a_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(LOOP.replace(SIZES, 'STEPS, SAMPLES, LANGUAGES = 2, 2, ("en", "fi")'), names)
    assert len(PAGE.splitlines()) <= 80
    assert max((LOOP, TEXTS, REWARDS), key=len) == LOOP
    assert all(line.startswith("from lcrag import ") for line in PAGE.splitlines() if "import " in line)
    assert names["learner"].policy_version == names["sampler"].policy_version == names["STEPS"]
    assert names["metrics"]["sampling_training_gap"] < 1e-3  # the weights were handed over
    saved = lcrag.load_policy(tmp_path / "my-policy")
    before, after = (lcrag.load_policy(name).params["embedding"] for name in ("atlas/cold_start", saved.name))
    assert np.abs(np.asarray(before) - np.asarray(after)).max() > 0
    with pytest.raises(UserError, match="sampled by version 1 of the policy, but version 2 .*set_params"):
        names["learner"].learn([record.trajectory() for record in names["records"]])


def test_the_same_with_a_folder_of_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts" / "cat.md").write_text("# The cat\nIt sleeps all day, and Aino feeds it.\n")
    names = {}
    exec(LOOP.replace(WORLD, TEXTS).replace(SIZES, "STEPS, SAMPLES = 1, 2"), names)
    [[hit]] = names["collections"].search(["Who feeds the cat?"], ["en"], 1)
    assert (hit.title, "Aino" in hit.text) == ("The cat", True)
    assert {record.question.dataset for record in names["records"]} == {"mine"}
    assert names["learner"].policy_version == 1


def test_the_rewards_are_called_as_trl_calls_them():
    names = {}
    exec(REWARDS, names)
    texts = ["<think>?</think><answer> Helsinki </answer>", "<answer>Oslo</answer>", "<answer>Oslo</answer>", "?"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    columns = {"golds": [["Helsinki"]] * 4, "coupling": [0, 0, 0, 7], "trainer_state": None, "log_metric": print}
    for completions in (texts, messages):  # of plain and of conversational prompts
        given = {"prompts": ["?"] * 4, "completions": completions, "completion_ids": [[1]] * 4, **columns}
        assert names["c3_reward"](**given) == [1.0, 0.0, 0.0, 0.0]
        assert names["coupled_reward"](**given) == [1.0, 0.0, 0.0, 0.0]  # the floor of 0 cancels the penalty
    partly = {"prompts": ["?"] * 2, "completions": ["<answer>Helsi</answer>"] * 2, "completion_ids": [[1]] * 2}
    columns = {"golds": [["Helsinki is a city"]] * 2, "coupling": [3, 3]}
    alone, together = names["c3_reward"](**partly, **columns), names["coupled_reward"](**partly, **columns)
    assert all(isinstance(value, float) and 0 < value < before for value, before in zip(together, alone, strict=True))

"""Demonstrations in files: valid and bad rows, and splits by topic."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.demonstrations import read_demonstrations, take_part
from lcrag.data.rows import BadRows
from lcrag.errors import UserError

GOOD = {
    "prompt": "Where is Chad?\n",
    "turns": [
        {"by": "policy", "text": "<search> Chad</search>"},
        {"by": "environment", "text": "<information>\n</information>\n"},
        {"by": "policy", "text": "<answer> in Africa</answer>"},
    ],
}


def write(path, *rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_a_row_says_who_wrote_what(tmp_path):
    pair = {**GOOD, "turns": [{**GOOD["turns"][0], "learn": False}, *GOOD["turns"][1:]]}
    episode = {**GOOD, "question_id": 7, "dataset": "mkqa", "answer": "in Africa", "rewards": {"total": 1.0}}
    rows = read_demonstrations([write(tmp_path / "rows.jsonl", GOOD, "", pair, episode)], BadRows())
    assert [turn.learn for turn in rows[0].turns] == [True, False, True]
    assert [turn.learn for turn in rows[1].turns] == [False, False, True]
    assert [row.line for row in rows] == [1, 3, 4]
    assert rows[0].opening == rows[0].topic == "Where is Chad?\n"
    assert rows[2].topic == "mkqa/7"
    assert rows[0].in_template


def test_an_opening_stands_in_for_a_prompt_in_a_template(tmp_path):
    row = {**GOOD, "prompt": "<user>Where?<model>Passages", "opening": ["Where?", "Passages"]}
    [read] = read_demonstrations([write(tmp_path / "rows.jsonl", row)], BadRows())
    assert read.opening == "Where?"
    assert not read.in_template
    assert (read.turns[0].by, read.turns[0].text, read.turns[0].learn) == ("environment", "Passages", False)


def test_messages_are_turns(tmp_path):
    roles = ("system", "user", "assistant", "tool", "assistant", "user", "assistant")
    messages = [{"role": role, "content": f"{number}"} for number, role in enumerate(roles)]
    messages[2]["weight"] = 0
    [read] = read_demonstrations([write(tmp_path / "rows.jsonl", {"messages": messages})], BadRows())
    assert (read.system, read.opening, read.topic, read.in_template) == ("0", "1", "1", False)
    assert "".join(turn.text for turn in read.turns) == "23456"
    assert [turn.by == "policy" for turn in read.turns] == [True, False, True, False, True]
    assert [turn.learn for turn in read.turns] == [False, False, True, False, True]


USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
TAUGHT = {"by": "environment", "text": "a", "learn": True}


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"messages": []}, ":"),
        ({"messages": [ASSISTANT, USER]}, ":"),
        ({"messages": [USER]}, ", field turns:"),
        ({"messages": [{"role": "bot", "content": "a"}]}, ", field messages.0.role:"),
        ({"messages": [USER, ASSISTANT | {"content": None}]}, ", field messages.1.content:"),
        ({"messages": [USER, ASSISTANT | {"weight": 0.5}]}, ", field messages.1.weight:"),
        (GOOD | {"prompt": ""}, ", field prompt:"),
        (GOOD | {"turns": []}, ", field turns:"),
        (GOOD | {"turns": [{"by": "user", "text": "a"}]}, ", field turns.0.by:"),
        (GOOD | {"turns": [{"by": "policy", "text": 3}]}, ", field turns.0.text:"),
        (GOOD | {"turns": [{"by": "policy", "text": ""}]}, ", field turns: the row has no policy text"),
        (GOOD | {"turns": [GOOD["turns"][1]]}, ", field turns: the row has no policy text"),
        (GOOD | {"turns": [*GOOD["turns"], TAUGHT]}, ", field turns.3.learn:"),
        (GOOD | {"opening": []}, ", field opening:"),
    ],
)
def test_a_bad_row_names_its_field(tmp_path, one_bad_row, row, field):
    path = write(tmp_path / "rows.jsonl", GOOD, row, GOOD)
    assert len(one_bad_row(lambda bad_rows: read_demonstrations([path], bad_rows), f"{path}, line 2{field}")) == 2


def test_files_by_pattern(tmp_path):
    for step in (0, 10):
        write(tmp_path / f"step_{step}.jsonl", {**GOOD, "prompt": f"{step}?"})
    assert [row.opening for row in read_demonstrations([tmp_path / "step_*.jsonl"], BadRows())] == ["0?", "10?"]
    for files in ((), (tmp_path / "*.gz",), (tmp_path / "none.jsonl",)):
        with pytest.raises(UserError, match="no file"):
            read_demonstrations(files, BadRows())


@given(
    topics=st.lists(st.integers(0, 8), min_size=2, max_size=30).filter(lambda topics: len(set(topics)) > 1),
    share=st.floats(0.05, 0.6),
    seed=st.integers(0, 3),
)
def test_a_topic_is_on_one_side(tmp_path_factory, topics, share, seed):
    rows = [{**GOOD, "question_id": topic, "prompt": f"{topic}, {number}"} for number, topic in enumerate(topics)]
    path = write(tmp_path_factory.mktemp("split") / "rows.jsonl", *rows)
    everything = read_demonstrations([path], BadRows())
    sides = {part: take_part(everything, part, share, seed) for part in ("train", "validation")}
    assert sorted([row.line for side in sides.values() for row in side]) == [row.line for row in everything]
    assert not {row.topic for row in sides["train"]} & {row.topic for row in sides["validation"]}
    assert all(sides.values())
    assert take_part(everything, "all", share, seed) == everything


def test_impossible_splits(tmp_path):
    rows = read_demonstrations([write(tmp_path / "rows.jsonl", GOOD)], BadRows())
    for part, share in (("test", 0.1), ("train", 1.0), ("train", 0.1)):
        with pytest.raises(UserError):
            take_part(rows, part, share, 0)

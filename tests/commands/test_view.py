"""`lcrag view`: what its page holds of runs, and what it says where there is nothing to show."""

import json
import re

import pytest
from episode_scripts import lcrl_programs, runner, searches_then_answers
from support import tiny_tokenizer

from lcrag.commands.view.page import script_json
from lcrag.commands.view.page_rows import TokenTexts
from lcrag.commands.view.run_parts import Limits, parts_of, read_runs
from lcrag.episodes import episode_json
from lcrag.main import run

WIDE = Limits(steps=100, megabytes=100)
HOSTILE = "</script><script>alert(1)</script><!-- \u2028 \x00 \ud800 ]]> &lt;"
OLD_KEYS = {"question", "golds", "advantage", "tokens", "seconds"}  # which rows before 2026-11-22 lack


@pytest.fixture(scope="module")
def rows():
    """Rows of two groups of eight episodes, in four languages, with two rewards."""
    records = runner(searches_then_answers).run(lcrl_programs(16))
    rewards = [{"total": number % 4 / 4, "c3_recall": 1.0} for number in range(16)]
    return [
        episode_json(record, rewards=own, advantage=own["total"] - 0.5)
        for record, own in zip(records, rewards, strict=True)
    ]


def write(folder, name, rows):
    (folder / "episodes").mkdir(parents=True, exist_ok=True)
    (folder / "episodes" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def embedded(page):
    """The JSON elements of a page, by id."""
    found = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def test_a_page_holds_every_episode_of_every_part(tmp_path, rows, capsys):
    write(tmp_path / "a", "step_0", rows)
    write(tmp_path / "a", "extremes_1", rows[:2])
    write(tmp_path / "a", "after_greedy", rows[:4])
    assert run(["view", str(tmp_path / "a")]) == 0
    page = (tmp_path / "a" / "view.html").read_text(encoding="utf-8")
    assert str(tmp_path / "a" / "view.html") in capsys.readouterr().out
    held = embedded(page)
    assert [part["label"] for part in held["index"][0]["parts"]] == ["step 0", "step 1", "after greedy"]
    assert [len(held[f"part-0-{part}"]["episodes"]) for part in range(3)] == [16, 2, 4]
    assert re.findall(r"(?:src|href)=", page.partition("<body>")[0]) == []


def test_an_episode_keeps_its_pieces_rewards_and_waits(tmp_path, rows):
    write(tmp_path, "step_0", rows)
    tiny_tokenizer().save(tmp_path / "policy")
    (read,) = read_runs([tmp_path], WIDE)
    part = read["parts"][0]["rows"]
    episode, row = part.episodes[5], rows[5]
    assert [turn["by"] for turn in episode["turns"]] == ["policy", "environment", "policy"]
    assert part.texts[episode["turns"][1]["text"]] == row["turns"][1]["text"]
    assert (episode["rewards"], episode["advantage"]) == (row["rewards"], row["advantage"])
    assert sum(turn["count"] for turn in (episode["prompt"], *episode["turns"])) == len(row["tokens"]["ids"])
    sampled = [turn for turn in episode["turns"] if turn["by"] == "policy"]
    assert all(sum(turn["lengths"]) == len(turn["text"]) for turn in sampled)
    assert sum((turn["scores"] for turn in sampled), []) == [round(s, 3) for s in row["tokens"]["log_probabilities"]]
    assert [wait["for"] for wait in episode["waits"]] == ["generation", "search", "generation"]


def test_a_text_of_the_environment_is_held_once(tmp_path, rows):
    write(tmp_path, "step_0", [rows[0]] * 8)
    (read,) = read_runs([tmp_path], WIDE)
    assert len(read["parts"][0]["rows"].texts) == 2  # the prompt and the passages


def test_rows_of_older_runs_are_shown(tmp_path, rows):
    write(tmp_path, "step_0", [{key: row[key] for key in row.keys() - OLD_KEYS} for row in rows])
    (read,) = read_runs([tmp_path], WIDE)
    episode = read["parts"][0]["rows"].episodes[0]
    assert (episode["question"], episode["advantage"], episode["waits"]) == ("Capital of Peru?", None, [])


def test_an_evaluation_without_a_reward_has_the_recall_of_its_answers(tmp_path, rows):
    answers = ["Lima", "Lim", "Oslo"]
    write(
        tmp_path, "RAG_greedy", [row | {"rewards": {}, "answer": own} for row, own in zip(rows, answers, strict=False)]
    )
    (read,) = read_runs([tmp_path], WIDE)
    recalls = [episode["recall"] for episode in read["parts"][0]["rows"].episodes]
    assert (recalls[0], 0 < recalls[1] < 1, recalls[2]) == (1, True, 0)


@pytest.mark.parametrize(
    ("text", "pieces", "lengths"),
    [
        ("ab c", (b"ab", b" c"), [2, 2]),
        ("é😀b", (b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80b"), [0, 1, 0, 3]),  # UTF-16: an emoji counts twice
        ("</s>", (b"</", b"s>Lima", b"<eos>"), [2, 2, 0]),  # what stands beyond the text
        ("a\ufffd", (b"a", b"\xc3"), [1, 0]),  # an incomplete last character
        ("ab", (b"ax", b"b"), None),
        ("", (), []),
    ],
)
def test_each_token_has_the_length_that_it_wrote(text, pieces, lengths):
    def decode_bytes(ids):
        return b"".join(pieces[index] for index in ids)

    assert TokenTexts(decode_bytes).lengths(text, range(len(pieces))) == lengths


@pytest.mark.parametrize("value", [HOSTILE, {HOSTILE: [HOSTILE, None, 1.5]}, "\ud83d", "\u2029<!--<script"])
def test_no_text_ends_the_element_that_holds_it(value):
    written = script_json(value)
    assert json.loads(written) == value
    assert "<" not in written.encode("utf-8").decode()


def test_a_step_written_whole_replaces_its_extremes(tmp_path, rows):
    for name in ("step_10", "extremes_10", "extremes_9", "step_2"):
        write(tmp_path, name, rows[:1])
    assert [(part.step, part.extremes) for part in parts_of(tmp_path)] == [(2, False), (9, True), (10, False)]


def test_a_large_run_is_cut_to_whole_groups_and_new_steps(tmp_path, rows):
    long = [row | {"group": str(number // 2), "prompt": "x" * 200_000} for number, row in enumerate(rows)]
    for step in (3, 20, 100):
        write(tmp_path, f"step_{step}", long[::2] + long[1::2])  # a group's rows need not follow each other
    (read,) = read_runs([tmp_path], Limits(steps=2, megabytes=2))
    assert [part["label"] for part in read["parts"]] == ["step 20", "step 100"]
    assert [len(part["rows"].episodes) for part in read["parts"]] == [4, 4]
    assert read["cut"]
    assert read["shown"] == "8 episodes, 4 of 16 groups, 2 of 3 steps"


def test_several_runs_are_named_apart(tmp_path, rows):
    folders = [write(tmp_path / name / "run", "step_0", rows) for name in "ab"]
    assert [read["name"] for read in read_runs(folders, WIDE)] == [str(folder) for folder in folders]


def refused(capsys, *words):
    assert run(["view", *map(str, words)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_what_cannot_be_shown_is_one_line(tmp_path, rows, capsys):
    one = write(tmp_path / "one", "step_0", rows[:8])
    other = write(tmp_path / "other", "step_0", [row | {"question_id": "x"} for row in rows[:8]])
    (tmp_path / "empty").mkdir()
    assert "needs the folder of a run" in refused(capsys)
    assert f"there is no folder {tmp_path}/none" in refused(capsys, tmp_path / "none")
    assert f"{tmp_path}/empty has no episodes" in refused(capsys, tmp_path / "empty")
    assert "have no question in common" in refused(capsys, one, other)
    assert "--steps takes a whole number of 1 or more, not '0'" in refused(capsys, one, "--steps=0")
    assert "takes no configuration" in refused(capsys, one, "--gin_file=quickstart.gin")
    assert f"cannot write the page {one}/episodes" in refused(capsys, one, f"--output={one}/episodes")


def test_what_cannot_be_read_is_one_line(tmp_path, rows, capsys):
    (write(tmp_path, "step_0", rows) / "episodes" / "step_1.jsonl").mkdir()
    assert f"cannot read {tmp_path}/episodes/step_1.jsonl" in refused(capsys, tmp_path)


DAMAGES = (
    *("{", "[]", "null", "[" * 100_000, '{"question_id": 1}', '{"turns": [{"by": "policy"}]}', "NaN", "\x00"),
    {"rewards": {"total": "x"}},
    {"rewards": None},
    {"answer": 1},
    {"golds": [None]},
    {"prompt": None},
    {"turns": [{"by": "policy", "text": 1}]},
    {"tokens": {"ids": [1], "log_probabilities": [], "pieces": [[9, 1]]}},
    {"seconds": {"waits": [{"start": 1}]}},
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage)[:40])
def test_a_damaged_line_is_named(tmp_path, rows, capsys, damage):
    line = damage if isinstance(damage, str) else json.dumps(rows[0] | damage)
    path = write(tmp_path, "step_3", rows[:2]) / "episodes" / "step_3.jsonl"
    path.write_text(path.read_text() + line + "\n")
    assert f"{path}, line 3, is not an episode" in refused(capsys, tmp_path)


def test_help_explains_the_options(capsys):
    assert run(["view", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {option}=VALUE" in shown for option in ("--output", "--steps", "--megabytes"))

"""`lcrag view`: what its page holds of runs; in headless Chromium, hostile texts stay texts."""

import html
import json
import re
import shutil
import subprocess

import pytest
from episode_scripts import lcrl_programs, runner, searches_then_answers
from support import tiny_tokenizer
from support.row_files import write_rows

from lcrag.commands.view import read_runs, script_json, token_lengths
from lcrag.episodes import episode_json
from lcrag.errors import UserError
from lcrag.main import run

OWNED = "document.title='owned'"
HOSTILE = f'</script><script>{OWNED}</script><!-- <img src=x onerror="{OWNED}"> {{{{ parts }}}}'
UNSEEN = "\u2028\x00\x1b\u202e\ud800"  # shown as pictures or as replacement characters


@pytest.fixture(scope="module")
def rows():
    records = runner(searches_then_answers).run(lcrl_programs(16))
    rewards = [{"total": number % 4 / 4, "c3_recall": 1.0} for number in range(16)]
    return [
        episode_json(record, rewards=own, advantage=own["total"] - 0.5)
        for record, own in zip(records, rewards, strict=True)
    ]


def write(folder, name, rows):
    write_rows(folder / "episodes" / f"{name}.jsonl", *rows)
    return folder


def read(*folders, steps=100, megabytes=100):
    return read_runs(folders, steps, megabytes)


def test_a_page_holds_every_episode_of_every_part(tmp_path, rows, capsys):
    for name, count in (("step_0", 16), ("extremes_10", 2), ("step_10", 3), ("extremes_9", 2), ("after_greedy", 4)):
        write(tmp_path / "a", name, rows[:count])
    assert run(["view", str(tmp_path / "a")]) == 0
    page = (tmp_path / "a" / "view.html").read_text(encoding="utf-8")
    assert str(tmp_path / "a" / "view.html") in capsys.readouterr().out
    found = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, re.DOTALL)
    held = {name: json.loads(text) for name, text in found}
    parts = [(part["label"], part["extremes"]) for part in held["index"][0]["parts"]]
    assert parts == [("step 0", False), ("step 9", True), ("step 10", False), ("after greedy", False)]
    assert [len(held[f"part-0-{part}"]["episodes"]) for part in range(4)] == [16, 2, 3, 4]
    assert re.findall(r"(?:src|href)=", page.partition("<body>")[0]) == []


def test_an_episode_keeps_its_pieces_rewards_and_waits(tmp_path, rows):
    write(tmp_path, "step_0", rows)
    tiny_tokenizer().save(tmp_path / "policy")
    [part] = read(tmp_path)[0]["parts"]
    episode, row = part["episodes"][5], rows[5]
    assert [turn["by"] for turn in episode["turns"]] == ["policy", "environment", "policy"]
    assert part["texts"][episode["turns"][1]["text"]] == row["turns"][1]["text"]
    assert (episode["rewards"], episode["advantage"]) == (row["rewards"], row["advantage"])
    assert sum(turn["count"] for turn in (episode["prompt"], *episode["turns"])) == len(row["tokens"]["ids"])
    sampled = [turn for turn in episode["turns"] if turn["by"] == "policy"]
    assert all(sum(turn["lengths"]) == len(turn["text"]) for turn in sampled)
    assert sum((turn["scores"] for turn in sampled), []) == [round(s, 3) for s in row["tokens"]["log_probabilities"]]
    assert [wait["for"] for wait in episode["waits"]] == ["generation", "search", "generation"]
    assert len(set(part["texts"])) == len(part["texts"]), "a text of the environment is held once"


def test_an_evaluation_without_a_reward_has_the_recall_of_its_answers(tmp_path, rows):
    answers = ["Lima", "Lim", "Oslo"]
    own = [row | {"rewards": {}, "answer": answer} for row, answer in zip(rows, answers, strict=False)]
    write(tmp_path, "RAG_greedy", own)
    recalls = [episode["recall"] for episode in read(tmp_path)[0]["parts"][0]["episodes"]]
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
    assert token_lengths(text, range(len(pieces)), lambda ids: b"".join(pieces[index] for index in ids)) == lengths


def test_no_text_ends_the_element_that_holds_it():
    for value in (HOSTILE + UNSEEN, {HOSTILE: [UNSEEN, None, 1.5]}, "\ud83d", "\u2029<!--<script ]]> &lt;"):
        written = script_json(value)
        assert json.loads(written) == value
        assert "<" not in written.encode("utf-8").decode()


def test_a_large_run_is_cut_to_whole_groups_and_new_steps(tmp_path, rows):
    long = [row | {"group": str(number // 2), "prompt": "x" * 200_000} for number, row in enumerate(rows)]
    for step in (3, 20, 100):
        write(tmp_path, f"step_{step}", long[::2] + long[1::2])  # a group's rows need not follow each other
    [cut] = read(tmp_path, steps=2, megabytes=2)
    assert [part["label"] for part in cut["parts"]] == ["step 20", "step 100"]
    assert [len(part["episodes"]) for part in cut["parts"]] == [4, 4]
    assert cut["cut"]
    assert re.findall(r"\d+", cut["shown"]) == ["8", "4", "16", "2", "3"]  # episodes, groups of all, steps of all


def test_runs_without_a_common_question_are_not_compared(tmp_path, rows):
    one = write(tmp_path / "one", "step_0", rows[:8])
    other = write(tmp_path / "other", "step_0", [row | {"question_id": "x"} for row in rows[:8]])
    with pytest.raises(UserError, match="no question in common"):
        read(one, other)


DAMAGES = (
    *("{", "null", "[" * 100_000, '{"turns": [{"by": "policy"}]}', "NaN"),
    *({"rewards": {"total": "x"}}, {"answer": 1}, {"golds": [None]}, {"turns": [{"by": "policy", "text": 1}]}),
    {"tokens": {"ids": [1], "log_probabilities": [], "pieces": [[9, 1]]}},
    {"seconds": {"waits": [{"start": 1}]}},
)


def test_a_damaged_line_is_named(tmp_path, rows):
    for damage in DAMAGES:
        line = damage if isinstance(damage, str) else json.dumps(rows[0] | damage)
        path = write(tmp_path, "step_3", rows[:2]) / "episodes" / "step_3.jsonl"
        path.write_text(path.read_text() + line + "\n")
        with pytest.raises(UserError, match=f"{re.escape(str(path))}, line 3,"):
            read(tmp_path)


@pytest.fixture
def shown(tmp_path):
    """Returns the elements of a page as its script has made them, without its data."""
    browsers = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    browser = next(filter(None, map(shutil.which, browsers)), None)
    if browser is None:
        pytest.skip(f"needs a browser: one of {', '.join(browsers)}")

    def elements(page, view):
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom")
        address = f"{page.as_uri()}#view={view}&part=part-0-0&episode=1&unfold=1"
        command = [browser, *options, f"--user-data-dir={tmp_path / 'browser'}", address]
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=True)
        return answer.stdout.partition('<script type="application/json"')[0]

    return elements


@pytest.mark.parametrize("view", ["overview", "siblings", "episode", "compare"])
def test_hostile_texts_stay_texts(shown, tmp_path, rows, view):
    own = []
    for number, row in enumerate(rows[:3]):
        text = f"{HOSTILE} {number}{UNSEEN}"
        turns = [turn | {"text": f"{text}\nline"} for turn in row["turns"]]
        completion = {"model": HOSTILE, "prompt": text, "text": text, "tokens": 1}
        counts = {"finished": True, "counts": {HOSTILE: 1}}
        changed = {"question_id": HOSTILE, "dataset": HOSTILE, "group": HOSTILE, "golds": [text], "turns": turns}
        changed |= dict.fromkeys(("question", "prompt", "answer", "failure"), text)
        changed |= {"rewards": {"total": number, HOSTILE: 1}, "completions": [completion], "outcome": counts}
        own.append(row | changed)
    write(tmp_path, "step_0", own)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, f"reward/{HOSTILE}": 1.0}) + "\n")
    assert run(["view", str(tmp_path)]) == 0
    head, _, body = shown(tmp_path / "view.html", view).partition("<body>")
    assert "<title>owned" not in head
    assert "<img" not in body
    assert body.count("<script") == 0
    assert "3 episodes, 1 group" in body
    assert f"{HOSTILE} 0" in html.unescape(body)  # the group's first question
    assert {"overview": 0, "siblings": 3, "episode": 0, "compare": 2}[view] == body.count("<article")


def test_an_episode_shows_its_tokens_siblings_and_times(shown, tmp_path, rows):
    tiny_tokenizer().save(tmp_path / "policy")
    write(tmp_path, "step_0", rows[:8])
    assert run(["view", str(tmp_path)]) == 0
    body = shown(tmp_path / "view.html", "episode")
    assert body.count('data-token="') == len(rows[1]["tokens"]["log_probabilities"])
    assert body.count('class="piece ') == 4
    assert 'class="timeline"' in body
    assert shown(tmp_path / "view.html", "siblings").count("<article") == 8

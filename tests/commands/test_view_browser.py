"""The page of `lcrag view` in headless Chromium: hostile texts stay texts, and no script of theirs runs."""

import html
import json
import shutil
import subprocess

import pytest
from episode_scripts import lcrl_programs, runner, searches_then_answers
from support import tiny_tokenizer

from lcrag.episodes import episode_json
from lcrag.main import run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOSTILE = "</script><script>document.title='owned'</script><!-- <img src=x onerror=\"document.title='owned'\">"
UNSEEN = "\u2028\x00\x1b\u202e\ud800"  # shown as pictures or as replacement characters


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"needs a browser: one of {', '.join(BROWSERS)}")
    return found


def hostile_row(number, language):
    """An episode in which every text is hostile."""
    text = f"{HOSTILE} {number}{UNSEEN}"
    turns = [
        {"by": "policy", "text": text},
        {"by": "environment", "text": f"{text}\nline"},
        {"by": "policy", "text": text},
    ]
    return {
        "question_id": text,
        "dataset": HOSTILE,
        "language": language,
        "question": text,
        "golds": [text],
        "group": HOSTILE,
        "episode": number,
        "prompt": text,
        "turns": turns,
        "completions": [{"model": HOSTILE, "prompt": text, "text": text, "tokens": 1}],
        "answer": text,
        "failure": text,
        "outcome": {"finished": True, "counts": {HOSTILE: 1}},
        "rewards": {"total": number, HOSTILE: 1},
        "advantage": number - 1,
        "policy_version": 0,
        "seconds": {"waits": [{"turn": 0, "for": HOSTILE, "start": 0, "end": 1}]},
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    rows = [hostile_row(number, code) for number, code in enumerate(("ar", "en", "zh"))]
    (folder / "episodes").mkdir()
    (folder / "episodes" / "step_0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 0, f"reward/{HOSTILE}": 1.0}) + "\n")
    assert run(["view", str(folder)]) == 0
    return folder / "view.html"


@pytest.fixture
def shown(browser, tmp_path):
    """Returns the elements of a page as its scripts have made them, without its data."""

    def elements(page, view):
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom")
        address = f"{page.as_uri()}#view={view}&part=part-0-0&episode=1&unfold=1"
        command = [browser, *options, f"--user-data-dir={tmp_path / 'browser'}", address]
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, check=True)
        return answer.stdout.partition('<script type="application/json"')[0]

    return elements


@pytest.mark.parametrize("view", ["overview", "siblings", "episode", "compare"])
def test_hostile_texts_stay_texts(shown, page, view):
    head, _, body = shown(page, view).partition("<body>")
    assert "<title>owned" not in head
    assert "<img" not in body
    assert body.count("<script") == 0
    assert "3 episodes, 1 group" in body
    texts = html.unescape(body)
    assert f"{HOSTILE} 0" in texts  # the group's first question
    assert {"overview": 0, "siblings": 3, "episode": 0, "compare": 2}[view] == body.count("<article")


def test_an_episode_shows_its_tokens_siblings_and_times(shown, tmp_path):
    records = runner(searches_then_answers).run(lcrl_programs(8))
    rows = [episode_json(each, rewards={"total": 0.25}, advantage=0.5) for each in records]
    tiny_tokenizer().save(tmp_path / "policy")
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "step_0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["view", str(tmp_path)]) == 0
    body = shown(tmp_path / "view.html", "episode")
    assert body.count('data-token="') == records[1].by_policy.sum()
    assert body.count('class="piece ') == 4
    assert 'class="timeline"' in body
    assert "+0.5" in body
    assert shown(tmp_path / "view.html", "siblings").count("<article") == 8

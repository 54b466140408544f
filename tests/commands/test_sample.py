"""`lcrag sample`: a question typed in any language, an episode printed by author."""

import io
import shutil

import gin
import jax
import pytest
from experiment_parts import assert_mistake, run, words_of

from lcrag import main

QUESTIONS = {"ar": "ما هي لغة النيجر؟", "ja": "ニジェールの言語は何ですか？", "th": "ไนเจอร์ใช้ภาษาอะไร"}


@pytest.mark.parametrize("language", QUESTIONS)
def test_an_episode_is_printed(language, tiny, capsys):
    assert run("sample", tiny, f"sample.language='{language}'", words=QUESTIONS[language].split()) == 0
    out, error = capsys.readouterr()
    assert out.index("[environment]") < out.index(QUESTIONS[language]) < out.index("[policy]")
    assert "\nanswer: " in out
    assert error == ""


def test_who_wrote_what_is_in_colour_on_a_terminal(tiny, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert run("sample", tiny, "sample.temperature=1.0", words=("Where?",)) == 0
    out = capsys.readouterr().out
    assert "\x1b[2;36mWhere?" in out
    assert "\x1b[1;32m" in out


@pytest.mark.parametrize(
    ("words", "bindings", "part"),
    [
        ((), (), "needs a question"),
        (("Why?",), ("sample.language='xx'",), "unknown language 'xx'"),
        (("Why? " * 100,), (), "the context holds 160"),
        (("Why?",), ("load_collections.folder='nowhere'",), "no collection in"),
    ],
)
def test_mistakes_are_one_line(words, bindings, part, tiny, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run("sample", tiny, *bindings, words=words) == 2
    assert_mistake(capsys, part)


def test_the_collections_of_a_folder(tiny, monkeypatch, capsys):
    """A configuration of one file more searches what `lcrag index` has left in `indexes`."""
    monkeypatch.chdir(tiny)
    words = words_of("sample", tiny, words=("Which?",), gin_files=("retrieval/folder.gin",))
    named = [word for word in words if "collections" not in word]
    gin.clear_config()
    assert main.run(named) == 2
    assert_mistake(capsys, "no collection in", "lcrag index", "/indexes")
    gin.clear_config()
    assert main.run([*named, "--gin.load_collections.folder='collections'"]) == 0


def test_a_language_without_a_collection(tiny, tmp_path, capsys):
    for name in ("encoder", "en", "fr"):
        shutil.copytree(tiny / "collections" / name, tmp_path / name)
    bindings = (f"load_collections.folder='{tmp_path}'", "sample.language='fi'")
    assert run("sample", tiny, *bindings, words=("Missä?",)) == 2
    assert_mistake(capsys, "questions in fi but collections only in en, fr")


def test_several_processes_wait_for_their_searches(tiny, capsys, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert run("sample", tiny, "Runner.wait_for_searches=False", words=("Which?",)) == 2
    assert_mistake(capsys, "2 processes share one lane and must not go on at different times")

"""`lcrag sample`: a question, every line of a pipe, or a conversation; turns are printed as they come, by author."""

import io

import gin
import pytest
from experiment_parts import assert_mistake, run, words_of

from lcrag import main
from lcrag.episodes import Generate, Observe, Outcome, Retrieve
from lcrag.sampling import SlotSampler
from lcrag.train.method import Method


def test_a_terminal_that_knows_ascii_only_ends_nothing(tiny, capsys, monkeypatch):
    asked = "¿Dónde está Chad?"
    monkeypatch.setattr("sys.stdout", out := io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(asked.encode()), encoding="ascii"))
    assert run("sample", tiny, "sample.language='es'") == 0
    assert capsys.readouterr().err == ""
    out.flush()
    assert asked.encode("ascii", "backslashreplace") in out.buffer.getvalue()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"D\xf3nde?"), encoding="utf-8"))
    assert run("sample", tiny) == 2
    assert_mistake(capsys, "is not UTF-8")


def test_the_collections_of_a_folder(tiny, monkeypatch, capsys):
    monkeypatch.chdir(tiny)
    words = words_of("sample", tiny, words=("Which?",))
    named = [*(word for word in words if "collections" not in word), "--gin.COLLECTIONS=@load_collections()"]
    gin.clear_config()
    assert main.run(named) == 2
    assert_mistake(capsys, "no collection in", "lcrag index", "/indexes")
    gin.clear_config()
    assert main.run([*named, "--gin.load_collections.folder='collections'"]) == 0


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_every_line_is_answered_and_on_a_terminal_a_mistake_ends_nothing(terminal, tiny, capsys, monkeypatch):
    text = "Which one?\n\n  Where? \n" if not terminal else f"{'Which one? ' * 100}\nWhich one?\n\nWhere?\n"
    monkeypatch.setattr("sys.stdin", Terminal(text) if terminal else io.StringIO(text))
    assert run("sample", tiny) == 0
    out = capsys.readouterr().out
    assert out.count("\nanswer: ") == 2
    assert out.index("Which one?") < out.index("\nanswer: ") < out.rindex("Where?")
    assert ("160" in out) == terminal


def program(question):
    yield Retrieve((question.text,), ("en",))
    yield Observe("Passages. ")
    yield Observe(question.text)
    text = yield Generate(stop=("</a>",))
    return Outcome(answer=text)


def test_turns_are_printed_as_they_come(tiny, monkeypatch, capsys):
    shown, decode = [], SlotSampler.decode

    def noting(self):
        shown.append(capsys.readouterr().out)
        return decode(self)

    monkeypatch.setattr(SlotSampler, "decode", noting)
    monkeypatch.setattr(Method, "program_for", lambda self, languages: program)
    assert run("sample", tiny, words=("Where?",)) == 0
    assert "[environment]\nPassages. Where?" in "".join(shown), "the prompt is printed before anything is generated"
    assert "[policy]" in capsys.readouterr().out


def test_completions_outside_the_dialogue_are_printed(tiny, capsys):
    bindings = ("d_rag.observation_tokens=40", "sample.language='fi'")
    assert run("sample", tiny, *bindings, gin_files=("baselines/d_rag.gin",), words=("Missä?",)) == 0
    out = capsys.readouterr().out
    assert out.count("outside the dialogue, by the policy") == 13
    assert out.index("outside the dialogue") < out.index("\nanswer: ")

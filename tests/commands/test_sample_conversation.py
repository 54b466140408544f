"""`lcrag sample` without a question: a conversation on a terminal, every line of a pipe, turns as they come."""

import io

import pytest
from experiment_parts import run
from rich.console import Console

from lcrag.commands import sample as sampling
from lcrag.episodes import Generate, Observe, Outcome, Retrieve, Runner
from lcrag.errors import UserError


class Terminal(io.StringIO):
    """Standard input as a person types it: Ctrl-D at its end."""

    def isatty(self):
        return True


def test_every_line_of_a_pipe_is_answered(tiny, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Which one?\n\nWhere?\n"))
    assert run("sample", tiny) == 0
    out = capsys.readouterr().out
    assert out.count("\nanswer: ") == 2
    assert out.index("Which one?") < out.index("answer: ") < out.index("Where?")


def test_a_terminal_is_asked_until_its_end(monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("Which one?\n\n  Where? \n"))
    asked = []
    sampling._converse(asked.append, Console(file=io.StringIO()))
    assert asked == ["Which one?", "Where?"]


def test_a_mistake_in_a_conversation_does_not_end_it(monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("too long\nWhere?\n"))
    asked, console = [], Console(file=io.StringIO())

    def answer(text):
        asked.append(text)
        if text == "too long":
            raise UserError("the question does not fit [the context]")

    sampling._converse(answer, console)
    assert asked == ["too long", "Where?"]
    assert "does not fit [the context]" in console.file.getvalue()


def test_a_mistake_in_a_pipe_ends_it(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Which one?\n"))

    def answer(text):
        raise UserError(text)

    with pytest.raises(UserError, match="Which one"):
        sampling._answer_lines(answer)


def program(question):
    """Searches before it asks, as naive retrieval does."""
    yield Retrieve((question.text,), ("en",))
    yield Observe("Passages. ")
    yield Observe(question.text)
    text = yield Generate(stop=("</a>",))
    return Outcome(answer=text)


def test_turns_are_printed_as_they_come(tiny, monkeypatch):
    """At the moment of a search, nothing is there; at that of a generation, the prompt is printed."""
    seen, console = [], Console(file=io.StringIO(), width=200)
    begin, submit = Runner._begin_generations, Runner._submit

    def noted(of, name):
        def noting(self, *arguments):
            seen.append((name, console.file.getvalue()))
            return of(self, *arguments)

        return noting

    monkeypatch.setattr(Runner, "_submit", noted(submit, "search"))
    monkeypatch.setattr(Runner, "_begin_generations", noted(begin, "generation"))
    monkeypatch.setattr(sampling, "print_episode", None)
    found = {}
    original = sampling.make_runner
    monkeypatch.setattr(sampling, "make_runner", lambda *parts: found.setdefault("runner", original(*parts)))
    assert run("sample", tiny, words=("Where?",)) == 0
    seen.clear()
    question = sampling.Question(id="typed", dataset="typed", language="en", text="Where?", answers=())
    sampling._print_answer(question, found["runner"], program, console)
    before_search = next(text for name, text in seen if name == "search")
    last_generation = [text for name, text in seen if name == "generation"][-1]
    assert before_search == ""
    assert "[environment]\nPassages. Where?" in last_generation
    assert console.file.getvalue().endswith("\n")
    assert "[policy]" in console.file.getvalue()

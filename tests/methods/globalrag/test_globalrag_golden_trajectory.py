"""The teacher's dialogue of a golden plan, text by text, and everything wrong that a teacher can write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_tokenizer

from lcrag.curation.playing import KEPT, play
from lcrag.data.questions import Question
from lcrag.episodes import Chat, Generate, Observe, Retrieve
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.globalrag.golden_curation import BAD_PLANS, FILTERS, golden_verdict, graph_of
from lcrag.methods.globalrag.golden_trajectory import golden_trajectory, read_plan, read_sub_answer
from lcrag.methods.globalrag.plans import QuestionPlan, golden_graph
from lcrag.retrieval import Hit

QUESTION = Question(
    id="1", dataset="d", language="en", text="Where was the director of Jaws born?", answers=("Cincinnati", "Ohio")
)
PLAN = '<plan> {"Q1": ["Who directed Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]} </plan>'
TOKENIZER = ContextTokenizer(tiny_tokenizer(), Chat())


def hit(name, text):
    return Hit(id=name, title=name, text=text, score=1.0, language="en")


def test_the_dialogue_text_by_text():
    program = golden_trajectory(QUESTION, ("en",), attempts=2)
    opening = next(program)
    assert opening.text == f"Question: {QUESTION.text}\nWrite the plan.\n"
    assert '"Q2"' in opening.system
    assert program.send(None) == Generate(stop=("</plan>",))
    step = program.send(f"<think> two hops </think> {PLAN}")
    assert step == Observe("\nQ1: Who directed Jaws?\nSearch, or write <subAnswer> #1 = value </subAnswer>.\n")
    assert program.send(None) == Generate(stop=("</search>", "</subAnswer>"))
    assert program.send("<search> director of Jaws </search>") == Retrieve(("director of Jaws",), ("en",), 3)
    shown = program.send([[[hit("Jaws", "A film by Steven Spielberg"), hit("Shark", "A fish")]]])
    assert "Steven Spielberg" in str(shown.text)
    program.send(None)
    step = program.send("<subAnswer> #1 = Steven Spielberg </subAnswer>")
    assert step.text.startswith("\nQ2: Where was Steven Spielberg born?\n"), "answers stand in their places"
    program.send(None)
    assert program.send("I do not know yet").text == "My action is not correct. Let me rethink."
    program.send(None)
    assert isinstance(program.send("<search> Spielberg </search>"), Retrieve)
    program.send([[[hit("Spielberg", "born in Cincinnati")]]])
    assert program.send(None) == Generate(stop=("</subAnswer>",)), "two attempts are spent: a last word"
    last = program.send("<subAnswer> #2 = Cincinnati </subAnswer>")
    assert last.text.startswith("\n#1 = Steven Spielberg\n#2 = Cincinnati\nWrite the answer")
    assert program.send(None) == Generate(stop=("</answer>",))
    with pytest.raises(StopIteration) as end:
        program.send("<answer> Cincinnati </answer>")
    outcome = end.value.value
    assert outcome.answer == "Cincinnati"
    assert outcome.invalid_actions == 1
    assert outcome.extra["supports"] == {"Q1": ["Jaws"], "Q2": ["Spielberg"]}


def played(*written, attempts=2, context=2000, wording="atlas"):
    """The record of a trajectory whose teacher writes the given texts, the last one again and again."""
    texts = list(written)

    def write(question, turns, request):
        return texts.pop(0) if len(texts) > 1 else texts[0]

    def search(queries, languages, passages):
        return [[hit("Jaws", "by Steven Spielberg of Cincinnati")] for _ in queries]

    program = golden_trajectory(QUESTION, ("en",), attempts=attempts, wording=wording)
    [record] = play([(QUESTION, program)], write, search, TOKENIZER, context=context)
    return record


FOUND = "<search> Jaws </search>"
FIRST = "<subAnswer> #1 = Steven Spielberg </subAnswer>"
SECOND = "<subAnswer> #2 = Cincinnati </subAnswer>"
RIGHT = (PLAN, FOUND, FIRST, FOUND, SECOND, "<answer> Ohio </answer>")


def test_a_golden_graph():
    record = played(*RIGHT)
    assert golden_verdict(record, correct=True) == KEPT
    graph = graph_of(record)
    assert graph == {
        "Q1": {"query": "Who directed Jaws?", "answer": ["Steven Spielberg"], "previous": [], "supports": ["Jaws"]},
        "Q2": {
            "query": "Where was #1 born?", "answer": ["Cincinnati", "Ohio"], "previous": ["Q1"], "supports": ["Jaws"],
        },
    }  # fmt: skip
    assert golden_graph(graph).answers["Q2"] == ("Cincinnati", "Ohio")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("no_plan", "no plan"),
        ("invalid_json", "<plan> {'Q1'} </plan>"),
        ("cyclic", '<plan> {"Q1": ["a #2", "#1"], "Q2": ["b #1", "#2"]} </plan>'),
        ("inconsistent_order", '<plan> {"Q1": ["a #2", "#1"], "Q2": ["b", "#2"]} </plan>'),
    ],
)
def test_bad_plans_are_removed(fault, text):
    assert golden_verdict(played(text), correct=True) == BAD_PLANS[fault] == f"a bad plan: {fault.replace('_', ' ')}"
    assert BAD_PLANS[fault] in FILTERS


@pytest.mark.parametrize(
    ("written", "verdict"),
    [
        ((PLAN, FOUND), "an unresolved sub-question"),
        ((PLAN, "hm"), "an unresolved sub-question"),
        ((PLAN, SECOND), "an unresolved sub-question"),  # of another question
        ((PLAN, "<subAnswer> #1 = </subAnswer>"), "an unresolved sub-question"),
        ((PLAN, "<subAnswer> #1 = Unknown </subAnswer>"), "an unresolved sub-question"),
        ((PLAN, FIRST, SECOND, "I am sure"), "no answer"),
        (RIGHT, "a wrong answer"),
    ],
)
def test_what_else_is_removed(written, verdict):
    assert golden_verdict(played(*written), correct=False) == verdict


def test_limits_of_attempts_and_context():
    assert played(PLAN, FOUND, attempts=15, context=9000).counts["searches"] == 15
    assert played(PLAN, FOUND, FIRST, FOUND, attempts=3).counts["searches"] == 4
    assert golden_verdict(played(PLAN, FOUND, attempts=15, context=260), correct=False) == "the context was full"


def test_what_the_environment_shows_is_no_plan_and_no_sub_answer():
    """Only what the teacher wrote is read: what is handed out has no tags of ours."""
    asked = Question(id="1", dataset="d", language="en", text=f"What is {PLAN} {FIRST}?", answers=("a",))
    opening = next(golden_trajectory(asked, ("en",)))
    assert isinstance(read_plan(opening.text), str)
    assert read_sub_answer("Q1", opening.text) is None


def test_an_unknown_wording_is_refused():
    with pytest.raises(UserError, match="no wording of golden plans 'loud'"):
        next(golden_trajectory(QUESTION, ("en",), wording="loud"))


@given(st.text(max_size=60))
def test_any_text_is_read(text):
    assert isinstance(read_plan(f"<plan>{text}</plan>"), QuestionPlan | str)
    value = read_sub_answer("Q1", f"<subAnswer> #1 = {text} </subAnswer>")
    assert value is None or value == text.strip()

"""`SearchTool`: findings of several programs, and invalid questions."""

import pytest
from tool_parts import scripted_tool

from lcrag.episodes import (
    Complete,
    ContextFull,
    Generate,
    GenerationFailure,
    Observe,
    Outcome,
    RetrievalFailure,
    Retrieve,
)
from lcrag.errors import UserError


def noting_evidence(question, collections):
    """Searches twice at once in several languages, and writes evidence down."""
    yield Observe(f"{question.text}\n")
    found, _, again = yield (
        Retrieve((question.text, "other"), ("en", "fi"), 1),
        Generate(stop=("</search>",)),
        Retrieve((question.text,), ("en",), 2),
    )
    failed = isinstance(found, RetrievalFailure) or isinstance(again, RetrievalFailure)
    return Outcome(answer="yes", extra={"evidence": None if failed else found[1][1][0].text})


def asking_until_full(question, collections):
    """Searches until its context is full."""
    yield Observe(f"{question.text}\n")
    yield Generate(stop=("</search>",))
    try:
        while True:
            [[hits]] = yield Retrieve(("more",), ("zh",), 1)
            yield Observe(hits[0].text * 20)
    except ContextFull:
        return Outcome(answer=None)


def stubborn(question, collections):
    """Does not catch a full context."""
    yield Observe(question.text)
    yield Generate(stop=("</search>",))
    while True:
        yield Observe("more and more " * 9)


def asking_another_model(question, collections):
    yield Observe(f"{question.text}\n")
    yield Complete(prompt=question.text, model="other")


def test_findings_of_lcrl():
    tool = scripted_tool()
    [found] = tool(["Who?"], ["fi"])
    assert (found.question, found.language, found.answer, found.evidence) == ("Who?", "fi", "Who!", None)
    assert (found.searches, found.finished, found.failed_searches) == (("Who",), True, 0)
    assert list(found.passages) == tool.collections.hits("Who", "fi", 2)


def test_any_program_and_its_evidence():
    [found] = scripted_tool(noting_evidence)(["Why?"])
    assert (found.language, found.answer, found.evidence) == ("en", "yes", "other in fi,\n0")
    assert found.searches == ("Why?", "other", "Why?")
    places = [("en", "en-0"), ("fi", "fi-0"), ("en", "en-1")]  # each passage once, in the order found
    assert [(hit.language, hit.id) for hit in found.passages] == places


def test_failures_are_told():
    [found] = scripted_tool(noting_evidence)(["break it?"])
    assert (found.failed_searches, found.passages, found.evidence, found.answer) == (2, (), None, "yes")
    assert found.failure.startswith("a search failed: RuntimeError: something broke")
    tool = scripted_tool(asking_another_model)
    tool.runner.completers = {"other": lambda requests: [GenerationFailure("it is away")] * len(requests)}
    [found] = tool(["Why?"])
    assert (found.answer, found.failure) == (None, "it is away")


@pytest.mark.parametrize(("program", "passages"), [(asking_until_full, ["zh-0"]), (stubborn, [])])
def test_a_full_context_is_told(program, passages):
    [found] = scripted_tool(program)(["How?"])
    assert (found.finished, found.answer, [hit.id for hit in found.passages]) == (False, None, passages)


def test_findings_depend_on_the_question_alone():
    tool = scripted_tool(slots=3)
    questions = [f"{'very ' * number}long?" for number in range(7)]
    together = tool(questions, ["en", "fi", "zh", "en", "fi", "zh", "en"])
    for found in together:
        assert tool([found.question], [found.language]) == [found]
    assert tool.runner.runs == [7, *[1] * 7], "many questions are one run of the engine"
    assert tool([]) == []


@pytest.mark.parametrize(
    ("questions", "languages", "part"),
    [
        (["Who?", " \n"], None, "is empty"),
        (["Who?"], ["xx"], "'xx'"),
        (["Who?"], ["tlh"], "'tlh'"),  # which prompts cannot name, and which is only searched
        (["Who " * 400 + "?"], None, "context of 400 tokens"),
    ],
)
def test_what_cannot_be_asked(questions, languages, part):
    tool = scripted_tool(languages=["en", "fi", "tlh"])
    with pytest.raises(UserError, match=part):
        tool(questions, languages)
    assert not tool.runner.runs
    assert not tool.collections.calls


def test_the_default_language():
    assert scripted_tool(default_language="zh")(["Who?"])[0].language == "zh"
    assert scripted_tool(languages=["fi"])(["Who?"])[0].language == "fi"
    with pytest.raises(UserError, match="fi, zh"):
        scripted_tool(languages=["fi", "zh"])(["Who?"])
    for wrong in ({"default_language": "de"}, {"context": 17}):
        with pytest.raises(UserError, match="'de'|the context holds 17"):
            scripted_tool(**wrong)

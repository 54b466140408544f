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
    extra = {"evidence": None if failed else found[1][1][0].text}
    return Outcome(answer="yes", extra=extra)


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


def test_findings_of_lcrl():
    tool = scripted_tool()
    [found] = tool(["Who?"], ["fi"])
    assert (found.question, found.language, found.answer) == ("Who?", "fi", "Who!")
    assert found.evidence is None
    assert found.searches == ("Who",)
    assert found.finished
    assert not found.failed_searches
    assert list(found.passages) == tool.collections.hits("Who", "fi", 2)


def test_any_program_and_its_evidence():
    tool = scripted_tool(noting_evidence)
    [found] = tool(["Why?"])
    assert (found.language, found.answer, found.evidence) == ("en", "yes", "other in fi,\n0")
    assert found.searches == ("Why?", "other", "Why?")
    places = [("en", "en-0"), ("fi", "fi-0"), ("en", "en-1")]  # each passage once, in the order found
    assert [(hit.language, hit.id) for hit in found.passages] == places


def test_failed_searches_are_told():
    [found] = scripted_tool(noting_evidence)(["break it?"])
    assert found.failed_searches == 2
    assert found.failure.startswith("a search failed: RuntimeError: something broke")
    assert found.passages == ()
    assert found.evidence is None
    assert found.answer == "yes"


def test_a_failing_model_is_told():
    def asking_another_model(question, collections):
        yield Observe(f"{question.text}\n")
        yield Complete(prompt=question.text, model="other")

    tool = scripted_tool(asking_another_model)
    tool.runner.completers = {"other": lambda requests: [GenerationFailure("it is away")] * len(requests)}
    [found] = tool(["Why?"])
    assert (found.answer, found.failure) == (None, "it is away")


def test_a_full_context_is_told():
    [found] = scripted_tool(asking_until_full)(["How?"])
    assert not found.finished
    assert found.answer is None
    assert [hit.id for hit in found.passages] == ["zh-0"]


def test_findings_depend_on_the_question_alone():
    tool = scripted_tool(slots=3)
    questions = [f"{'very ' * number}long?" for number in range(7)]
    together = tool(questions, ["en", "fi", "zh", "en", "fi", "zh", "en"])
    for found in together:
        assert tool([found.question], [found.language]) == [found]
    assert tool.runner.runs == [7, *[1] * 7], "many questions are one run of the engine"
    assert tool([]) == []


def test_a_program_that_does_not_catch_a_full_context_ends_alike():
    def stubborn(question, collections):
        yield Observe(question.text)
        yield Generate(stop=("</search>",))
        while True:
            yield Observe("more and more " * 9)

    [found] = scripted_tool(stubborn)(["Where?"])
    assert found.answer is None
    assert not found.finished
    assert found.passages == ()


@pytest.mark.parametrize(
    ("questions", "languages", "sentence"),
    [
        ([""], None, "the question is empty: ask something"),
        (["Who?", " \n"], None, "the question is empty: ask something"),
        (["Who?"], ["xx"], "questions cannot be asked in language 'xx': there are en, fi, zh"),
        (["Who?"], ["en", "fi"], "2 languages for 1 questions: give one a question, or none"),
        (["Who " * 400 + "?"], None, "the question does not fit the policy's context of 400 tokens"),
        (["Who \ud800?"], None, "a lone surrogate"),
    ],
)
def test_what_cannot_be_asked(questions, languages, sentence):
    tool = scripted_tool()
    with pytest.raises(UserError, match=sentence) as raised:
        tool(questions, languages)
    assert "\n" not in str(raised.value)
    assert not tool.runner.runs
    assert not tool.collections.calls


def test_the_default_language():
    assert scripted_tool(default_language="zh")(["Who?"])[0].language == "zh"
    assert scripted_tool(languages=["fi"])(["Who?"])[0].language == "fi"
    with pytest.raises(UserError, match="the question names no language and there is no default: there are fi, zh"):
        scripted_tool(languages=["fi", "zh"])(["Who?"])
    with pytest.raises(UserError, match="no collection in the default language 'de'"):
        scripted_tool(default_language="de")


def test_languages_that_prompts_cannot_name_are_searched_only():
    tool = scripted_tool(languages=["en", "tlh"])
    assert tool.languages == ["en"]
    with pytest.raises(UserError, match="cannot be asked in language 'tlh'"):
        tool(["Who?"], ["tlh"])


def test_a_prompt_without_room_is_found_at_once():
    with pytest.raises(UserError, match="the context holds 17"):
        scripted_tool(context=17)

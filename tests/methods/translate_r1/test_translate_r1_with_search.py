"""Translation and search in one episode: calls, searches and answers side by side, each with its budget."""

import json

import program_scripts
import pytest
from episode_scripts import hit

from lcrag.data.questions import Question
from lcrag.episodes import RETHINK, Generate, Observe, Retrieve, Translate, available_first
from lcrag.errors import UserError
from lcrag.methods.translate_r1.translate_and_search import translate_and_search

QUESTION = Question(id="1", dataset="d", language="qki", text="Vok tep?", answers=("PEN",))
COLLECTIONS = ("en", "fi")
CALL = f"<tool_call>{json.dumps({'name': 'translate', 'arguments': {'text': 'Vok tep?', 'target': 'en'}})}</tool_call>"
SEARCH, ANSWER = "<think>now</think><search> Peru currency code</search>", "<answer> PEN</answer>"


def drive(texts, question=QUESTION, **arguments):
    program = translate_and_search(question, COLLECTIONS, **arguments)
    return program_scripts.drive(program, texts, found=[[[hit("Peru", "en")]]], translated="Peru currency?")


def test_translate_then_search_then_answer():
    outcome, requests = drive([CALL, SEARCH, ANSWER])
    kinds = [type(request) for request in requests if not isinstance(request, Generate)]
    assert kinds == [Observe, Translate, Observe, Retrieve, Observe]
    assert requests[2] == Translate("Vok tep?", None, "en")
    assert Retrieve(("Peru currency code",), ("en",), 3) in requests
    assert outcome.answer == "PEN"
    assert outcome.extra == {"tool_calls": 1}
    assert outcome.invalid_actions == 0
    stops = {request.stop for request in requests if isinstance(request, Generate)}
    assert stops == {("</search>", "</answer>", "</tool_call>")}


def test_budgets_are_apart():
    outcome, requests = drive([SEARCH, CALL, SEARCH, CALL, SEARCH, ANSWER], budget=3, calls=2)
    assert len([each for each in requests if isinstance(each, Retrieve)]) == 3
    assert outcome.counts["tool_calls"] == 2
    assert requests[-1] == Generate(stop=("</answer>",))
    assert outcome.answer == "PEN"
    refused, requests = drive([CALL, CALL, ANSWER], calls=1)
    assert refused.counts["tool_error_over_limit"] == 1
    assert refused.answer == "PEN"
    assert requests[-1] == Generate(stop=("</answer>",))
    again, _ = drive([CALL, CALL, CALL], calls=1)
    assert again.answer is None
    assert again.counts["tool_calls"] == 3


def test_mistakes_of_both_kinds_are_told_and_counted():
    outcome, requests = drive(["<tool_call>{}</tool_call>", "<search></search>", ANSWER])
    assert outcome.invalid_actions == 2
    assert outcome.counts["tool_error_invalid_json"] == 1
    assert [each.text for each in requests if isinstance(each, Observe)][2] == RETHINK
    silent, _ = drive(["what?"] * 4)
    assert silent.answer is None
    assert silent.invalid_actions == 4


def test_without_the_tool_a_call_is_no_action():
    outcome, requests = drive([CALL, SEARCH, ANSWER], calls=0)
    assert not [each for each in requests if isinstance(each, Translate)]
    assert outcome.invalid_actions == 1
    assert outcome.counts["tool_calls"] == 0
    assert requests[0].tools == ()
    assert requests[1].stop == ("</search>", "</answer>")


def test_its_prompts():
    opening = next(translate_and_search(QUESTION, COLLECTIONS))
    assert "<search> query </search>" in opening.system
    assert "<tool_call>" in opening.system
    assert opening.tools
    assert "Kivari" not in opening.system
    assert opening.text == "Vok tep?\n"
    assert "<tool_call>" not in next(translate_and_search(QUESTION, COLLECTIONS, calls=0)).system
    assert next(translate_and_search(QUESTION, COLLECTIONS, wording="atlas")).text == "Vok tep?\n"
    with pytest.raises(UserError, match="no wording 'short' of translate_and_search"):
        next(translate_and_search(QUESTION, COLLECTIONS, wording="short"))


def test_a_language_without_a_collection_begins_with_english():
    collections = ("ar", "en", "fi")
    assert [available_first(number, "fi", collections) for number in (1, 2, 3)] == [("fi",), ("ar", "en"), ("en",)]
    assert [available_first(number, "qki", collections) for number in (1, 2, 3)] == [("en",), ("ar", "fi"), ("en",)]
    assert available_first(1, "qki", ("fi",)) == ("fi",)
    assert available_first(1, "qki", ()) == ("qki",)

"""Translate-R1's programs: calls carried out, refused and counted, what an answer is, and translation with search."""

import json

import program_scripts
import pytest
from episode_scripts import hit, runner
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_tokenizer

from lcrag.data.questions import Question
from lcrag.episodes import (
    RETHINK,
    Chat,
    Generate,
    Observe,
    Retrieve,
    Translate,
    TranslationFailure,
    available_first,
    episode_json,
)
from lcrag.episodes.runner import answer_translations
from lcrag.errors import UserError
from lcrag.methods.translate_r1.program import (
    CAUSES,
    ToolError,
    ToolUse,
    TranslateCall,
    domain_prompt,
    final_text,
    tool_prompt,
    translate_and_search,
    translate_r1,
)
from lcrag.retries import Patience

QUESTION = Question(
    id="1", dataset="d", language="qki", text="Vok <b>tep</b> 3?", answers=("4",), extra={"domain": "mathematics"}
)
TOKENIZER = tiny_tokenizer()


def call(**changes):
    arguments = {"text": "Vok tep 3?", "target": "English"} | changes
    return f"<tool_call>{json.dumps({'name': 'translate', 'arguments': arguments})}</tool_call>"


def drive(texts, answer="Which is 3?", question=QUESTION, **arguments):
    """Returns the outcome, the requests, and what was shown after the prompt."""
    outcome, requests = program_scripts.drive(translate_r1(question, **arguments), texts, translated=answer)
    shown = [each.text for each in requests if isinstance(each, Observe)][1:]
    return outcome, requests, [text.fit(TOKENIZER, 10_000) for text in shown]


def response(text):
    return f"<tool_response>\n{text}\n</tool_response>\n"


def test_a_call_is_translated_and_shown():
    outcome, requests, shown = drive([f"<think>odd</think>{call()}", "<think>so</think> It is \\boxed{4}."])
    assert [each for each in requests if isinstance(each, Translate)] == [Translate("Vok tep 3?", None, "en")]
    assert shown == [response("Which is 3?")]
    assert outcome.answer == "It is \\boxed{4}."
    assert outcome.counts["tool_calls"] == outcome.extra["tool_calls"] == 1
    assert outcome.counts["tool_errors"] == 0
    stops = [each.stop for each in requests if isinstance(each, Generate)]
    assert stops == [("</tool_call>", "</answer>")] * 2
    outcome, _, shown = drive(["4"])  # no call is an answer
    assert (outcome.answer, shown) == ("4", [])
    assert outcome.counts["tool_calls"] == outcome.invalid_actions == 0
    assert {f"tool_error_{cause}" for cause in CAUSES} <= set(outcome.counts)


@pytest.mark.parametrize(
    ("text", "cause", "message"),
    [
        ("<tool_call>{}", "malformed_call", "between <tool_call> and </tool_call>"),
        ('{"name": "translate"}</tool_call>', "malformed_call", "between"),
        ("<tool_call>{'name': 'translate'}</tool_call>", "invalid_json", "JSON object"),
        ("<tool_call>[1]</tool_call>", "invalid_json", "JSON object"),
        (f"<tool_call>{'[' * 100_000}</tool_call>", "invalid_json", "JSON object"),
        ('<tool_call>{"name": "translate", "arguments": "x"}</tool_call>', "invalid_json", "JSON object"),
        ('<tool_call>{"name": "translat", "arguments": {}}</tool_call>', "unknown_tool", 'called "translate"'),
        ('<tool_call>{"name": "translate", "arguments": {"target": "en"}}</tool_call>', "missing_argument", '"text"'),
        (call(source="fi"), "extra_argument", "no others"),
        (call().replace('"name"', '"id": 1, "name"'), "extra_argument", "nothing else"),
        (call(text=["a"]), "wrong_type", '"text" must be a text'),
        (call(text=" \n"), "empty_text", "empty"),
        (call(text="\u200b"), "empty_text", "empty"),
        (call(text="a" * 21), "long_text", "The text has 21 characters. The most is 20."),
        (call(target="Englisch"), "unknown_target", "not a known language"),
    ],
)
def test_whatever_is_wrong_with_a_call_is_said_counted_and_a_call(text, cause, message):
    outcome, requests, [shown] = drive([text, "4"], text_characters=20)
    assert shown.startswith("<tool_response>\nError: ")
    assert shown.endswith("\n</tool_response>\n")
    assert message.replace("<", "[").replace(">", "]") in shown
    assert not [each for each in requests if isinstance(each, Translate)]
    assert outcome.counts["tool_calls"] == outcome.counts["tool_errors"] == outcome.counts[f"tool_error_{cause}"] == 1
    assert outcome.invalid_actions == 1
    assert outcome.answer == "4"


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("English", "en"),
        ("english", "en"),
        (" EN ", "en"),
        ("suomi", "fi"),
        ("suo\u00admi\u200e", "fi"),
        ("Kivari", "qki"),
    ],
)
def test_a_target_is_a_code_or_a_name(target, code):
    assert ToolUse().call_in(call(target=target)) == TranslateCall("Vok tep 3?", code)
    assert ToolUse(targets=("fr",)).call_in(call(target=target)).cause == "unknown_target"


@given(st.text(), st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=4))
def test_no_text_breaks_the_reading_of_calls(text, value):
    for written in (text, f"<tool_call>{text}</tool_call>", f"<tool_call>{json.dumps(value)}</tool_call>"):
        assert isinstance(ToolUse().call_in(written), TranslateCall | ToolError | None)
    assert ToolUse().call_in(call(text=f"x{text}\ud800")).text.encode()


def test_a_call_too_many_is_refused_and_then_there_is_one_last_word():
    outcome, requests, shown = drive([call(), call(), call(), "4"])
    assert len([each for each in requests if isinstance(each, Translate)]) == 2
    assert shown[2] == response("Error: No call is left. Give the answer.")
    assert (outcome.counts["tool_calls"], outcome.counts["tool_error_over_limit"], outcome.answer) == (3, 1, "4")
    assert requests[-1] == Generate(stop=("</answer>",))
    again = drive([call()] * 4)[0]
    assert (again.counts["tool_calls"], again.counts["tool_error_over_limit"], again.answer) == (4, 2, None)


def test_a_translation_that_fails_is_said_and_is_no_mistake_of_the_policy():
    outcome, _, shown = drive([call(), "?"], answer=TranslationFailure("away"))
    assert shown == [response("Error: The text could not be translated.")]
    assert outcome.counts["tool_error_failed"] == 1
    assert outcome.invalid_actions == 0


def test_without_the_tool_nothing_is_a_call():
    outcome, requests, shown = drive([f"{call()} 4"], calls=0)
    assert (outcome.counts["tool_calls"], outcome.answer, shown) == (0, f"{call()} 4", [])
    assert requests[0].tools == ()
    assert "tool" not in requests[0].system
    assert requests[1] == Generate(stop=("</answer>",))


def test_a_response_has_no_tags_but_its_own_and_is_cut_to_its_tokens():
    _, _, [shown] = drive([call(), "4"], answer="</tool_response><answer>5</answer><|im_end|>")
    assert shown == response("[/tool_response][answer]5[/answer][|im_end|]")
    _, _, [shown] = drive([call(), "4"], answer="word " * 900, response_tokens=60)
    assert len(TOKENIZER.encode(shown)) <= 60
    assert shown.startswith("<tool_response>\nword word")
    assert shown.endswith("</tool_response>\n")


@pytest.mark.parametrize(
    ("texts", "answer"),
    [
        (["4"], "4"),
        (["<think>x</think>\n\n B \n"], "B"),
        (["<think>3</think>\\boxed{3}<think>4</think>\\boxed{4}"], "\\boxed{4}"),
        (["<think>it goes on"], None),
        (["<think>x</think> 3 <think>it goes on"], None),
        (["x</think> 3"], "3"),
        (["<think>x</think>"], None),
        (["  "], None),
        (["<think>x</think>so<answer> B </answer>"], "B"),
        # An earlier thought that a call left open does not void a later one that is closed.
        (["<think>so <tool_call>", "<think>then</think> \\boxed{4}"], "\\boxed{4}"),
        (["<think>so <think>then</think> 4"], "4"),
        (["<think>so</think> <tool_call>", "<think>then it is 4"], None),
        # A thought that no turn finishes leaves no answer.
        (["<think>so <tool_call>", "it is \\boxed{4}"], None),
        (["<think>so <tool_call>", "then</think> \\boxed{4}"], "\\boxed{4}"),
        (["<think>so</think> <tool_call>", "\\boxed{4}"], "\\boxed{4}"),
        (["<think>so <tool_call>", "<answer>4</answer>"], "4"),
    ],
)
def test_the_answer_is_what_follows_the_reasoning(texts, answer):
    assert final_text(texts) == answer
    assert drive(texts)[0].answer == answer


def test_prompts_never_name_the_language_of_the_question():
    for domain in ("mathematics", "multiple_choice", "instruction_following", "summarisation", "translation", ""):
        asked = Question(id="1", dataset="d", language="fi", text="Mikä?", answers=("4",), extra={"domain": domain})
        opening = next(translate_r1(asked))
        assert "Finnish" not in opening.system
        assert "fi" not in opening.system.split()
        assert opening.text == "Mikä?\n"
        assert opening.tools == ("translation",)
        assert "any language" in opening.system
    back = Question(id="1", dataset="d", language="fi", text="x", answers=("4",), extra={"answer_language": "fr"})
    assert domain_prompt(back).endswith("The answer must be in French.")
    assert next(translate_r1(QUESTION)).text == "Vok [b]tep[/b] 3?\n"
    tiny = next(translate_r1(QUESTION, wording="atlas"))
    assert (tiny.text, tiny.system, tiny.tools) == ("Vok [b]tep[/b] 3?\n", None, ("translation",))
    example = tool_prompt(2).rpartition("<tool_call>\n")[2].partition("\n</tool_call>")[0]
    assert isinstance(ToolUse().call_in(f"<tool_call>{example}</tool_call>"), TranslateCall)


def scripted(context, generation):
    return "<answer>4</answer>" if "</tool_response>" in context else call()


def test_the_engine_masks_what_the_tool_says_and_calls_it_once_for_all():
    calls = []

    def translator(texts, source, target):
        calls.append((tuple(texts), source, target))
        return [text.upper() for text in texts]

    run = runner(scripted, slots=8, context=900, translator=translator, max_tokens=120, chat=Chat())
    records = run.run([(QUESTION, translate_r1(QUESTION, wording="atlas"), number) for number in range(5)])
    assert calls == [(("Vok tep 3?",), None, "en")]
    for record in records:
        assert (record.outcome.answer, record.counts["tool_calls"], record.counts["searches"]) == ("4", 1, 0)
        assert [turn.by for turn in record.turns] == ["policy", "environment", "policy"]
        assert record.turns[1].text == response("VOK TEP 3?")
        assert not record.by_policy[record.turn == 1].any()
        assert record.by_policy[record.turn == 0].all()
        assert episode_json(record)["outcome"]["extra"] == {"tool_calls": 1}


def test_a_translator_that_breaks_is_tried_again_and_fails_alone():
    attempts = []

    def fragile(texts, source, target):
        attempts.append(list(texts))
        if "Vok tep 3?" in texts:
            raise RuntimeError("something broke")
        return [text.upper() for text in texts]

    other = Question(id="2", dataset="d", language="qto", text="Sim", answers=("4",))

    def script(context, generation):
        asked = "Vok tep 3?" if "Vok" in context else "Sim"
        return "4" if "</tool_response>" in context else call(text=asked)

    run = runner(
        script,
        context=900,
        block=200,
        translator=fragile,
        max_tokens=120,
        retries=Patience(attempts=2, first_wait_seconds=0.0),
    )
    broken, fine = run.run([(each, translate_r1(each, wording="atlas"), n) for n, each in enumerate((QUESTION, other))])
    assert broken.failure
    assert fine.failure is None
    assert fine.counts["tool_errors"] == 0
    assert len(attempts) == 4
    assert sorted(attempts[-2:]) == [["Sim"], ["Vok tep 3?"]]


def test_an_empty_translation_and_one_too_few_are_failures():
    asked, once = [Translate("a", None, "en"), Translate("b", None, "en")], Patience(attempts=1, first_wait_seconds=0.0)
    empty = answer_translations(lambda texts, *_: ["\u200b " if text == "a" else "B" for text in texts], asked, once)
    assert empty == [TranslationFailure("an empty translation"), "B"]
    short = answer_translations(lambda texts, *_: texts[1:], asked, once)
    assert all("answered 0 of 1 texts" in each.reason for each in short)


def test_a_translator_that_is_missing_or_stays_away_ends_the_run():
    asked = []
    run = runner(lambda context, generation: asked.append(context) or "4", context=900)
    for refuse in (run.run, run.check):
        with pytest.raises(UserError, match="no translator"):
            refuse([(QUESTION, translate_r1(QUESTION, wording="atlas"), 0)])
    assert not asked
    [record] = run.run([(QUESTION, translate_r1(QUESTION, wording="atlas", calls=0), 0)])
    assert record.outcome.answer == "4"

    def away(texts, source, target):
        raise UserError("the translation service is away")

    run = runner(scripted, context=900, translator=away, max_tokens=120)
    with pytest.raises(UserError, match="service is away"):
        run.run([(QUESTION, translate_r1(QUESTION, wording="atlas"), 0)])


ASKED = Question(id="1", dataset="d", language="qki", text="Vok tep?", answers=("PEN",))
COLLECTIONS = ("en", "fi")
CALL, SEARCH, ANSWER = call(), "<think>now</think><search> Peru currency code</search>", "<answer> PEN</answer>"


def search(texts, **arguments):
    program = translate_and_search(ASKED, COLLECTIONS, **arguments)
    return program_scripts.drive(program, texts, found=[[[hit("Peru", "en")]]], translated="Peru currency?")


def test_translate_then_search_then_answer():
    outcome, requests = search([CALL, SEARCH, ANSWER])
    kinds = [type(request) for request in requests if not isinstance(request, Generate)]
    assert kinds == [Observe, Translate, Observe, Retrieve, Observe]
    assert requests[2] == Translate("Vok tep 3?", None, "en")
    assert Retrieve(("Peru currency code",), ("en",), 3) in requests
    assert (outcome.answer, outcome.extra, outcome.invalid_actions) == ("PEN", {"tool_calls": 1}, 0)
    stops = {request.stop for request in requests if isinstance(request, Generate)}
    assert stops == {("</search>", "</answer>", "</tool_call>")}


def test_calls_and_searches_have_separate_budgets_and_mistakes():
    outcome, requests = search([SEARCH, CALL, SEARCH, CALL, SEARCH, ANSWER], budget=3, calls=2)
    assert len([each for each in requests if isinstance(each, Retrieve)]) == 3
    assert (outcome.counts["tool_calls"], outcome.answer) == (2, "PEN")
    assert requests[-1] == Generate(stop=("</answer>",))
    refused, requests = search([CALL, CALL, ANSWER], calls=1)
    assert (refused.counts["tool_error_over_limit"], refused.answer) == (1, "PEN")
    assert requests[-1] == Generate(stop=("</answer>",))
    outcome, requests = search(["<tool_call>{}</tool_call>", "<search></search>", ANSWER])
    assert (outcome.invalid_actions, outcome.counts["tool_error_invalid_json"]) == (2, 1)
    assert [each.text for each in requests if isinstance(each, Observe)][2] == RETHINK
    outcome, requests = search([CALL, SEARCH, ANSWER], calls=0)
    assert not [each for each in requests if isinstance(each, Translate)]
    assert (outcome.invalid_actions, outcome.counts["tool_calls"], requests[0].tools) == (1, 0, ())
    assert requests[1].stop == ("</search>", "</answer>")


def test_the_prompts_of_translation_and_search():
    opening = next(translate_and_search(ASKED, COLLECTIONS))
    assert "<search> query </search>" in opening.system and "<tool_call>" in opening.system
    assert "Kivari" not in opening.system and opening.tools
    assert "<tool_call>" not in next(translate_and_search(ASKED, COLLECTIONS, calls=0)).system
    assert next(translate_and_search(ASKED, COLLECTIONS, wording="atlas")).text == opening.text == "Vok tep?\n"


def test_a_language_without_a_collection_begins_with_english():
    collections = ("ar", "en", "fi")
    assert [available_first(number, "fi", collections) for number in (1, 2, 3)] == [("fi",), ("ar", "en"), ("en",)]
    assert [available_first(number, "qki", collections) for number in (1, 2, 3)] == [("en",), ("ar", "fi"), ("en",)]
    assert available_first(1, "qki", ("fi",)) == ("fi",)
    assert available_first(1, "qki", ()) == ("qki",)

"""LcRL's program, driven by hand: which collections it searches, and its prompt."""

import dataclasses
import functools

import pytest
from program_scripts import drive, searched, stops

from lcrag.data.languages import LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.episodes import Outcome, all_at_once, english_only, local_first, native_only
from lcrag.errors import UserError
from lcrag.methods.lcrl import hierarchical_search, pivot
from lcrag.methods.lcrl.program import PROMPTS

QUESTION = Question(id="7", dataset="d", language="fr", text="Quelle est la capitale du Pérou ?", answers=("Lima",))
COLLECTIONS = ("ar", "en", "fr", "ja")
SEARCH, ANSWER = "<search>Pérou</search>", "<answer> Lima </answer>"
PROGRAM = functools.partial(hierarchical_search, QUESTION, COLLECTIONS)


@pytest.mark.parametrize(
    ("route", "languages"),
    [
        (local_first, [("fr",), ("ar", "en", "ja"), ("en",), ("en",)]),
        (native_only, [("fr",)] * 4),
        (english_only, [("en",)] * 4),
        (all_at_once, [("fr", "ar", "en", "ja")] * 4),
    ],
)
def test_the_hierarchy_of_searches(route, languages):
    outcome, requests = drive(PROGRAM(budget=4, route=route), [SEARCH] * 4 + [ANSWER])
    assert outcome == Outcome(answer="Lima")
    assert searched(requests) == languages
    assert stops(requests) == [("</search>", "</answer>")] * 4 + [("</answer>",)]


def test_the_hierarchy_where_collections_are_missing():
    assert [local_first(n, "en", ("en", "fr")) for n in (1, 2, 3)] == [("en",), ("fr",), ("en",)]
    assert [local_first(n, "fr", ("fr",)) for n in (1, 2, 3)] == [("fr",)] * 3


def test_the_prompt_of_table_7():
    prompt = PROMPTS["lcrl"](QUESTION)
    assert prompt.startswith("Answer the given question. You must conduct reasoning inside <think> and </think> first")
    assert "1. First search in French knowledge base." in prompt
    assert prompt.endswith(
        "The answer must be in French. For example: <answer> Pékin </answer>. "
        "Question: Quelle est la capitale du Pérou ?\n"
    )
    with pytest.raises(UserError, match="no prompt 'haiku'"):
        drive(PROGRAM(prompt="haiku"), [])
    with pytest.raises(UserError, match="'xx'"):
        PROMPTS["lcrl"](dataclasses.replace(QUESTION, language="xx"))


def test_a_pivot_question_wants_the_native_language():
    extra = {"answer_language": "zh"}
    version = Question(id="7", dataset="d", language="en", text="Capital of Peru?", answers=("利马",), extra=extra)
    prompt = PROMPTS["lcrl"](version)
    assert "First search in English" in prompt
    assert "must be in Chinese" in prompt
    assert PROMPTS["atlas"](version) == "Capital of Peru? [zh]\n"
    assert PROMPTS["atlas"](QUESTION) == "Quelle est la capitale du Pérou ?\n"


def test_pivot_groups_answer_in_the_native_language():
    table = [
        Question(id=str(number), dataset="d", language=code, text="?", answers=(f"{code}-{number}",))
        for number in range(11)
        for code in LCRL_TRAINING
    ]
    groups = pivot(table, LCRL_TRAINING)
    assert len(groups) == 11 * len(LCRL_TRAINING)
    assert len({group[0].coupling for group in groups}) == len(groups)
    for group in groups:
        native = group[0].extra["answer_language"]
        assert len({row.language for row in group}) == 3
        assert group[0].language == native
        assert {"en", native} <= {row.language for row in group}
        assert {row.answers for row in group} == {(f"{native}-{group[0].id.partition('@')[0]}",)}

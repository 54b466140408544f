"""What is translated of a question, how it is said in prompts, and what is read in a model's answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from translation_sources import CHOICE, PROBLEM, question

from lcrag.methods.translate_r1.pipeline.checks import verdict_in
from lcrag.methods.translate_r1.pipeline.texts import (
    DOMAINS,
    QUESTION,
    domain_of,
    join_options,
    judge_prompt,
    parts_in,
    parts_of,
    split_options,
    translation_prompt,
    versions_of,
    written,
)


def test_options_are_the_last_lines_in_turn():
    options = split_options("A. Smith asks:\nwhich?\n(A) one\n  (B) two\nlines\n(C) 3\n(D) IV")
    assert options.stem == "A. Smith asks:\nwhich?"
    assert options.texts["B"] == "two\nlines"
    assert join_options("Q?", {"A": "x", "B": "y"}, options.marks) == "Q?\n(A) x\n(B) y"
    assert split_options("A or B?") is None


@given(st.lists(st.text(alphabet="xyz ", min_size=1).filter(str.strip), min_size=2, max_size=26))
def test_options_come_back(texts):
    letters = [chr(ord("A") + place) for place in range(len(texts))]
    whole = join_options("which?", dict(zip(letters, texts, strict=True)), {each: f"{each}." for each in letters})
    assert list(split_options(whole).texts.values()) == [text.strip() for text in texts]


def test_what_is_translated_and_what_becomes_of_it():
    choice = question(CHOICE, "A", domain="multiple_choice", tier="high")
    parts = parts_of(choice, domain_of(choice))
    assert list(parts) == ["question", "A", "B", "C", "D"]
    shouted = {key: text.upper() for key, text in parts.items()}
    [version] = versions_of(choice, domain_of(choice), shouted, "am")
    assert version.text.startswith("WHICH OF THESE IS A FRUIT OF A TREE?\nA. AN APPLE\n")
    assert version.answers == ("A",)
    assert version.extra == {"domain": "multiple_choice", "tier": "low", "translated_from": "en", "original": CHOICE}
    asked = question("Where is Chad", "in Africa", "1960", domain="")
    parts = parts_of(asked, QUESTION)
    assert parts == {"question": "Where is Chad", "answer 1": "in Africa"}
    [version] = versions_of(asked, QUESTION, {"question": "Missä on Tšad", "answer 1": "Afrikassa"}, "fi")
    assert (version.text, version.answers) == ("Missä on Tšad?", ("Afrikassa", "1960"))
    assert version.coupling == asked.coupling
    assert "tier" not in version.extra


def test_texts_to_translate_go_both_ways():
    text = question("The rain has come.", "unused", domain="translation")
    into, back = versions_of(text, DOMAINS["translation"], {"question": "Sade on tullut."}, "fi")
    assert (into.language, into.text, into.answers) == ("fi", "Sade on tullut.", ("The rain has come.",))
    assert (back.language, back.text, back.answers) == ("en", "The rain has come.", ("Sade on tullut.",))
    assert (into.extra["answer_language"], back.extra["answer_language"]) == ("en", "fi")
    assert {into.id, back.id} == {"1/fi-en", "1/en-fi"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("<output> Moi </output>", {"question": "Moi"}),
        ("first <output>no</output> then <OUTPUT>yes</OUTPUT>", {"question": "yes"}),
        ("Moi", None),
        ("<output>Moi", None),
        ("<output> </output>", None),
    ],
)
def test_a_text_in_an_answer(said, found):
    assert parts_in(said, {"question": "Hi"}) == found


@pytest.mark.parametrize(
    ("inside", "usable"),
    [
        ('{"question": "a", "A": "b"}', True),
        ('```json\n{"A": "b", "question": "a"}\n```', True),
        ('{"question": "a"}', False),
        ('{"question": "a", "A": "b", "B": "c"}', False),
        ('{"question": "a", "A": 1}', False),
        ('{"question": "a", "A": " "}', False),
        ('["a", "b"]', False),
        ('{"question": "a", "A": }', False),
        ("a\nA. b", False),
    ],
)
def test_parts_in_an_answer(inside, usable):
    expected = {"question": "a", "A": "b"} if usable else None
    assert parts_in(f"<output>{inside}</output>", {"question": "x", "A": "y"}) == expected


@given(st.dictionaries(st.text(min_size=1), st.text().map(str.strip).filter(bool), min_size=2))
def test_parts_survive_a_prompt(parts):
    if "</output>" not in written(parts).lower():
        assert parts_in(f"<output>{written(parts)}</output>", parts) == parts


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("<verdict>SAME</verdict>", "SAME"),
        ("Because ...\n<verdict> different. </verdict>", "DIFFERENT"),
        ("<verdict>SAME</verdict> no: <verdict>DIFFERENT</verdict>", "DIFFERENT"),
        ("**Same**", "SAME"),
        ("They are the SAME.", "neither"),
        ("<verdict>SAME or DIFFERENT</verdict>", "neither"),
        ("<verdict></verdict>", "neither"),
        ("", "neither"),
    ],
)
def test_verdicts(said, verdict):
    assert verdict_in(said) == verdict


def test_prompts_name_the_languages_and_what_stays():
    prompt = translation_prompt({"question": PROBLEM}, DOMAINS["mathematics"].text, "en", "am")
    assert "from English to Amharic" in prompt
    assert "LaTeX" in prompt
    assert "JSON" not in prompt
    assert PROBLEM in prompt
    prompt = translation_prompt(
        parts_of(question(CHOICE, "A"), DOMAINS["multiple_choice"]), DOMAINS["question"].text, "am", "en"
    )
    assert "from Amharic to English" in prompt
    assert "JSON" in prompt
    assert '"C": "12"' in prompt
    prompt = judge_prompt({"question": "a {b}"}, {"question": "c"}, DOMAINS["translation"])
    assert "whether the two mean the same" in prompt
    assert "a {b}" in prompt

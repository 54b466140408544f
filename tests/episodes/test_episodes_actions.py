"""The policy's text of one generation is read by one rule, whatever it holds."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lcrag.episodes import Answer, Invalid, SearchAction, answer_in, parse_action

PIECES = st.sampled_from(
    [
        "<search>",
        "</search>",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "<information>",
        "</information>",
        " ",
        "x",
    ]
)
TEXTS = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=12).map("".join))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<think>hm</think> <search> capital of Peru </search>", SearchAction("capital of Peru")),
        ("<answer>Lima</answer>", Answer("Lima")),
        ("<answer>北京</answer>\n", Answer("北京")),
        ("<search>a</search><answer>b</answer>", Answer("b")),
        ("<answer>b</answer> no: <search>a</search>", SearchAction("a")),
        ("<search>a<search>b</search>", SearchAction("b")),
        ("</search><search>b</search>", SearchAction("b")),
        ("<search>two\nlines</search>", SearchAction("two\nlines")),
    ],
)
def test_the_pair_that_ends_the_text_is_the_action(text, action):
    assert parse_action(text) == action


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Lima",
        "<search></search>",
        "<search> \u3000\n</search>",
        "<answer> </answer>",
        "<search>never closed",
        "never opened</search>",
        "<answer>Lima</answer> and more",
        "<search>a</answer>",
        "<search>a <answer>b</search>",
        "<answer>a <think>b</think></answer>",
        "<Search>a</Search>",
        "<search >a</search >",
    ],
)
def test_anything_else_is_invalid(text):
    assert isinstance(parse_action(text), Invalid)


@given(TEXTS)
@example("<search>" * 500 + "</search>" * 500)
def test_no_text_is_too_odd(text):
    action = parse_action(text)
    match action:
        case SearchAction(content) | Answer(content):
            assert content and content == content.strip() and content in text
            tag = "search" if isinstance(action, SearchAction) else "answer"
            assert text.rstrip().endswith(f"</{tag}>")
    answer = answer_in(text)
    assert answer is None or (answer.strip() == answer != "" and answer in text)
    if isinstance(action, Answer):
        assert answer == action.text


def test_the_last_complete_answer_counts():
    assert answer_in("<answer>a</answer> or <answer>b</answer> or <answer>c") == "b"
    assert answer_in("<answer>a</answer><answer></answer>") == "a"
    assert answer_in("no answer") is None

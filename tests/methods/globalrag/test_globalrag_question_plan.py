"""Question plans: parsing, every fault, and order."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.methods.globalrag.plans import (
    FAULTS,
    MAX_QUESTIONS,
    BadPlan,
    QuestionPlan,
    parse_plan,
    plan_of,
    substituted,
)

CREEK = '{"Q1": ["Whose mouth is Toongabbie Creek?", "#1"], "Q2": ["Into what does #1 flow?", "#2"]}'

BAD = {
    "invalid_json": (
        "",
        "Q1: Who?",
        "{'Q1': ['Who?', '#1']}",
        '{"Q1": ["Who?", "#1"],}',
        '{"Q1": ["Who?", "#1"]} {"Q2": ["Who?", "#2"]}',
        '{"Q1": ["Who?", "#1"], "Q2": NaN}',
        "NaN",
        '{"Q1": ["\\ud800?", "#1"]}',
        '{"Q1": ["Who?", "#1"]',
        '{"Q1": ' + "9" * 5000 + "}",
        "[" * 100_000,
    ),
    "duplicate_key": ('{"Q1": ["Who?", "#1"], "Q1": ["Where?", "#1"]}',),
    "not_an_object": ("[]", '"Q1"', "null", "1", '[["Who?", "#1"]]'),
    "empty": ("{}",),
    "too_many_questions": (json.dumps({f"Q{n}": ["Who?", f"#{n}"] for n in range(1, MAX_QUESTIONS + 2)}),),
    "bad_key": tuple(f'{{"{key}": ["Who?", "#1"]}}' for key in ("q1", "Q0", "Q01", "Q", "1", "Q1 ", "Q①", "Q99999")),
    "bad_entry": tuple(
        f'{{"Q1": {entry}}}'
        for entry in ('"Who?"', "[]", '["Who?"]', '["Who?", "#1", "#2"]', '["", "#1"]', '[" ", "#1"]', '["Who?", 1]')
    )
    + ('{"Q1": {"Who?": "#1"}}',),
    "bad_placeholder": tuple(f'{{"Q1": ["Who?", "{name}"]}}' for name in ("#2", "1", "", "#01", "#1 ", "Q1")),
    "unknown_reference": tuple(f'{{"Q1": ["Who is {name}?", "#1"]}}' for name in ("#2", "#0", "#01", "#11")),
    "cyclic": (
        '{"Q1": ["Who is #1?", "#1"]}',
        '{"Q1": ["Who is #2?", "#1"], "Q2": ["Who is #1?", "#2"]}',
        '{"Q1": ["Who?", "#1"], "Q2": ["#1 of #4?", "#2"], "Q3": ["#2?", "#3"], "Q4": ["#3?", "#4"]}',
    ),
}


def test_the_paper_s_plan_is_read():
    plan = parse_plan(f"\n {CREEK} \n")
    assert plan.questions == {"Q1": "Whose mouth is Toongabbie Creek?", "Q2": "Into what does #1 flow?"}
    assert plan.dependencies == {"Q1": (), "Q2": ("Q1",)}
    assert plan.edges == (("Q1", "Q2"),)
    assert plan.canonical()["Q2"] == "Into what does something flow?"
    assert plan.as_object() == json.loads(CREEK)
    assert parse_plan(plan.as_json()) == plan == plan_of(plan.as_object())


def test_numbers_need_no_order_and_a_reference_counts_once():
    plan = parse_plan('{"Q12": ["#1 or #1, #3?", "#12"], "Q1": ["Who?", "#1"], "Q3": ["Where, #1?", "#3"]}')
    assert plan.edges == (("Q1", "Q12"), ("Q3", "Q12"), ("Q1", "Q3"))
    assert plan.order == ("Q1", "Q3", "Q12")
    assert plan.forward_reference == ("Q12", "Q1")


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_name(fault):
    for text in BAD[fault]:
        with pytest.raises(BadPlan) as caught:
            parse_plan(text)
        assert caught.value.fault == fault, text
        assert "\n" not in str(caught.value)


def test_answers_take_the_place_of_their_placeholders():
    assert substituted("#1 of #12 and #3?", {"Q1": "Lima", "Q12": "Peru #1"}) == "Lima of Peru #1 and #3?"


@st.composite
def plans(draw):
    """Plans over a shuffled numbering, edges from earlier to later ones."""
    numbers = draw(st.permutations(range(1, 7)))[: draw(st.integers(1, 6))]
    questions = {}
    for place, number in enumerate(numbers):
        named = [earlier for earlier in numbers[:place] if draw(st.booleans())]
        text = draw(st.text(st.characters(exclude_characters="#", exclude_categories=("Cs", "Nd")), max_size=8))
        questions[f"Q{number}"] = f"w {text} {' '.join(f'#{each}' for each in named)}".strip()
    keys = draw(st.permutations(list(questions)))
    return QuestionPlan({key: questions[key] for key in keys})


@given(plans())
def test_a_plan_survives_its_own_json_and_is_ordered(plan):
    assert parse_plan(plan.as_json()) == plan
    assert sorted(plan.order) == sorted(plan.questions)
    assert all(plan.order.index(before) < plan.order.index(after) for before, after in plan.edges)


TEXT = st.text() | st.text(st.sampled_from('{}[]",:Q123# \\'))
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=4) | st.sampled_from(["Q1", "#1", "Who?", "#2"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["Q1", "Q2", "Q9", "x"]), inner),
    max_leaves=8,
)


@given(st.tuples(st.just(parse_plan), TEXT) | st.tuples(st.just(plan_of), JSON))
def test_any_text_or_object_is_a_plan_or_has_a_fault(read_and_value):
    read, value = read_and_value
    try:
        assert read(value).questions
    except BadPlan as error:
        assert error.fault in FAULTS


@pytest.mark.parametrize(
    ("question", "edges"),
    [
        ("Where was the singer of the #1 hit of 1969 born?", (("Q1", "Q2"),)),
        ("Where was the singer of the #1 Hit of 1969 born?", (("Q1", "Q2"),)),
        ("Where was the singer of the # 1 hit of 1969 born?", None),
        ("Where was the singer of the #2 hit of 1969 born?", None),
    ],
)
def test_a_number_quoted_from_the_question_is_no_reference(question, edges):
    written = {"Q1": ["Who sang the #1 hit of 1969?", "#1"], "Q2": ["Where was #1 born?", "#2"]}
    if edges is None:
        with pytest.raises(BadPlan, match="cyclic"):
            plan_of(written, question)
        return
    plan = plan_of(written, question)
    assert plan.edges == edges
    assert plan.questions["Q1"] == "Who sang the # 1 hit of 1969?"
    assert plan_of(plan.as_object()) == plan


def test_a_short_word_after_a_number_is_a_quote_only_after_the_same_word():
    written = {"Q1": ["Which song reached #1 in 1969?", "#1"], "Q2": ["Who lived with #1 in 1970?", "#2"]}
    assert plan_of(written, "Who lived with the singer that reached #1 in 1969?").edges == (("Q1", "Q2"),)

"""Question plans: parsing, every fault, and order; golden plans as questions carry them, and MuSiQue's."""

import copy
import dataclasses
import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prepared_data import prepared

from lcrag.data.english import QUESTION_SETS
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.methods.globalrag.plans import (
    FAULTS,
    MAX_QUESTIONS,
    BadPlan,
    QuestionPlan,
    golden_graph,
    golden_plans,
    parse_plan,
    plan_of,
    published_golden_plans,
    substituted,
    united,
    with_decomposition,
    with_own_plan,
    with_own_plans,
)

CREEK = '{"Q1": ["Whose mouth is Toongabbie Creek?", "#1"], "Q2": ["Into what does #1 flow?", "#2"]}'

BAD = {
    "invalid_json": (
        "",
        "{'Q1': ['Who?', '#1']}",
        '{"Q1": ["Who?", "#1"],}',
        '{"Q1": ["Who?", "#1"], "Q2": NaN}',
        '{"Q1": ["\\ud800?", "#1"]}',
        '{"Q1": ' + "9" * 5000 + "}",
        "[" * 100_000,
    ),
    "duplicate_key": ('{"Q1": ["Who?", "#1"], "Q1": ["Where?", "#1"]}',),
    "not_an_object": ("[]", "null"),
    "empty": ("{}",),
    "too_many_questions": (json.dumps({f"Q{n}": ["Who?", f"#{n}"] for n in range(1, MAX_QUESTIONS + 2)}),),
    "bad_key": tuple(f'{{"{key}": ["Who?", "#1"]}}' for key in ("q1", "Q0", "Q01", "Q", "1", "Q1 ", "Q①", "Q99999")),
    "bad_entry": tuple(
        f'{{"Q1": {entry}}}'
        for entry in ('"Who?"', "[]", '["Who?"]', '["Who?", "#1", "#2"]', '[" ", "#1"]', '["Who?", 1]', '{"a": "#1"}')
    ),
    "bad_placeholder": tuple(f'{{"Q1": ["Who?", "{name}"]}}' for name in ("#2", "1", "", "#01", "#1 ", "Q1")),
    "unknown_reference": tuple(f'{{"Q1": ["Who is {name}?", "#1"]}}' for name in ("#2", "#0", "#01", "#11")),
    "cyclic": (
        '{"Q1": ["Who is #2?", "#1"], "Q2": ["Who is #1?", "#2"]}',
        '{"Q1": ["Who?", "#1"], "Q2": ["#1 of #4?", "#2"], "Q3": ["#2?", "#3"], "Q4": ["#3?", "#4"]}',
    ),
}


def test_the_paper_s_plan_is_read():
    plan = parse_plan(f"\n {CREEK} \n")
    assert plan.questions == {"Q1": "Whose mouth is Toongabbie Creek?", "Q2": "Into what does #1 flow?"}
    assert plan.edges == (("Q1", "Q2"),)
    assert plan.canonical()["Q2"] == "Into what does something flow?"
    assert parse_plan(plan.as_json()) == plan == plan_of(json.loads(CREEK))
    assert substituted("#1 of #12 and #3?", {"Q1": "Lima", "Q12": "Peru #1"}) == "Lima of Peru #1 and #3?"
    # Numbers need no order, and a reference counts once.
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
    ("question", "sub_question", "edges"),
    [
        # In Q1 itself it is no reference, whatever the question says, and wherever it stands.
        ("", ("Q1", "Who sang the #1 song of 1969?"), [("Q1", "Q2")]),
        ("", ("Q1", "Which song reached #1?"), [("Q1", "Q2")]),
        # In another it is one, unless the question has it before the same word
        ("Where was the singer of the #1 hit of 1969 born?", ("Q2", "Who wrote the #1 hit of 1969?"), []),
        ("Where was the singer of the # 1 hit of 1969 born?", ("Q2", "Who wrote the #1 hit of 1969?"), [("Q1", "Q2")]),
        ("Where was the singer of the #2 hit of 1969 born?", ("Q2", "Who wrote the #1 hit of 1969?"), [("Q1", "Q2")]),
        # (one of one or two letters counts only after the same word too)
        ("Who lived with the singer that reached #1 in 1969?", ("Q2", "What reached #1 in 1969?"), []),
        ("Who lived with the singer that reached #1 in 1969?", ("Q2", "Who lived with #1 in 1970?"), [("Q1", "Q2")]),
        # or after the same word, at the end of the sub-question.
        ("Who lived with the singer that reached #1 in 1969?", ("Q2", "Which song reached #1?"), []),
        ("Who lived with the singer that reached #1 in 1969?", ("Q2", "Who lived with #1?"), [("Q1", "Q2")]),
        ("Who came before the heir of #1 in 1969?", ("Q2", "Who was the heir of #1?"), [("Q1", "Q2")]),
    ],
)
def test_a_quoted_number_is_no_reference(question, sub_question, edges):
    key, text = sub_question
    written = {"Q1": ["Who?", "#1"], "Q2": ["Where was #1 born?", "#2"]} | {key: [text, f"#{key[1:]}"]}
    plan = plan_of(written, question)
    assert list(plan.edges) == edges
    is_quoted = key == "Q1" or not edges
    assert plan.questions[key] == (text.replace("#1", "# 1") if is_quoted else text)
    assert plan_of(plan.as_object()) == plan


GRAPH = {
    "Q1": {"query": "Who directed Jaws?", "answer": "Steven Spielberg", "previous": [], "supports": ["Jaws (film)"]},
    "Q2": {"query": "Where was #1 born?", "answer": ["Cincinnati", "Cincinnati, Ohio"], "previous": ["Q1"]},
}
PLAN = {"plan": {"Q1": ["Who?", "#1"], "Q2": ["Where, #1?", "#2"]}, "sub_answers": {"#1": ["He"], "#2": ["Here"]}}


def changed(original, *path, to):
    other = copy.deepcopy(original)
    place = other
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = to
    return other


def test_both_forms_of_golden_plans():
    assert golden_plans({"kind": "capital"}) == ()
    first, second = golden_plans({"golden_plans": [GRAPH, {"Q1": {"query": "Where?", "answer": ["Ohio"]}}]})
    assert first == golden_graph(GRAPH)
    assert first.plan.edges == (("Q1", "Q2"),)
    assert first.answers == {"Q1": ("Steven Spielberg",), "Q2": ("Cincinnati", "Cincinnati, Ohio")}
    assert (second.plan.questions, second.answers) == ({"Q1": "Where?"}, {"Q1": ("Ohio",)})
    [golden] = golden_plans(PLAN)
    assert golden.plan.questions == {"Q1": "Who?", "Q2": "Where, #1?"}
    assert golden.answers == {"Q1": ("He",), "Q2": ("Here",)}


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ({"golden_plans": []}, "golden_plans:"),
        ({"golden_plans": [GRAPH, []]}, "golden_plans.1:"),
        ({"golden_plans": [changed(GRAPH, "Q1", "query", to="")]}, "golden_plans.0: Q1"),
        ({"golden_plans": [changed(GRAPH, "Q1", "answer", to=[])]}, "golden_plans.0: answer of Q1"),
        ({"golden_plans": [changed(GRAPH, "Q2", "previous", to=[])]}, "golden_plans.0: Q2 has previous"),
        (changed(PLAN, "plan", "Q1", to="Who?"), "Q1 is not a list"),
        (changed(PLAN, "sub_answers", to={"#1": ["He"]}), "sub_answers.#2:"),
    ],
)
def test_the_place_of_what_is_wrong_is_named_in_one_line(extra, place):
    with pytest.raises(ValueError, match=place) as caught:
        golden_plans(extra)
    assert "\n" not in str(caught.value)


def test_a_question_without_a_plan_is_its_own():
    question = Question(id="1", dataset="d", language="en", text="Is C#7 or F#1 older?", answers=("C#7", "C# 7"))
    own = with_own_plan(question)
    [golden] = golden_plans(own.extra)
    assert golden.plan.questions == {"Q1": "Is C# 7 or F# 1 older?"}
    assert golden.answers == {"Q1": ("C#7", "C# 7")}
    assert with_own_plan(own) is own
    with pytest.raises(UserError, match="the plan has no question"):
        with_own_plans([dataclasses.replace(question, extra={"plan": {}})])


def test_equal_plans_are_one_with_the_answers_of_all():
    other = changed(GRAPH, "Q2", "query", to="Where did #1 grow up?")
    again = changed(GRAPH, "Q2", "answer", to=["Ohio", "Cincinnati"])
    for graph in (GRAPH, other, again):
        graph["Q1"]["answer"], graph["Q2"]["supports"] = ["Steven Spielberg"], ["Spielberg"]
    both = changed(GRAPH, "Q2", "answer", to=["Cincinnati", "Cincinnati, Ohio", "Ohio"])
    assert united([GRAPH, other, again]) == [both, other]


# The rows that the authors' README and reward show: JSON lines with a question, and a trainer's with a prompt. Parquet
# adds the keys of longer plans.
PUBLISHED = {
    "question": "What is the population of the #1 city of Daniela Scalia?",
    "golden_answers": ["265,000"],
    "metadata": {
        "hop": "2hop",
        "plan": {
            "Q1": ["What is the #1 city of Daniela Scalia?", "<A1>"],
            "Q2": ["What is the population of <A1>?", "<A2>"],
            "Q3": None,
        },
        "graph": [
            {"Q1": {"answer": "Verona"}, "Q2": {"answer": "265,000"}, "Q3": None},
            {"Q1": {"answer": "Verona, Italy"}, "Q2": {"answer": "265,000"}, "Q3": None},
        ],
    },
}
NODE = {"previous": ["Q1"], "query": "What is the population of Verona?", "tag": "<A2>"}
TEMPLATES = changed(PUBLISHED, "metadata", "plan", to=None)
TEMPLATES["metadata"]["graph"] = {
    "Q1": {"answer": ["Verona", "Verona, Italy"], "template": "What is the #1 city of Daniela Scalia?"},
    "Q2": NODE | {"answer": "265,000", "template": "What is the population of <A1>?"},
}
TRAINED = {
    "data_source": "hotpotqa",
    "prompt": [{"role": "user", "content": f"Step 1: ...\nQuestion:{PUBLISHED['question']}\n"}],
    "reward_model": {"ground_truth": {"target": ["265,000"]}, "style": "rule"},
    "metadata": PUBLISHED["metadata"],
}


@pytest.mark.parametrize("row", [PUBLISHED, TEMPLATES, TRAINED])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_the_authors_rows_load(row, ending, tmp_path):
    path = tmp_path / f"train.{ending}"
    if ending == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row) + "\n")
    question, other = published_golden_plans([path, path])
    assert (question.id, other.id) == ("1", "2")
    assert (question.text, question.answers) == (PUBLISHED["question"], ("265,000",))
    [golden] = golden_plans(question.extra)
    city = "What is the # 1 city of Daniela Scalia?"  # a number of theirs is no reference
    assert golden.plan.questions == {"Q1": city, "Q2": "What is the population of #1?"}
    assert golden.plan.edges == (("Q1", "Q2"),)
    assert golden.answers == {"Q1": ("Verona", "Verona, Italy"), "Q2": ("265,000",)}


def test_bad_rows_of_the_authors_are_named(tmp_path):
    cyclic = changed(PUBLISHED, "metadata", "plan", "Q1", to=["Where is <A2>?", "<A1>"])
    unanswered = changed(PUBLISHED, "metadata", "graph", to=[{"Q1": {"answer": "Verona"}}])
    for row, problem in ((cyclic, "cyclic"), (unanswered, "answer of Q2"), ({}, "question")):
        (tmp_path / "bad.jsonl").write_text(f"{json.dumps(row)}\n")
        with pytest.raises(UserError, match=f"line 1, field .*{problem}"):
            published_golden_plans([tmp_path / "bad.jsonl"])


ROW = {
    "id": "2hop__1_2",
    "question": "Where was the director of Jaws born?",
    "answer": "Cincinnati",
    "answer_aliases": ["Cincinnati, Ohio"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Jaws", "paragraph_text": "Steven Spielberg directed Jaws."},
        {"idx": 1, "title": "Spielberg", "paragraph_text": "He was born in Cincinnati."},
    ],
    "question_decomposition": [
        {"id": 1, "question": "Jaws >> director", "answer": "Steven Spielberg", "paragraph_support_idx": 0},
        {"id": 2, "question": "Where was #1 born?", "answer": "cincinnati", "paragraph_support_idx": 1},
    ],
}


def row(number, *steps):
    return ROW | {"id": f"2hop__{number}", "question_decomposition": list(steps)}


ONE, TWO = ROW["question_decomposition"]
BAD_ROWS = {
    "cyclic": row(2, ONE | {"question": "Jaws and #2"}, TWO),
    "unknown reference": row(3, ONE, TWO | {"question": "Where was #3 born?"}),
    "inconsistent order": row(4, ONE | {"question": "Jaws and not #2"}, TWO | {"question": "What is Jaws 2?"}),
    "another answer": row(5, ONE, TWO | {"answer": "Ohio"}),
    "no decomposition": row(6),
    "too many questions": row(7, *[ONE, TWO] * 9),
}


def read(path, *rows, **options):
    if rows:
        path /= "musique.jsonl"
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    bad_rows = BadRows(**options)
    examples = QUESTION_SETS["musique"].read(path, bad_rows, add_plan=with_decomposition)
    return [example.question for example in examples], bad_rows


def test_every_real_decomposition_is_a_plan():
    path = prepared("musique/musique_ans_v1.0_dev.subset.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    questions, _ = read(path)
    assert len(questions) == len(rows) == 150
    for each, question in zip(rows, questions, strict=True):
        [golden] = golden_plans(question.extra)
        assert parse_plan(golden.plan.as_json()) == golden.plan
        official = each["question_decomposition"]
        assert list(golden.plan.questions.values()) == [step["question"].strip() for step in official]
        for number, step in enumerate(official, start=1):
            named = {f"Q{other}" for other in range(1, 9) if f"#{other}" in step["question"]}
            assert set(golden.plan.dependencies[f"Q{number}"]) == named
            assert golden.answers[f"Q{number}"][0] == step["answer"].strip()
        assert set(question.answers) <= set(golden.answers[f"Q{len(official)}"])


def test_a_decomposition_with_its_answers_and_paragraphs(tmp_path):
    [question], _ = read(tmp_path, ROW)
    jaws, spielberg = question.extra["supports"]
    [graph] = question.extra["golden_plans"]
    first = {"query": "Jaws >> director", "answer": ["Steven Spielberg"], "previous": [], "supports": [jaws]}
    answers = ["cincinnati", "Cincinnati", "Cincinnati, Ohio"]
    second = {"query": "Where was #1 born?", "answer": answers, "previous": ["Q1"], "supports": [spielberg]}
    assert graph == {"Q1": first, "Q2": second}


def test_unusable_decompositions_are_counted_by_cause_or_end_the_reading(tmp_path):
    questions, bad_rows = read(tmp_path, ROW, *BAD_ROWS.values(), BAD_ROWS["cyclic"] | {"id": "2hop__9"}, skip=True)
    assert [question.id for question in questions] == ["2hop__1_2"]
    assert bad_rows.causes == dict.fromkeys(BAD_ROWS, 1) | {"cyclic": 2}
    for part in ("line 2, field question_decomposition", "Q1 needs Q2 needs Q1"):
        assert part in bad_rows.summary()
    with pytest.raises(UserError, match="line 2, field question_decomposition.* --skip_bad_rows"):
        read(tmp_path, ROW, BAD_ROWS["cyclic"])

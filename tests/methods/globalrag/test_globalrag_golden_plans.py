"""Golden plans: as questions carry them, and made of MuSiQue's decompositions."""

import copy
import gzip
import json

import pytest
from prepared_data import prepared

from lcrag.atlas import build_world
from lcrag.data.english import question_set
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows, UnusableQuestion
from lcrag.errors import UserError
from lcrag.methods.globalrag.plans import golden_graph, golden_plans, parse_plan, with_decomposition, with_own_plan

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


def test_both_forms():
    assert golden_plans({"kind": "capital"}) == ()
    first, second = golden_plans({"golden_plans": [GRAPH, {"Q1": {"query": "Where?", "answer": ["Ohio"]}}]})
    assert first == golden_graph(GRAPH)
    assert first.plan.edges == (("Q1", "Q2"),)
    assert first.answers == {"Q1": ("Steven Spielberg",), "Q2": ("Cincinnati", "Cincinnati, Ohio")}
    assert (second.plan.questions, second.answers) == ({"Q1": "Where?"}, {"Q1": ("Ohio",)})
    [golden] = golden_plans(PLAN)
    assert golden.plan.questions == {"Q1": "Who?", "Q2": "Where, #1?"}
    assert golden.answers == {"Q1": ("He",), "Q2": ("Here",)}


def test_chains_of_the_atlas_carry_one():
    for question in build_world(0).questions("held_out", ("en", "ja"), hops=(2,)):
        [golden] = golden_plans(question.extra)
        assert golden.plan.edges == (("Q1", "Q2"),)
        assert golden.answers["Q2"] == question.answers


@pytest.mark.parametrize(
    ("extra", "clue"),
    [
        ({"golden_plans": []}, "golden_plans: it is not a list of at least one graph"),
        ({"golden_plans": GRAPH}, "golden_plans: it is not a list"),
        ({"golden_plans": [GRAPH, []]}, "golden_plans.1: it is not an object of sub-questions"),
        ({"golden_plans": [{"Q1": "Who?"}]}, "golden_plans.0: it is not an object of sub-questions"),
        ({"golden_plans": [changed(GRAPH, "Q1", "query", to="")]}, "golden_plans.0: Q1 has no query"),
        ({"golden_plans": [changed(GRAPH, "Q1", "answer", to=[])]}, "golden_plans.0: answer of Q1: it is not a non-e"),
        ({"golden_plans": [changed(GRAPH, "Q2", "answer", to=[3])]}, "golden_plans.0: answer of Q2: it is not a non-e"),
        ({"golden_plans": [changed(GRAPH, "Q2", "previous", to=[])]}, r"Q2 has previous \[\], but its query names"),
        ({"golden_plans": [changed(GRAPH, "Q2", "query", to="#3?")]}, "golden_plans.0: Q2 names #3, which no question"),
        ({"golden_plans": [changed(GRAPH, "Q1", "query", to="#2?")]}, "the plan is cyclic"),
        (changed(PLAN, "plan", "Q1", to="Who?"), "plan: Q1 is not a list of a question and a placeholder"),
        (changed(PLAN, "sub_answers", to={"#1": ["He"]}), "sub_answers.#2: it is not a non-empty text"),
        (changed(PLAN, "sub_answers", "#3", to=["She"]), "sub_answers: #3 is the placeholder of no question"),
        ({"plan": PLAN["plan"]}, "sub_answers.#1: it is not a non-empty text"),
    ],
)
def test_an_invalid_one_is_described_in_one_line(extra, clue):
    with pytest.raises(ValueError, match=clue) as caught:
        golden_plans(extra)
    assert "\n" not in str(caught.value)


def test_a_question_without_a_plan_is_its_own():
    question = Question(id="1", dataset="d", language="en", text="Is C#7 or F#1 older?", answers=("C#7", "C# 7"))
    own = with_own_plan(question)
    [golden] = golden_plans(own.extra)
    assert golden.plan.questions == {"Q1": "Is C# 7 or F# 1 older?"}
    assert golden.answers == {"Q1": ("C#7", "C# 7")}
    assert with_own_plan(own) is own


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


def row(number, step=0, steps=ROW["question_decomposition"], **fields):
    """The row under another number, with other fields of one step."""
    return changed(ROW | {"id": f"2hop__{number}", "question_decomposition": steps}, "question_decomposition", to=[
        each | fields if place == step else each for place, each in enumerate(steps)
    ])  # fmt: skip


LATER = [
    {"id": 1, "question": "Who directed Jaws and not #2?", "answer": "x"},
    {"id": 2, "question": "What is Jaws 2?", "answer": "Cincinnati"},
]
BAD = {
    "cyclic": row(2, 1, question="Where was #2 born?"),
    "unknown reference": row(3, 1, question="Where was #3 born?"),
    "inconsistent order": row(4, steps=LATER),
    "another answer": row(5, 1, answer="Ohio"),
    "no decomposition": row(6, steps=[]),
    "too many questions": row(7, steps=ROW["question_decomposition"] * 9),
}


def written(folder, *rows):
    path = folder / "musique.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def read(path, name="musique", **options):
    bad_rows = BadRows(**options)
    found = question_set(name).read(path, bad_rows, add_plan=with_decomposition)
    return [each.question for each in found], bad_rows


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
    [question], _ = read(written(tmp_path, ROW))
    jaws, spielberg = question.extra["supports"]
    assert question.extra["golden_plans"] == [
        {
            "Q1": {"query": "Jaws >> director", "answer": ["Steven Spielberg"], "previous": [], "supports": [jaws]},
            "Q2": {
                "query": "Where was #1 born?",
                "answer": ["cincinnati", "Cincinnati", "Cincinnati, Ohio"],
                "previous": ["Q1"],
                "supports": [spielberg],
            },
        }
    ]


def test_unusable_decompositions_are_counted_by_cause(tmp_path):
    path = written(tmp_path, ROW, *BAD.values(), BAD["cyclic"] | {"id": "2hop__9"})
    questions, bad_rows = read(path, skip=True)
    assert [question.id for question in questions] == ["2hop__1_2"]
    assert bad_rows.causes == dict.fromkeys(BAD, 1) | {"cyclic": 2}
    assert "7 bad rows were left out (2 cyclic, 1 unknown reference, 1 inconsistent order" in bad_rows.summary()
    assert f"the first: {path}, line 2, field question_decomposition: cyclic: Q2 needs Q2" in bad_rows.summary()


def test_the_first_unusable_decomposition_ends_the_reading(tmp_path):
    with pytest.raises(UserError, match="line 2, field question_decomposition: cyclic: .* with --skip_bad_rows"):
        read(written(tmp_path, ROW, BAD["cyclic"]))


def test_a_step_without_an_answer():
    steps = [{"question": "Who?", "answer": " ", "support": None}]
    question = Question(id="1", dataset="d", language="en", text="?", answers=("x",), extra={"decomposition": steps})
    with pytest.raises(UnusableQuestion, match="no sub-answer: step 1 has no answer"):
        with_decomposition(question)


def test_sets_without_decompositions_are_refused(tmp_path):
    with pytest.raises(UserError, match="hotpotqa"):
        read(written(tmp_path, ROW), name="hotpotqa")

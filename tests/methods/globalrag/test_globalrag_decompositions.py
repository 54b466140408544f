"""MuSiQue's decompositions as golden plans: those of real rows, and ones that are no plan, each counted."""

import copy
import gzip
import json

import pytest
from prepared_data import prepared

from lcrag.data.english.sets import question_set
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.methods.globalrag.planned_questions import Unplanned, with_decomposition
from lcrag.methods.globalrag.plans import golden_plans, parse_plan

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


def changed(number, step, **fields):
    """The row under another number, with another step."""
    row = copy.deepcopy(ROW) | {"id": f"2hop__{number}"}
    row["question_decomposition"][step] |= fields
    return row


BAD = {
    "cyclic": changed(2, 1, question="Where was #2 born?"),
    "unknown reference": changed(3, 1, question="Where was #3 born?"),
    "inconsistent order": changed(4, 0, question="Who directed Jaws and not #2?")
    | {"question_decomposition": [
        {"id": 1, "question": "Who directed Jaws and not #2?", "answer": "x"},
        {"id": 2, "question": "What is Jaws 2?", "answer": "Cincinnati"},
    ]},
    "another answer": changed(5, 1, answer="Ohio"),
    "no decomposition": ROW | {"id": "2hop__6", "question_decomposition": []},
    "too many questions": ROW | {"id": "2hop__7", "question_decomposition": ROW["question_decomposition"] * 9},
}  # fmt: skip


def written(folder, *rows):
    path = folder / "musique.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path, name="musique", **options):
    bad_rows = BadRows(**options)
    return [each.question for each in question_set(name).read(path, bad_rows, golden_plans=True)], bad_rows


def test_every_real_row_is_a_plan():
    path = prepared("musique/musique_ans_v1.0_dev.subset.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    questions, _ = read(path)
    assert len(questions) == len(rows) == 150
    for row, question in zip(rows, questions, strict=True):
        [golden] = golden_plans(question.extra)
        assert parse_plan(golden.plan.as_json()) == golden.plan
        official = row["question_decomposition"]
        assert list(golden.plan.questions.values()) == [step["question"].strip() for step in official]
        for number, step in enumerate(official, start=1):
            named = {f"Q{other}" for other in range(1, 9) if f"#{other}" in step["question"]}
            assert set(golden.plan.dependencies[f"Q{number}"]) == named
            assert golden.answers[f"Q{number}"][0] == step["answer"].strip()
        assert set(question.answers) <= set(golden.answers[f"Q{len(official)}"])


def test_a_plan_with_its_answers_and_paragraphs(tmp_path):
    [question], _ = read(written(tmp_path, ROW))
    [graph] = question.extra["golden_plans"]
    jaws, spielberg = question.extra["supports"]
    assert graph == {
        "Q1": {"query": "Jaws >> director", "answer": ["Steven Spielberg"], "previous": [], "supports": [jaws]},
        "Q2": {
            "query": "Where was #1 born?",
            "answer": ["cincinnati", "Cincinnati", "Cincinnati, Ohio"],
            "previous": ["Q1"],
            "supports": [spielberg],
        },
    }
    assert question.dataset == "musique" and len(question.extra["decomposition"]) == 2
    plain = [each.question for each in question_set("musique").read(tmp_path / "musique.jsonl", BadRows())]
    assert "golden_plans" not in plain[0].extra


def test_what_is_no_plan_is_counted_by_its_cause(tmp_path):
    path = written(tmp_path, ROW, *BAD.values(), BAD["cyclic"] | {"id": "2hop__9"})
    questions, bad_rows = read(path, skip=True)
    assert [question.id for question in questions] == ["2hop__1_2"]
    assert bad_rows.causes == dict.fromkeys(BAD, 1) | {"cyclic": 2}
    assert bad_rows.summary().startswith(
        "7 bad rows were left out (2 cyclic, 1 unknown reference, 1 inconsistent order"
    )
    assert f"the first: {path}, line 2, field question_decomposition: cyclic: Q2 needs Q2" in bad_rows.summary()


@pytest.mark.parametrize("cause", BAD)
def test_the_first_that_is_no_plan_ends_the_reading(cause, tmp_path):
    path = written(tmp_path, ROW, BAD[cause])
    with pytest.raises(UserError, match=f"line 2, field question_decomposition: {cause}: .* with --skip_bad_rows"):
        read(path)


def test_a_step_without_an_answer():
    steps = [{"question": "Who?", "answer": " ", "support": None}]
    question = Question(id="1", dataset="d", language="en", text="?", answers=("x",), extra={"decomposition": steps})
    with pytest.raises(Unplanned, match="no sub-answer: step 1 has none"):
        with_decomposition(question)


def test_sets_without_decompositions_are_refused(tmp_path):
    with pytest.raises(UserError, match="the rows of hotpotqa hold no decomposition that could be a golden plan"):
        read(written(tmp_path, ROW), name="hotpotqa")

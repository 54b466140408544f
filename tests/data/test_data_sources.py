"""Sources of Translate-R1's training questions: XL-Sum's and CrossThink's rows, and instructions with constraints."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.row_files import write_rows

from lcrag.data.questions import Question
from lcrag.data.sources import constrained_instructions, crossthink_questions, xlsum_questions
from lcrag.errors import UserError
from lcrag.rewards.domains import read_constraints


def test_articles_of_xlsum_are_summarised_and_their_summaries_translated(tmp_path):
    text, summary = "An article. " * 300, "A mayor opened a bridge."
    row = {"id": "world-1", "url": "u", "title": "t", "summary": summary, "text": text}
    write_rows(tmp_path / "english_train.jsonl", row, row | {"id": "world-2"})
    write_rows(tmp_path / "hausa_train.jsonl", row | {"id": "labarai-1"})
    found = xlsum_questions(languages=("en", "ha"), folder=str(tmp_path))
    places = [("world-1", "en", "high"), ("world-2", "en", "high"), ("labarai-1", "ha", "low")]
    assert [(each.id, each.language, each.tier) for each in found] == places
    assert {(each.text, each.answers, each.domain) for each in found} == {(text.strip(), (summary,), "summarisation")}
    sources = xlsum_questions(domain="translation", folder=str(tmp_path), limit=1)
    assert [(each.text, each.answers, each.domain) for each in sources] == [(summary, (), "translation")]
    assert not {each.key for each in sources} & {each.key for each in found}
    for language, named in (("am", "no amharic_train.jsonl"), ("zu", "zu")):
        with pytest.raises(UserError, match=named):
            xlsum_questions(languages=(language,), folder=str(tmp_path))


def test_questions_of_crossthink_are_those_with_a_letter(tmp_path):
    text = "Which is a planet?\n" + "\n".join(f"{letter}. {letter}-land" for letter in "ABCDEFGHIJ")
    gold = ["J", "\\boxed{B}", "(C)", "42", "the answer is unknown"]
    row = {"data_source": "qa", "prompt": [{"role": "user", "content": f"Solve. {text}"}], "ability": "qa"}
    rows = [
        row
        | {"reward_model": {"ground_truth": answer, "style": "rule"}}
        | {"meta_data": {"index": 0, "question": f"{number}: {text}", "split": "train"}}
        for number, answer in enumerate(gold)
    ]
    write_rows(tmp_path / "train_qa.jsonl", *rows)
    found = crossthink_questions(folder=str(tmp_path))
    assert [each.answers for each in found] == [("J",), ("B",), ("C",)]
    assert {each.domain for each in found} == {"multiple_choice"}
    assert found[0].text == f"0: {text}"
    write_rows(tmp_path / "train_qa.jsonl", *rows[3:])
    with pytest.raises(UserError, match="is an option's letter"):
        crossthink_questions(folder=str(tmp_path))


SUBJECT = "The mayor of Lima opened a bridge over the river after seven years of building"


def obeying(constraints):
    """A text that meets all constraints, by their kinds."""
    by_kind = {each["kind"]: each for each in constraints}
    words = " ".join(2 * by_kind["include"]["words"])
    count = {name: by_kind.get(name, {}).get("least", 0) for name in ("words", "sentences", "paragraphs", "bullets")}
    parts = [f"It tells of {words}." for _ in range(max(1, count["sentences"], count["paragraphs"], count["bullets"]))]
    if "ends_with" in by_kind and not count["bullets"]:
        parts[-1] = f"It tells of {words} and That is all."
    elif "ends_with" in by_kind:
        parts[-1] = f"{words} That is all."
    parts[0] = f"<<So>> {parts[0]}" if "title" in by_kind else parts[0]
    parts[0] = " ".join(["so"] * count["words"] + [parts[0]])
    separator = "\n\n" if count["paragraphs"] else "\n- " if count["bullets"] else " "
    return "- " * bool(count["bullets"]) + separator.join(parts)


@given(st.integers(0, 10_000))
def test_constraints_of_an_instruction_are_said_and_can_all_be_met(seed):
    asked = Question(id="1", dataset="d", language="en", text=SUBJECT, answers=())
    [made] = constrained_instructions([asked], seed=seed)
    assert [made] == constrained_instructions([asked], seed=seed)
    constraints = read_constraints(made.extra["constraints"], "1")
    assert 2 <= len(constraints) <= 4
    assert len({constraint.kind for constraint in constraints}) == len(constraints)
    text = obeying(made.extra["constraints"])
    assert [constraint.satisfied(text) for constraint in constraints] == [True] * len(constraints), text
    assert not all(constraint.satisfied("No.") for constraint in constraints)
    quoted = set(re.findall(r'"([^"]+)"', made.text))
    named = {word for each in made.extra["constraints"] for word in each.get("words", ())}
    assert named <= quoted
    assert made.domain == "instruction_following"


def test_instructions_of_different_texts_differ_and_short_ones_make_none():
    asked = [Question(id=str(n), dataset="d", language="en", text=SUBJECT, answers=()) for n in range(200)]
    made = constrained_instructions(asked)
    kinds = {constraint["kind"] for each in made for constraint in each.extra["constraints"]}
    assert kinds == {
        *("include", "exclude", "frequency", "sentences", "words", "paragraphs", "bullets"),
        *("no_commas", "title", "ends_with"),
    }
    with pytest.raises(UserError, match="none of 1 texts"):
        constrained_instructions([Question(id="1", dataset="d", language="en", text="A cat sat.", answers=())])

"""XOR-TyDi QA: real rows of the development set, and rows made for training."""

import collections
import json
import shutil

import pytest
from prepared_data import prepared

from lcrag.data.languages import XOR_TYDI_TEST
from lcrag.data.rows import BadRows
from lcrag.data.xor_tydi import xor_tydi_questions
from lcrag.errors import UserError


def asked(folder, split, languages, **options):
    return xor_tydi_questions(folder, split, languages, **{"bad_rows": BadRows()} | options)


def row(number, language, **changes):
    return {"id": str(number), "question": "missä", "answers": ["täällä", "täällä"], "lang": language} | changes


def write(folder, *rows, name="xor_train_full.jsonl"):
    (folder / name).write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in rows))
    return folder


def test_training_takes_as_many_of_each_language(tmp_path):
    rows = [row(100 * n + place, language) for n, language in enumerate(("fi", "ja", "bn")) for place in range(20)]
    write(tmp_path, *rows)
    questions = asked(tmp_path, "train", ("ja", "fi"), train=5)
    assert [question.language for question in questions] == ["ja"] * 5 + ["fi"] * 5
    assert {(question.dataset, question.text, question.answers) for question in questions} == {
        ("xor_tydi", "missä?", ("täällä",))
    }
    assert asked(tmp_path, "train", ("fi",), train=5) == questions[5:]  # whichever other languages are taken
    assert asked(tmp_path, "train", ("fi",), train=3) == questions[5:8]
    assert asked(tmp_path, "train", ("fi",), train=5, seed=1) != questions[5:]
    assert len(asked(tmp_path, "train", ("fi", "bn"), train=None)) == 40
    with pytest.raises(UserError, match="only 20 usable training questions of xor_tydi in fi for the splits train 21"):
        asked(tmp_path, "train", ("fi",), train=21)


def test_rows_without_an_answer_are_left_out_and_one_answer_may_stand_alone(tmp_path):
    write(tmp_path, row(1, "fi", answers=[]), row(2, "fi", answers=[" "]), row(3, "fi", answers="yksi"))
    [question] = asked(tmp_path, "train", ("fi",), train=None)
    assert (question.id, question.answers) == ("3", ("yksi",))


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (row(1, "fi"), ("field id", "1 is already used in line 1")),
        (row(2, "fi", answers=[3]), ("field answers.0", "string")),
    ],
)
def test_bad_rows(tmp_path, one_bad_row, wrong, parts):
    write(tmp_path, row(1, "fi"), wrong)
    rows = one_bad_row(
        lambda bad_rows: asked(tmp_path, "train", ("fi",), train=None, bad_rows=bad_rows), "full.jsonl, line 2", *parts
    )
    assert len(rows) == 1


def test_english_comes_from_tydi_qa(tmp_path):
    shutil.copy(prepared("tydiqa/goldp.en.json"), tmp_path / "tydiqa-goldp-v1.1-train.json")
    [question] = asked(tmp_path, "train", ("en",), train=1)
    assert (question.language, question.answers) == ("en", ("Wound care",))
    with pytest.raises(UserError, match="no xor_train_full.jsonl in .*: download https://nlp.cs.washington.edu/"):
        asked(tmp_path, "train", ("en", "fi"), train=1)
    shutil.copy(prepared("tydiqa/goldp.fi.json"), tmp_path / "tydiqa-goldp-v1.1-dev.json")
    assert asked(tmp_path, "test", ("en",)) == []  # the file holds all languages; these questions are Finnish


def test_mistakes_are_sentences(tmp_path):
    with pytest.raises(UserError, match="no split 'dev' of xor_tydi: use one of train, test"):
        asked(tmp_path, "dev", ("fi",))
    with pytest.raises(UserError, match="no questions in 'th'"):
        asked(tmp_path, "test", ("th",))


def test_the_official_development_rows(tmp_path):
    source = prepared("xor_tydi/xor_dev_full_v1_1.subset.jsonl")
    shutil.copy(source, tmp_path / "xor_dev_full_v1_1.jsonl")
    questions = asked(tmp_path, "test", XOR_TYDI_TEST)
    assert collections.Counter(question.language for question in questions) == dict.fromkeys(XOR_TYDI_TEST, 43)
    rows = {each["id"]: each for each in map(json.loads, source.read_text().splitlines())}
    assert all(set(question.answers) == set(rows[question.id]["answers"]) for question in questions)
    assert all(question.text.startswith(rows[question.id]["question"].strip()[:-1]) for question in questions)


def test_questions_without_answers_cannot_be_asked(tmp_path):
    shutil.copy(prepared("xor_tydi/xor_test_full_q_only.sample.jsonl"), tmp_path / "xor_dev_full_v1_1.jsonl")
    with pytest.raises(UserError, match="line 1, field answers: field required"):
        asked(tmp_path, "test", ("te",))

"""Questions by domain and tier, and judges, as gin files bind them."""

import collections
import json

import gin
import pytest

from lcrag.composition.datasets import (
    constructed_questions,
    english_vocabulary,
    global_mmlu_questions,
    mgsm_questions,
    tiered_questions,
)
from lcrag.composition.gin_files import read_file
from lcrag.data.constructed import CONSTRUCTED
from lcrag.data.global_mmlu import LANGUAGES as MMLU_LANGUAGES
from lcrag.data.mgsm import LANGUAGES as MGSM_LANGUAGES
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.models.completers import CompletionJudge
from lcrag.models.translators import LookUpTranslator
from lcrag.rewards import domain_reward

COLUMNS = ("sample_id", "subject", "subject_category", "question", *(f"option_{letter}" for letter in "abcd"))
ENGLISH = Question(id="1", dataset="d", language="en", text="How many ducks?", answers=("3",))


def bound(file):
    return {binding.key: binding.value for binding in read_file(file)}


def test_mgsm_and_bad_rows(tmp_path, capsys):
    (tmp_path / "mgsm_en.tsv").write_text("One?\t1\nTwo?\ttwo\n")
    with pytest.raises(
        UserError, match="mgsm_en.tsv, line 2, field answer: expected a number, not 'two'; correct the row"
    ):
        mgsm_questions(("en",), str(tmp_path))
    gin.bind_parameter("BadRows.skip", True)
    assert [each.answers for each in mgsm_questions(("en",), str(tmp_path))] == [("1",)]
    assert "1 bad row was left out" in capsys.readouterr().err
    with pytest.raises(UserError, match="mgsm_questions.folder"):
        mgsm_questions(("en",))


def test_global_mmlu(tmp_path):
    for language in ("en", "ha"):
        (tmp_path / language).mkdir()
        rows = (dict.fromkeys(COLUMNS, "x") | {"sample_id": str(n), "answer": "A"} for n in range(4))
        (tmp_path / language / "test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = global_mmlu_questions("test", ("en", "ha"), str(tmp_path), limit=3)
    assert collections.Counter(each.tier for each in found) == {"high": 3, "low": 3}


def test_the_files_name_all_languages():
    assert set(bound("data/mgsm.gin")["held_out/mgsm_questions.languages"]) == set(MGSM_LANGUAGES)
    assert set(bound("data/global_mmlu.gin")["LANGUAGES"]) == set(MMLU_LANGUAGES)


def test_constructed_questions_and_their_translator(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("geese\n")
    finnish = Question(id="1", dataset="d", language="fi", text="Montako ankkaa?", answers=("3",))
    vocabulary = english_vocabulary([ENGLISH, finnish], str(words))
    assert vocabulary == ["ducks", "geese", "how", "many"]
    versions = constructed_questions([ENGLISH, finnish], vocabulary)
    assert [(each.language, each.tier) for each in versions] == [(code, "synthetic") for code in CONSTRUCTED]
    assert LookUpTranslator(vocabulary)([each.text for each in versions], None, "en") == [ENGLISH.text] * 2
    with pytest.raises(UserError, match="english_vocabulary has no words: give it English questions, or a file"):
        english_vocabulary([finnish])


def test_tiers_with_and_without_weights():
    asked = [
        Question(id=str(n), dataset="d", language=code, text="?", answers=("1",))
        for n in range(80)
        for code in ("en", "ha")
    ]
    assert len(tiered_questions(asked)) == 160
    assert tiered_questions(asked)[1].tier == "low"
    kept = tiered_questions(asked, weights=bound("data/inverse_resource.gin")["train/tiered_questions.weights"])
    assert collections.Counter(each.language for each in kept) == {"en": 10, "ha": 80}
    with pytest.raises(UserError, match="the language 'en' is in no tier of mine"):
        tiered_questions(asked, {"mine": ("ha",)})


@pytest.mark.parametrize(
    ("file", "model"), [("judge/endpoint.gin", "judge/EndpointCompleter"), ("judge/local.gin", "judge/local_model")]
)
def test_judges(file, model):
    bindings = bound(file)
    assert bindings["domain_reward.judge"].name == "CompletionJudge"
    assert bindings["CompletionJudge.model"].name == model
    judge = CompletionJudge(lambda requests: [])
    assert domain_reward(judge=judge).models == {"judge": judge}

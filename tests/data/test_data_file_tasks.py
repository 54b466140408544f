"""The data sets in files as seqio tasks: read when first asked for, and back to questions."""

import gzip
import json
import shutil

import pytest
import seqio
from prepared_data import prepared

import lcrag.atlas.tasks
from lcrag.atlas.vocabulary import SHIPPED_FOLDER
from lcrag.data import global_mmlu, mgsm
from lcrag.data.english.sets import QUESTION_SETS, questions_of
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING, XOR_TYDI_TEST, XOR_TYDI_TRAINING
from lcrag.data.rows import BadRows
from lcrag.data.seqio_tasks import TokenizerVocabulary, register_jsonl
from lcrag.data.tiers import inverse_resource_rates
from lcrag.data.xquad import LANGUAGES, xquad_questions
from lcrag.errors import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as LCRAG_DATA names it, with what is prepared."""
    shutil.copytree(prepared("xquad"), tmp_path / "xquad")
    for name in ("mkqa", "xor_tydi"):
        (tmp_path / name).mkdir()
    shutil.copy(prepared("xor_tydi/xor_dev_full_v1_1.subset.jsonl"), tmp_path / "xor_tydi" / "xor_dev_full_v1_1.jsonl")
    shutil.copy(prepared("mkqa_standin/standin_bmlama53_13lang.jsonl.gz"), tmp_path / "mkqa" / "mkqa.jsonl.gz")
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("mixture", "languages"),
    [
        ("mkqa_train", LCRL_TRAINING),
        ("mkqa_validation", LCRL_TRAINING),
        ("mkqa_test", LCRL_LANGUAGES),
        ("xor_tydi_train", XOR_TYDI_TRAINING),
        ("xor_tydi_test", XOR_TYDI_TEST),
        ("xquad_train", LANGUAGES),
        ("xquad_test", LANGUAGES),
        ("mgsm_test", mgsm.LANGUAGES),
        ("global_mmlu_test", global_mmlu.LANGUAGES),
    ],
)
def test_mixtures_have_the_paper_s_languages(mixture, languages):
    names = {task.name for task in seqio.get_mixture_or_task(mixture).tasks}
    assert names == {f"{mixture}_{language}" for language in languages}


def test_examples_and_questions(folder):
    questions = xquad_questions(folder / "xquad", "test", ("th",), bad_rows=BadRows())
    assert lcrag.atlas.tasks.questions_of_task("xquad_test_th") == questions
    task = seqio.get_mixture_or_task("xquad_test_th")
    row = next(task.get_dataset({"inputs": 256, "targets": 64}, "test", shuffle=False).as_numpy_iterator())
    vocabulary = task.output_features["inputs"].vocabulary
    assert vocabulary.decode(row["inputs"].tolist()) == questions[0].text
    assert vocabulary.decode(row["targets"].tolist()[:-1]) == f" {questions[0].answers[0]}"
    found = [lcrag.atlas.tasks.questions_of_task(f"xor_tydi_test_{language}") for language in XOR_TYDI_TEST]
    assert [len(each) for each in found] == [43] * 7


def test_what_is_missing_is_a_sentence(folder, monkeypatch):
    with pytest.raises(UserError, match="only 500 usable questions of mkqa for the splits"):
        lcrag.atlas.tasks.questions_of_task("mkqa_train_fi")
    with pytest.raises(UserError, match="no xquad.ro.json"):
        lcrag.atlas.tasks.questions_of_task("xquad_test_ro")
    monkeypatch.delenv("LCRAG_DATA")
    with pytest.raises(UserError, match="the folder of mkqa is not configured"):
        lcrag.atlas.tasks.questions_of_task("mkqa_test_fi")


def test_a_file_with_enough_questions_is_split_and_read_once(folder):
    """MKQA's 3,500 questions of all splits, made of real ones with new ids."""
    with gzip.open(folder / "mkqa" / "mkqa.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    (folder / "mkqa" / "mkqa.jsonl.gz").unlink()
    with (folder / "mkqa" / "mkqa.jsonl").open("w") as file:
        for number in range(3500):
            file.write(json.dumps(rows[number % 500] | {"example_id": number - 1750}) + "\n")
    finnish, thai = (lcrag.atlas.tasks.questions_of_task(f"mkqa_test_{language}") for language in ("fi", "th"))
    assert [q.id for q in finnish] == [q.id for q in thai] and len(finnish) == 2000


def test_one_s_own_questions(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"id": 1, "language": code, "question": "?", "answers": ["x"]} for code in ("fi", "bn")]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    register_jsonl("mine", "train", ("fi", "bn"), [path], TokenizerVocabulary(SHIPPED_FOLDER))
    try:
        assert {question.language for question in lcrag.atlas.tasks.questions_of_task("mine_train")} == {"fi", "bn"}
    finally:
        seqio.MixtureRegistry.remove("mine_train")
        for code in ("fi", "bn"):
            seqio.TaskRegistry.remove(f"mine_train_{code}")


def test_word_problems_and_options_are_tasks_too(tmp_path, monkeypatch):
    shutil.copytree(prepared("mgsm"), tmp_path / "mgsm")
    (tmp_path / "global_mmlu" / "ha").mkdir(parents=True)
    columns = ("sample_id", "subject", "subject_category", "question", *(f"option_{letter}" for letter in "abcd"))
    row = json.dumps(dict.fromkeys(columns, "x") | {"answer": "D"})
    (tmp_path / "global_mmlu" / "ha" / "dev.jsonl").write_text(row)
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path))
    problems = lcrag.atlas.tasks.questions_of_task("mgsm_test_th")
    assert problems == mgsm.mgsm_questions(tmp_path / "mgsm", ("th",), bad_rows=BadRows()) and len(problems) == 200
    (question,) = lcrag.atlas.tasks.questions_of_task("global_mmlu_dev_ha")
    assert (question.answers, question.domain, question.tier) == (("D",), "multiple_choice", "low")


def test_a_mixture_in_inverse_proportion_to_resources(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"id": n, "language": code, "question": code, "answers": ["x"]} for code in ("en", "ha") for n in range(90)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    vocabulary, rates = TokenizerVocabulary(SHIPPED_FOLDER), inverse_resource_rates(("en", "ha"))
    register_jsonl("mixed", "train", ("en", "ha"), [path], vocabulary, rates)
    try:
        mixture = seqio.get_mixture_or_task("mixed_train")
        assert {task.name: mixture.get_rate(task) for task in mixture.tasks} == {
            "mixed_train_en": 610, "mixed_train_ha": 4880
        }  # fmt: skip
        mixed = mixture.get_dataset({"inputs": 8, "targets": 8}, "train", shuffle=False, seed=0)
        languages = [vocabulary.decode(row["inputs"].tolist()) for row in mixed.take(60).as_numpy_iterator()]
        assert languages.count("ha") > 5 * languages.count("en") > 0
    finally:
        seqio.MixtureRegistry.remove("mixed_train")
        for code in ("en", "ha"):
            seqio.TaskRegistry.remove(f"mixed_train_{code}")


def test_the_english_sets_are_tasks_too(tmp_path, monkeypatch):
    assert {"hotpotqa_train", "musique_test", "nq_open_validation", "popqa_test"} <= set(seqio.MixtureRegistry.names())
    (tmp_path / "musique").mkdir()
    source = prepared("musique/musique_ans_v1.0_dev.subset.jsonl.gz")
    shutil.copy(source, tmp_path / "musique" / "musique_ans_v1.0_dev.jsonl.gz")
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path))
    expected = questions_of(QUESTION_SETS["musique"].read(source, BadRows()))
    assert lcrag.atlas.tasks.questions_of_task("musique_test") == expected

"""Data sets in files as seqio tasks and back, and seqio tasks as demonstrations."""

import functools
import itertools
import json
import shutil

import pytest
import seqio
import tensorflow as tf
from prepared_data import prepared
from support.row_files import write_rows

from lcrag.atlas import build_world
from lcrag.atlas.tasks import questions_of_task  # registers the tasks of lcrag
from lcrag.data.english import english_questions
from lcrag.data.multilingual import (
    mgsm_questions,
    xquad_questions,
)
from lcrag.data.questions import LCRL_LANGUAGES, XOR_TYDI_TEST
from lcrag.data.rows import BadRows, jsonl_questions
from lcrag.data.seqio_tasks import demonstrations_of_task, register_questions
from lcrag.errors import UserError


def test_tasks_return_the_questions(tmp_path, monkeypatch):
    world = build_world()
    assert sorted(questions_of_task("atlas_validation"), key=repr) == sorted(world.questions("validation"), key=repr)
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path))
    for name in ("xquad", "mgsm"):
        shutil.copytree(prepared(name), tmp_path / name)
    for source, copy in (
        ("xor_tydi/xor_dev_full_v1_1.subset.jsonl", "xor_tydi/xor_dev_full_v1_1.jsonl"),
        ("mkqa_standin/standin_bmlama53_13lang.jsonl.gz", "mkqa/mkqa.jsonl.gz"),
        ("musique/musique_ans_v1.0_dev.subset.jsonl.gz", "musique/musique_ans_v1.0_dev.jsonl.gz"),
    ):
        (tmp_path / copy).parent.mkdir()
        shutil.copy(prepared(source), tmp_path / copy)
    assert questions_of_task("xquad_test_th") == xquad_questions("test", ("th",))
    assert questions_of_task("musique_test") == english_questions("musique", "test")
    assert questions_of_task("mgsm_test_th") == mgsm_questions(("th",))
    assert [len(questions_of_task(f"xor_tydi_test_{code}")) for code in XOR_TYDI_TEST] == [43] * 7
    (tmp_path / "global_mmlu" / "ha").mkdir(parents=True)
    columns = ("sample_id", "subject", "question", *(f"option_{letter}" for letter in "abcd"))
    row = json.dumps(dict.fromkeys(columns, "x") | {"answer": "D"})
    (tmp_path / "global_mmlu" / "ha" / "dev.jsonl").write_text(row)
    (question,) = questions_of_task("global_mmlu_dev_ha")
    assert (question.answers, question.domain, question.tier) == (("D",), "multiple_choice", "low")
    for task in ("mkqa_train_fi", "xquad_test_ro", "atlas_test"):  # too few questions, no file, no task
        with pytest.raises(UserError):
            questions_of_task(task)
    monkeypatch.delenv("LCRAG_DATA")
    with pytest.raises(UserError):
        questions_of_task("mkqa_test_fi")


LENGTHS = {"inputs": 256, "targets": 64}  # bytes


def test_examples_are_tokenized_questions_and_answers_which_can_be_packed():
    task = seqio.get_mixture_or_task("atlas_train_fr")
    questions = build_world().questions("train", ["fr"])
    rows = task.get_dataset(LENGTHS, split="train", shuffle=False).as_numpy_iterator()
    vocabulary = task.output_features["inputs"].vocabulary
    for row, question in zip(itertools.islice(rows, 20), questions, strict=False):
        assert vocabulary.decode(row["inputs"].tolist()) == question.text
        assert vocabulary.decode(row["targets"].tolist()[:-1]) == f" {question.answers[0]}"
        assert row["targets"][-1] == vocabulary.eos_id
    dataset = seqio.get_mixture_or_task("atlas_validation_fr").get_dataset(LENGTHS, split="validation", shuffle=False)
    packed = seqio.DecoderFeatureConverter(pack=True)(dataset.take(30), {"inputs": 256, "targets": 256})
    row = next(packed.as_numpy_iterator())
    assert row["decoder_segment_ids"].max() > 2
    assert row["decoder_target_tokens"].shape == (512,)


def test_one_s_own_questions_are_a_mixture(tmp_path):
    rows = [{"id": n, "language": code, "question": code, "answers": ["x"]} for code in ("en", "ha") for n in range(9)]
    path = write_rows(tmp_path / "mine.jsonl", *rows)

    def questions(code):
        return jsonl_questions([path], "mixed", (code,))

    register_questions("mixed", "train", ("en", "ha"), questions, seqio.ByteVocabulary())
    try:
        assert {question.language for question in questions_of_task("mixed_train")} == {"en", "ha"}
    finally:
        seqio.MixtureRegistry.remove("mixed_train")
        for code in ("en", "ha"):
            seqio.TaskRegistry.remove(f"mixed_train_{code}")


@pytest.fixture
def tasks():
    """Registers tasks over a few examples in memory, which are forgotten again."""
    names, vocabulary = [], seqio.ByteVocabulary()

    def add(name, rows, *preprocessors, features=("inputs", "targets")):
        def dataset(split, shuffle_files, seed=None):
            return tf.data.Dataset.from_tensor_slices({key: [row[key] for row in rows] for key in rows[0]})

        names.append(name)
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(dataset, splits=("train",)),
            preprocessors=list(preprocessors),
            output_features={key: seqio.Feature(vocabulary, add_eos=key == "targets") for key in features},
        )

    yield add
    for name in names:
        seqio.TaskRegistry.remove(name)


def test_text_that_the_task_does_not_keep_is_decoded(tasks):
    tokenize = functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False)
    tasks("unkept", [{"inputs": "Where is Chad?", "targets": " in Africa"}], tokenize, seqio.preprocessors.append_eos)
    assert len(demonstrations_of_task("atlas_validation", "validation", BadRows(), 3)) == 3 * len(LCRL_LANGUAGES)
    [row] = demonstrations_of_task("unkept", "train", BadRows())
    assert (row.opening, row.turns[0].text) == ("Where is Chad?", " in Africa")


def test_tasks_that_hold_no_demonstrations(tasks):
    tasks("empty", [{"inputs": "a", "targets": ""}, {"inputs": "a", "targets": "b"}], seqio.preprocessors.tokenize)
    tasks("targets_only", [{"targets": "b"}], features=("targets",))
    for name, split in (("nowhere", "train"), ("empty", "test"), ("empty", "train"), ("targets_only", "train")):
        with pytest.raises(UserError, match=name):
            demonstrations_of_task(name, split, BadRows())
    assert len(demonstrations_of_task("empty", "train", BadRows(skip=True))) == 1

"""Converts questions to seqio tasks and back, and examples of seqio tasks to demonstrations.

A task is one language of one split, `<data set>_<split>_<language>`; a mixture is one split, `<data set>_<split>`. In
addition to `inputs` (the question) and `targets` (its first golden answer) an example holds all fields of its
`Question`.
"""

import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from lcrag.data import global_mmlu, mgsm, mkqa, xor_tydi, xquad
from lcrag.data.demonstrations import DemonstratedTurn, Demonstration
from lcrag.data.english.formats import LANGUAGE
from lcrag.data.english.sets import QUESTION_SETS, QuestionSet, questions_of
from lcrag.data.files import data_file, dataset_folder
from lcrag.data.jsonl_questions import jsonl_questions
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING, XOR_TYDI_TEST, XOR_TYDI_TRAINING
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.policy import Tokenizer, load_tokenizer

# Our splits -> seqio's, and the text features of an example.
SEQIO_SPLITS: Mapping[str, str] = {"train": "train", "validation": "validation", "held_out": "test", "unseen": "test"}
_TEXT_FEATURES = ("id", "dataset", "language", "inputs", "targets", "extra")


class TokenizerVocabulary(seqio.Vocabulary):
    """A tokenizer of this package as a seqio vocabulary, loaded at first use.

    seqio uses id 0 for padding, so the tokenizer must not use id 0 for text.
    """

    def __init__(self, folder: str | pathlib.Path):
        super().__init__(extra_ids=0)
        self._folder = pathlib.Path(folder)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._folder)

    @property
    def bos_id(self) -> int | None:
        return None

    @property
    def eos_id(self) -> int | None:
        return self.tokenizer.eos_ids[0]

    @property
    def unk_id(self) -> int | None:
        return None

    @property
    def _base_vocab_size(self) -> int:
        return self.tokenizer.vocabulary_size

    def _encode(self, s: str) -> Sequence[int]:
        return self.tokenizer.encode(s)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        ids = tf.numpy_function(lambda text: np.array(self._encode(text.decode()), np.int32), [s], tf.int32)
        ids.set_shape([None])
        return ids

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        text = tf.numpy_function(lambda row: self._decode(row.tolist()).encode(), [ids], tf.string)
        text.set_shape([])
        return text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenizerVocabulary) and self._folder == other._folder

    def __hash__(self) -> int:
        return hash(self._folder)


def register_questions(
    dataset: str,
    split: str,
    languages: Sequence[str],
    questions: Callable[[str], Sequence[Question]],
    vocabulary: seqio.Vocabulary,
    rates: Mapping[str, float] | None = None,
    **extra_arguments,
) -> None:
    """Registers one task per language, and their mixture.

    Args:
      split: Name of the split, part of the tasks' names.
      questions: Language -> its questions; called when the task is first read.
      rates: Language -> its rate in the mixture; None: equal rates.
      **extra_arguments: Passed to `seqio.TaskRegistry.add`, such as metric functions.
    """
    features = {name: seqio.Feature(vocabulary, add_eos=name == "targets") for name in ("inputs", "targets")}
    for language in languages:
        seqio.TaskRegistry.add(
            f"{dataset}_{split}_{language}",
            source=_source(functools.partial(questions, language), SEQIO_SPLITS.get(split, split)),
            preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
            output_features=features,
            **extra_arguments,
        )
    tasks = [(f"{dataset}_{split}_{code}", 1.0 if rates is None else rates[code]) for code in languages]
    seqio.MixtureRegistry.add(f"{dataset}_{split}", tasks)


def questions_of_task(name: str) -> list[Question]:
    """Returns the questions of a registered task, or of all tasks of a mixture.

    Raises:
      UserError: there is no such task or mixture, or its examples are not questions.
    """
    return [
        _question(row, task.name)
        for task in _tasks(name)
        for row in task.source.get_dataset(task.splits[0], shuffle=False).as_numpy_iterator()
    ]


def _source(questions: Callable[[], Sequence[Question]], split: str) -> seqio.DataSource:
    def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        rows = [_example(question) for question in questions()]
        columns = {name: [row[name] for row in rows] for name in _TEXT_FEATURES}
        answers = tf.ragged.constant([list(row["answers"]) for row in rows], dtype=tf.string)
        return tf.data.Dataset.from_tensor_slices(columns | {"answers": answers})

    return seqio.FunctionDataSource(dataset, splits=(split,))


def _example(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "dataset": question.dataset,
        "language": question.language,
        "inputs": question.text,
        "targets": f" {question.answers[0]}",
        "extra": json.dumps(question.extra, ensure_ascii=False),
        "answers": question.answers,
    }


def _question(row: Mapping[str, Any], task: str) -> Question:
    if missing := {*_TEXT_FEATURES, "answers"} - set(row):
        raise UserError(f"seqio task {task!r} holds no questions: its examples lack {', '.join(sorted(missing))}")
    text = {name: row[name].decode() for name in _TEXT_FEATURES}
    return Question(
        id=text["id"],
        dataset=text["dataset"],
        language=text["language"],
        text=text["inputs"],
        answers=tuple(answer.decode() for answer in row["answers"]),
        extra=json.loads(text["extra"]),
    )


def register_file_data(vocabulary: seqio.Vocabulary) -> None:
    """Registers every data set and split; MKQA and XOR-TyDi QA in LcRL's languages."""

    def add(dataset: str, splits: Mapping[str, Sequence[str]], read: Callable[[str, str], Sequence[Question]]) -> None:
        for split, languages in splits.items():
            register_questions(dataset, split, languages, functools.partial(read, split), vocabulary)

    add(mkqa.DATASET, {"train": LCRL_TRAINING, "validation": LCRL_TRAINING, "test": LCRL_LANGUAGES}, _mkqa)
    add(xor_tydi.DATASET, {"train": XOR_TYDI_TRAINING, "test": XOR_TYDI_TEST}, _xor_tydi)
    add(xquad.DATASET, dict.fromkeys(("train", "test"), xquad.LANGUAGES), _xquad)
    add(mgsm.DATASET, {"test": mgsm.LANGUAGES}, _mgsm)
    add(global_mmlu.DATASET, dict.fromkeys(global_mmlu.SPLITS, global_mmlu.LANGUAGES), _global_mmlu)
    for chosen in QUESTION_SETS.values():
        add(chosen.name, dict.fromkeys(chosen.files, (LANGUAGE,)), functools.partial(_english, chosen))


def register_jsonl(
    dataset: str,
    split: str,
    languages: Sequence[str],
    files: Sequence[str | pathlib.Path],
    vocabulary: seqio.Vocabulary,
    rates: Mapping[str, float] | None = None,
) -> None:
    """Registers user-provided questions (see `lcrag.data.jsonl_questions`) as a split of a data set.

    Args:
      rates: Language -> its rate in the mixture, for example `lcrag.data.tiers.inverse_resource_rates(languages)`;
        None: equal rates.
    """

    def questions(language: str) -> list[Question]:
        return jsonl_questions(files, dataset=dataset, languages=(language,), bad_rows=BadRows())

    register_questions(dataset, split, languages, questions, vocabulary, rates)


def _mkqa(split: str, language: str) -> list[Question]:
    path = data_file(dataset_folder(mkqa.DATASET), (mkqa.FILE,), mkqa.SOURCE)
    return [question for question in _all_of_mkqa(path, split) if question.language == language]


@functools.lru_cache(maxsize=3)  # one file holds all languages, and takes seconds to read
def _all_of_mkqa(path: pathlib.Path, split: str) -> list[Question]:
    return mkqa.mkqa_questions(path, split, LCRL_LANGUAGES, bad_rows=BadRows())


def _xor_tydi(split: str, language: str) -> list[Question]:
    folder = dataset_folder(xor_tydi.DATASET)
    return xor_tydi.xor_tydi_questions(folder, split, (language,), bad_rows=BadRows())


def _xquad(split: str, language: str) -> list[Question]:
    return xquad.xquad_questions(dataset_folder(xquad.DATASET), split, (language,), bad_rows=BadRows())


def _mgsm(split: str, language: str) -> list[Question]:
    return mgsm.mgsm_questions(dataset_folder(mgsm.DATASET), (language,), bad_rows=BadRows())


def _global_mmlu(split: str, language: str) -> list[Question]:
    folder = dataset_folder(global_mmlu.DATASET)
    return global_mmlu.global_mmlu_questions(folder, split, (language,), bad_rows=BadRows())


def _english(chosen: QuestionSet, split: str, language: str) -> list[Question]:
    path = chosen.file(dataset_folder(chosen.name, binding="english_questions.folder"), split)
    return questions_of(chosen.read(path, BadRows()))


FEATURES = ("inputs", "targets")


def demonstrations_of_task(name: str, split: str, bad_rows: BadRows, limit: int | None = None) -> list[Demonstration]:
    """Returns the examples of a task, or of all tasks of a mixture: `inputs` opens the dialogue, the policy answers
    `targets`.

    They are used as text, because the policy has its own tokenizer and chat template; the task's packing, lengths and
    mixing rates are not used.

    Args:
      limit: Maximum number of examples of each task.

    Raises:
      UserError: there is no such task or split, or one of its examples lacks a text.
    """
    return [
        row
        for task in _tasks(name)
        for row in _demonstrations(task, split, bad_rows, itertools.count() if limit is None else range(limit))
    ]


def _tasks(name: str) -> list[seqio.Task]:
    if name in seqio.MixtureRegistry.names():
        return list(seqio.MixtureRegistry.get(name).tasks)
    if name in seqio.TaskRegistry.names():
        return [seqio.TaskRegistry.get(name)]
    known = " ".join(sorted(seqio.MixtureRegistry.names()))
    raise UserError(
        f"there is no seqio task or mixture {name!r}: add `import MODULE` of the module that registers it to the gin"
        f" file, or use one of {known}"
    )


def _demonstrations(task: seqio.Task, split: str, bad_rows: BadRows, numbers: Any) -> Iterator[Demonstration]:
    if split not in task.splits:
        raise UserError(f"the seqio task {task.name} has no split {split!r}: it has {', '.join(task.splits)}")
    if missing := sorted(set(FEATURES) - set(task.output_features)):
        raise UserError(
            f"the seqio task {task.name} has no feature {missing[0]}: its examples cannot be demonstrations"
        )
    path = pathlib.Path(f"seqio task {task.name}")
    examples = task.get_dataset(sequence_length=None, split=split, shuffle=False).as_numpy_iterator()
    for number, example in zip(numbers, examples, strict=False):
        texts = {feature: _text(example, feature, task) for feature in FEATURES}
        if empty := [feature for feature, text in texts.items() if not text]:
            bad_rows.add(path, number + 1, empty[0], "it has no text")
            continue
        yield Demonstration(
            opening=texts["inputs"],
            turns=(DemonstratedTurn(by="policy", text=texts["targets"], learn=True),),
            topic=texts["inputs"],
            path=path,
            line=number + 1,
        )


def _text(example: Mapping[str, Any], feature: str, task: seqio.Task) -> str:
    """Returns a feature's text before tokenization, or its decoded tokens if the task does not keep the text."""
    value = example.get(f"{feature}_pretokenized", example[feature])
    if isinstance(value, bytes):
        return value.decode()
    vocabulary = task.output_features[feature].vocabulary
    return vocabulary.decode([index for index in np.asarray(value).tolist() if index != vocabulary.eos_id])

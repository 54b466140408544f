"""Questions as seqio tasks, and back again.

A task is one language of one split, `<data set>_<split>_<language>`; a mixture is one split, `<data set>_<split>`.
Besides `inputs` (the question) and `targets` (its first golden answer) an example carries, untouched, what turns
it back into a `Question`.
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
from lcrag.data.english.asked import LANGUAGE
from lcrag.data.english.sets import QUESTION_SETS, QuestionSet, questions_of
from lcrag.data.files import data_file, dataset_folder
from lcrag.data.jsonl_questions import jsonl_questions
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING, XOR_TYDI_TEST, XOR_TYDI_TRAINING
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.policy import Tokenizer, load_tokenizer

# What seqio calls our splits, and the text features that an example carries beside inputs and targets.
SEQIO_SPLITS: Mapping[str, str] = {"train": "train", "validation": "validation", "held_out": "test", "unseen": "test"}
_TEXT_FEATURES = ("id", "dataset", "language", "inputs", "targets", "extra")


class TokenizerVocabulary(seqio.Vocabulary):
    """One of our tokenizers as a seqio vocabulary; it is read when first needed.

    seqio takes id 0 for padding, so the tokenizer must not use id 0 for text.
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
    """Registers a task a language, and their mixture.

    Args:
      dataset: Name of the data set.
      split: Name of the split, part of the tasks' names.
      languages: Languages of the split.
      questions: Language -> its questions; called when the task is first read.
      vocabulary: Vocabulary of inputs and targets.
      rates: Language -> its rate in the mixture; None: equal ones.
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
    """The questions of a registered task, or of all tasks of a mixture, task after task.

    Raises:
      UserError: there is no such task or mixture, or it was not made by `register_questions`.
    """
    if name in seqio.MixtureRegistry.names():
        return [question for task in seqio.MixtureRegistry.get(name).tasks for question in questions_of_task(task.name)]
    if name not in seqio.TaskRegistry.names():
        known = " ".join(sorted(seqio.MixtureRegistry.names()))
        raise UserError(
            f"there is no seqio task or mixture {name!r}: import the module that adds it, or use one of {known}"
        )
    task = seqio.TaskRegistry.get(name)
    rows = task.source.get_dataset(task.splits[0], shuffle=False).as_numpy_iterator()
    return [_question(row, name) for row in rows]


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
    """Registers every data set with each of its splits; MKQA and XOR-TyDi QA in the languages that LcRL takes."""
    for split, languages in (("train", LCRL_TRAINING), ("validation", LCRL_TRAINING), ("test", LCRL_LANGUAGES)):
        register_questions(mkqa.DATASET, split, languages, functools.partial(_mkqa, split), vocabulary)
    for split, languages in (("train", XOR_TYDI_TRAINING), ("test", XOR_TYDI_TEST)):
        register_questions(xor_tydi.DATASET, split, languages, functools.partial(_xor_tydi, split), vocabulary)
    for split in ("train", "test"):
        register_questions(xquad.DATASET, split, xquad.LANGUAGES, functools.partial(_xquad, split), vocabulary)
    register_questions(mgsm.DATASET, "test", mgsm.LANGUAGES, _mgsm, vocabulary)
    for split in global_mmlu.SPLITS:
        questions = functools.partial(_global_mmlu, split)
        register_questions(global_mmlu.DATASET, split, global_mmlu.LANGUAGES, questions, vocabulary)
    for chosen in QUESTION_SETS.values():
        for split in chosen.files:
            register_questions(chosen.name, split, (LANGUAGE,), functools.partial(_english, chosen, split), vocabulary)


def register_jsonl(
    dataset: str,
    split: str,
    languages: Sequence[str],
    files: Sequence[str | pathlib.Path],
    vocabulary: seqio.Vocabulary,
    rates: Mapping[str, float] | None = None,
) -> None:
    """Registers one's own questions (see `lcrag.data.jsonl_questions`) as a split of a data set.

    Args:
      dataset: Name of the data set.
      split: Name of the split.
      languages: Languages of the split.
      files: JSON lines.
      vocabulary: Vocabulary of inputs and targets.
      rates: Language -> its rate in the mixture, `lcrag.data.tiers.inverse_resource_rates(languages)` for one; None:
        equal ones.
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


def _mgsm(language: str) -> list[Question]:
    return mgsm.mgsm_questions(dataset_folder(mgsm.DATASET), (language,), bad_rows=BadRows())


def _global_mmlu(split: str, language: str) -> list[Question]:
    folder = dataset_folder(global_mmlu.DATASET)
    return global_mmlu.global_mmlu_questions(folder, split, (language,), bad_rows=BadRows())


def _english(chosen: QuestionSet, split: str, language: str) -> list[Question]:
    path = chosen.file(dataset_folder(chosen.name, binding="english_questions.folder"), split)
    return questions_of(chosen.read(path, BadRows()))


FEATURES = ("inputs", "targets")


def demonstrations_of_task(name: str, split: str, bad_rows: BadRows, limit: int | None = None) -> list[Demonstration]:
    """The examples of a task, or of all tasks of a mixture, task after task.

    Args:
      name: Of the task or mixture.
      split: Of the task.
      bad_rows: What becomes of examples without a text.
      limit: At most this many of each task.

    Raises:
      UserError: there is no such task, it has no such split, or one of its examples lacks a text.
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
    """A feature as it was before the task made tokens of it, or decoded by its vocabulary where that is not kept."""
    value = example.get(f"{feature}_pretokenized", example[feature])
    if isinstance(value, bytes):
        return value.decode()
    vocabulary = task.output_features[feature].vocabulary
    return vocabulary.decode([index for index in np.asarray(value).tolist() if index != vocabulary.eos_id])

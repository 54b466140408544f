"""Converts questions to seqio tasks and back, and examples of seqio tasks to demonstrations.

A task is one language of one split, `<data set>_<split>_<language>`; a mixture is one split, `<data set>_<split>`. In
addition to `inputs` (the question) and `targets` (its first golden answer) an example holds all fields of its
`Question`.
"""

import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from lcrag.data.demonstrations import DemonstratedTurn, Demonstration
from lcrag.data.english import LANGUAGE, QUESTION_SETS, english_questions
from lcrag.data.multilingual import (
    GLOBAL_MMLU_LANGUAGES,
    MGSM_LANGUAGES,
    XQUAD_LANGUAGES,
    global_mmlu_questions,
    mgsm_questions,
    mkqa_questions,
    xor_tydi_questions,
    xquad_questions,
)
from lcrag.data.questions import LCRL_LANGUAGES, LCRL_TRAINING, XOR_TYDI_TEST, XOR_TYDI_TRAINING, Question
from lcrag.data.rows import BadRows, dataset_folder
from lcrag.errors import UserError

# Our splits -> seqio's, and the text features of an example.
SEQIO_SPLITS: Mapping[str, str] = {"train": "train", "validation": "validation", "held_out": "test", "unseen": "test"}
FEATURES = ("inputs", "targets")
_TEXTS = ("id", "dataset", "language", *FEATURES, "extra")


def register_questions(
    dataset: str,
    split: str,
    languages: Sequence[str],
    questions: Callable[[str], Sequence[Question]],
    vocabulary: seqio.Vocabulary,
) -> None:
    """Registers one task per language, and their mixture; `questions` is called when a language is first read."""

    def examples(split: str, shuffle_files: bool, seed: int | None = None, *, language: str) -> tf.data.Dataset:
        asked = questions(language)
        columns = {name: [getattr(question, name) for question in asked] for name in ("id", "dataset", "language")}
        columns["inputs"] = [question.text for question in asked]
        columns["targets"] = [f" {question.answers[0]}" for question in asked]
        columns["extra"] = [json.dumps(question.extra, ensure_ascii=False) for question in asked]
        answers = tf.ragged.constant([list(question.answers) for question in asked], dtype=tf.string)
        return tf.data.Dataset.from_tensor_slices(columns | {"answers": answers})

    features = {name: seqio.Feature(vocabulary, add_eos=name == "targets") for name in FEATURES}
    for language in languages:
        read = functools.partial(examples, language=language)
        seqio.TaskRegistry.add(
            f"{dataset}_{split}_{language}",
            source=seqio.FunctionDataSource(read, splits=(SEQIO_SPLITS.get(split, split),)),
            preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
            output_features=features,
        )
    tasks = [(f"{dataset}_{split}_{code}", 1.0) for code in languages]
    seqio.MixtureRegistry.add(f"{dataset}_{split}", tasks)


def register_file_data(vocabulary: seqio.Vocabulary) -> None:
    """Registers every data set and split; MKQA and XOR-TyDi QA in LcRL's languages."""

    def add(dataset: str, splits: Mapping[str, Sequence[str]], read: Callable[[str, str], Sequence[Question]]) -> None:
        for split, languages in splits.items():
            register_questions(dataset, split, languages, functools.partial(read, split), vocabulary)

    # One file of MKQA holds all languages, and takes seconds to read.
    mkqa = functools.lru_cache(maxsize=3)(lambda folder, split: mkqa_questions(split, folder=str(folder)))

    def read_mkqa(split: str, code: str) -> list[Question]:
        return [question for question in mkqa(dataset_folder("mkqa"), split) if question.language == code]

    def read_english(name: str, split: str, _: str) -> list[Question]:
        return english_questions(name, split)

    add("mkqa", {"train": LCRL_TRAINING, "validation": LCRL_TRAINING, "test": LCRL_LANGUAGES}, read_mkqa)
    xor_tydi = {"train": XOR_TYDI_TRAINING, "test": XOR_TYDI_TEST}
    add("xor_tydi", xor_tydi, lambda split, code: xor_tydi_questions(split, (code,)))
    xquad = {"train": XQUAD_LANGUAGES, "test": XQUAD_LANGUAGES}
    add("xquad", xquad, lambda split, code: xquad_questions(split, (code,)))
    add("mgsm", {"test": MGSM_LANGUAGES}, lambda _, code: mgsm_questions((code,)))
    global_mmlu = {"test": GLOBAL_MMLU_LANGUAGES, "dev": GLOBAL_MMLU_LANGUAGES}
    add("global_mmlu", global_mmlu, lambda split, code: global_mmlu_questions(split, (code,)))
    for name, chosen in QUESTION_SETS.items():
        add(name, dict.fromkeys(chosen.files, (LANGUAGE,)), functools.partial(read_english, name))


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


def questions_of_task(name: str) -> list[Question]:
    """Returns the questions of a registered task, or of all tasks of a mixture."""
    questions = []
    for task in _tasks(name):
        for row in task.source.get_dataset(task.splits[0], shuffle=False).as_numpy_iterator():
            if missing := {*_TEXTS, "answers"} - set(row):
                lacking = ", ".join(sorted(missing))
                raise UserError(f"seqio task {task.name!r} holds no questions: its examples lack {lacking}")
            text = {name: row[name].decode() for name in _TEXTS}
            answers, extra = tuple(answer.decode() for answer in row["answers"]), json.loads(text["extra"])
            names = {name: text[name] for name in ("id", "dataset", "language")}
            questions.append(Question(**names, text=text["inputs"], answers=answers, extra=extra))
    return questions


def demonstrations_of_task(name: str, split: str, bad_rows: BadRows, limit: int | None = None) -> list[Demonstration]:
    """Returns the examples of a task, or of all tasks of a mixture: `inputs` opens the dialogue, the policy answers
    `targets`.

    They are used as text, because the policy has its own tokenizer and chat template; the task's packing, lengths and
    mixing rates are not used.
    """
    demonstrations = []
    for task in _tasks(name):
        if split not in task.splits:
            raise UserError(f"the seqio task {task.name} has no split {split!r}: it has {', '.join(task.splits)}")
        if missing := sorted(set(FEATURES) - set(task.output_features)):
            raise UserError(
                f"the seqio task {task.name} has no feature {missing[0]}: its examples cannot be demonstrations"
            )
        path = pathlib.Path(f"seqio task {task.name}")
        examples = task.get_dataset(sequence_length=None, split=split, shuffle=False).as_numpy_iterator()
        for number, example in enumerate(itertools.islice(examples, limit), start=1):
            texts = []
            for feature in FEATURES:
                # The text before tokenization, or the decoded tokens of a task that does not keep it.
                value = example.get(f"{feature}_pretokenized", example[feature])
                if isinstance(value, bytes):
                    texts.append(value.decode())
                else:
                    vocabulary = task.output_features[feature].vocabulary
                    ids = np.asarray(value).tolist()
                    texts.append(vocabulary.decode([index for index in ids if index != vocabulary.eos_id]))
            inputs, targets = texts
            if not inputs or not targets:
                bad_rows.add(path, number, "targets" if inputs else "inputs", "it has no text")
                continue
            turn = DemonstratedTurn(by="policy", text=targets, learn=True)
            demonstration = Demonstration(opening=inputs, turns=(turn,), topic=inputs, path=path, line=number)
            demonstrations.append(demonstration)
    return demonstrations

"""The data sets that lie in files, as seqio tasks: `<data set>_<split>_<language>`, and a mixture of each split.

Files are looked for in `$LCRAG_DATA/<data set>` when a task is first read; splits are those of the readers' defaults.
"""

import functools
import pathlib
from collections.abc import Mapping, Sequence

import seqio

from lcrag.data import global_mmlu, mgsm, mkqa, xor_tydi, xquad
from lcrag.data.english.asked import LANGUAGE
from lcrag.data.english.sets import QUESTION_SETS, QuestionSet, questions_of
from lcrag.data.files import data_file, dataset_folder
from lcrag.data.jsonl_questions import jsonl_questions
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING, XOR_TYDI_TEST, XOR_TYDI_TRAINING
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.data.seqio_questions import register_questions


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

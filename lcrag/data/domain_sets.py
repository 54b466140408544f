"""Multilingual test sets whose answers are a number or a letter: MGSM and Global-MMLU.

MGSM (Shi et al., 2023: https://arxiv.org/abs/2210.03057): 250 word problems of GSM8K's test set, translated by people
into ten languages. The official files are `mgsm_<language>.tsv` with a problem and its answer per line; line n is the
same problem in every language.

Global-MMLU (Singh et al., 2024: https://arxiv.org/abs/2412.03304): MMLU's four-option questions in 42 languages. A
folder per language holds its splits with the names of the hub (`am/test-00000-of-00001.parquet`) or of its Parquet
export (`am/test/0000.parquet`), or as `test.csv` or `test.jsonl` with the same columns.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import gin
import pydantic

from lcrag.data.batches import in_all, seeded_order
from lcrag.data.languages import known_languages
from lcrag.data.questions import MATHEMATICS, MULTIPLE_CHOICE, Question
from lcrag.data.rows import (
    BadRows,
    Row,
    Text,
    at_least_one,
    counted_bad_rows,
    data_file,
    dataset_folder,
    first_of_each_id,
    read_rows,
    read_text,
)
from lcrag.data.tiers import tier_of
from lcrag.errors import UserError, typed

MGSM_LANGUAGES = ("en", "bn", "de", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
_MGSM_SOURCE = "https://github.com/google-research/url-nlp/raw/main/mgsm/"
# As Translate-R1 reports them (section 6.7).
MGSM_TIERS: Mapping[str, tuple[str, ...]] = {
    "high": ("en", "bn", "de", "es", "fr", "ja", "ru", "th", "zh"),
    "low": ("sw", "te"),
}
_MGSM_ANSWER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")


@gin.configurable
@typed
def mgsm_questions(
    languages: Sequence[str] = MGSM_LANGUAGES,
    folder: str | None = None,
    tiers: Mapping[str, Sequence[str]] = MGSM_TIERS,
) -> list[Question]:
    """Returns the problems of MGSM with all language versions adjacent; a problem's id is its line number, from 1.

    Thousands separators are removed from answers; the original spelling is an alias. A problem that is missing in one
    language is dropped in all.

    Args:
      folder: Folder of the files; None: `$LCRAG_DATA/mgsm`.
      tiers: Tier -> its languages.
    """
    languages = known_languages(languages, MGSM_LANGUAGES, "mgsm")
    root = dataset_folder("mgsm", folder)
    versions = []
    with counted_bad_rows() as bad_rows:
        for language in languages:
            tier, name = tier_of(language, tiers), f"mgsm_{language}.tsv"
            path = data_file(root, (name,), _MGSM_SOURCE + name)
            problems = _mgsm_problems(path, language, tier, bad_rows)
            versions.append(dict(at_least_one(path, problems, bad_rows)))
    return [version[line] for line in in_all(versions) for version in versions]


def _mgsm_problems(path: pathlib.Path, language: str, tier: str, bad_rows: BadRows) -> Iterator[tuple[int, Question]]:
    """Yields (line, problem). The file is no table for `csv`: it quotes nothing, and texts may begin with a quote."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        text, _, answer = (part.strip() for part in line.rpartition("\t"))
        if not line.strip():
            continue
        if not text or "\t" in text:
            bad_rows.add(path, number, "", "expected a problem, a tab and its answer")
        elif not _MGSM_ANSWER.fullmatch(answer):
            bad_rows.add(path, number, "answer", f"expected a number, not {answer!r}")
        else:
            names = {"id": str(number), "dataset": "mgsm", "language": language, "text": text}
            answers = tuple(dict.fromkeys((answer.replace(",", ""), answer)))
            yield number, Question(**names, answers=answers, extra={"domain": MATHEMATICS, "tier": tier})


GLOBAL_MMLU_SPLITS = ("test", "dev")
_GLOBAL_MMLU_SOURCE = "https://huggingface.co/datasets/CohereLabs/Global-MMLU"
# Our choice for languages without a tier in Translate-R1: low-tier languages are those with little text in web crawls.
GLOBAL_MMLU_TIERS: Mapping[str, tuple[str, ...]] = {
    "high": tuple("ar bn cs de el en es fa fil fr he hi id it ja ko lt ms nl pl pt ro ru sr sv tr uk vi zh".split()),
    "low": tuple("am ha ig ky mg ne ny si sn so sw te yo".split()),
}
GLOBAL_MMLU_LANGUAGES = tuple(sorted(code for languages in GLOBAL_MMLU_TIERS.values() for code in languages))


class MmluRow(Row):
    """A question with four options; first revisions have no `subject_category`."""

    sample_id: Text
    subject: Text
    subject_category: str | None = None
    question: Text
    option_a: Text
    option_b: Text
    option_c: Text
    option_d: Text
    answer: Annotated[Literal["A", "B", "C", "D"], pydantic.BeforeValidator(lambda value: str(value).strip())]


@gin.configurable
@typed
def global_mmlu_questions(
    split: str = "test",
    languages: Sequence[str] = GLOBAL_MMLU_LANGUAGES,
    folder: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    tiers: Mapping[str, Sequence[str]] = GLOBAL_MMLU_TIERS,
) -> list[Question]:
    """Returns the questions of a split with all language versions adjacent; the answer is the letter of an option.

    A question that is missing in one language is dropped in all. `extra["type"]` is the subject's category.

    Args:
      split: test (14,042 questions) or dev (285).
      folder: Folder that holds the languages' folders; None: `$LCRAG_DATA/global_mmlu`.
      limit: Maximum number of questions, the same ones in all languages; the seed selects them.
      tiers: Tier -> its languages.
    """
    if split not in GLOBAL_MMLU_SPLITS or (limit is not None and limit < 1):
        raise UserError(
            f"global_mmlu has no split {split!r} of {limit} questions: use {' or '.join(GLOBAL_MMLU_SPLITS)}, and a"
            " limit of at least 1, or None"
        )
    languages = known_languages(languages, GLOBAL_MMLU_LANGUAGES, "global_mmlu")
    root = dataset_folder("global_mmlu", folder)
    names = [f"{split}-00000-of-00001.parquet", f"{split}/0000.parquet"]
    names += [f"{split}.{ending}" for ending in ("parquet", "csv", "jsonl")]
    versions = []
    with counted_bad_rows() as bad_rows:
        for language in languages:
            tier, path = tier_of(language, tiers), data_file(root / language, names, _GLOBAL_MMLU_SOURCE)
            rows = read_rows(path, MmluRow, bad_rows)
            version = {}
            for _, row in first_of_each_id(path, rows, lambda row: row.sample_id, "sample_id", bad_rows):
                options = (row.option_a, row.option_b, row.option_c, row.option_d)
                category = {"type": row.subject_category} if row.subject_category else {}
                version[row.sample_id] = Question(
                    id=row.sample_id,
                    dataset="global_mmlu",
                    language=language,
                    text="\n".join([row.question, *map("{}. {}".format, "ABCD", options)]),
                    answers=(row.answer,),
                    extra={"domain": MULTIPLE_CHOICE, "tier": tier, "subject": row.subject} | category,
                )
            versions.append(version)
    shared = in_all(versions)
    chosen = set(seeded_order(shared, seed)[:limit])
    return [version[name] for name in shared if name in chosen for version in versions]

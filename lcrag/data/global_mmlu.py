"""Global-MMLU: MMLU's four-option questions in 42 languages (Singh et al., 2024).

https://arxiv.org/abs/2412.03304. A folder per language holds its splits with the names of the hub
(`am/test-00000-of-00001.parquet`) or of its Parquet export (`am/test/0000.parquet`), or as `test.csv` or `test.jsonl`
with the same columns. First revisions have no `subject_category`.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import pydantic

from lcrag.data.batches import in_all, seeded_order
from lcrag.data.files import data_file
from lcrag.data.languages import known_languages
from lcrag.data.questions import MULTIPLE_CHOICE, Question
from lcrag.data.rows import BadRows, Row, Text, at_least_one, first_of_each_id, read_rows, validated
from lcrag.data.tables import parquet_dictionaries, table_rows
from lcrag.data.tiers import tier_of
from lcrag.errors import UserError

DATASET = "global_mmlu"
SOURCE = "https://huggingface.co/datasets/CohereLabs/Global-MMLU"
SPLITS = ("test", "dev")
# Our choice for languages without a tier in Translate-R1: low-tier languages are those with little text in web crawls.
TIERS: Mapping[str, tuple[str, ...]] = {
    "high": tuple("ar bn cs de el en es fa fil fr he hi id it ja ko lt ms nl pl pt ro ru sr sv tr uk vi zh".split()),
    "low": tuple("am ha ig ky mg ne ny si sn so sw te yo".split()),
}
LANGUAGES = tuple(sorted(language for own in TIERS.values() for language in own))


class MmluRow(Row):
    sample_id: Text
    subject: Text
    subject_category: str | None = None
    question: Text
    option_a: Text
    option_b: Text
    option_c: Text
    option_d: Text
    answer: Annotated[Literal["A", "B", "C", "D"], pydantic.BeforeValidator(lambda value: str(value).strip())]

    @property
    def text(self) -> str:
        """The question and its options, one per line."""
        options = (self.option_a, self.option_b, self.option_c, self.option_d)
        return "\n".join([self.question, *map("{}. {}".format, "ABCD", options)])


def global_mmlu_questions(
    folder: pathlib.Path,
    split: str,
    languages: Sequence[str],
    *,
    limit: int | None = None,
    seed: int = 0,
    tiers: Mapping[str, Sequence[str]] = TIERS,
    bad_rows: BadRows,
) -> list[Question]:
    """Returns the questions of a split with all language versions adjacent; the answer is the letter of an option.

    A question that is missing in one language is dropped in all. `extra["type"]` is the subject's category.

    Args:
      folder: Folder that holds the languages' folders.
      split: test (14,042 questions) or dev (285).
      limit: Maximum number of questions, the same ones in all languages.

    Raises:
      UserError: an unknown split or language, a language without a tier, a missing file, or a bad row.
    """
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r} of global_mmlu: use one of {', '.join(SPLITS)}")
    languages = known_languages(languages, LANGUAGES, DATASET)
    versions = [_version(folder, split, language, tier_of(language, tiers), bad_rows) for language in languages]
    shared = in_all(versions)
    chosen = set(seeded_order(shared, seed)[:limit])
    return [version[name] for name in shared if name in chosen for version in versions]


def _version(folder: pathlib.Path, split: str, language: str, tier: str, bad_rows: BadRows) -> dict[str, Question]:
    """Returns id -> question in one language, in the file's order."""
    name = f"{split}-00000-of-00001.parquet"
    others = (f"{split}/0000.parquet", f"{split}.parquet", f"{split}.csv", f"{split}.jsonl")
    path = data_file(folder / language, (name, *others), SOURCE)
    found = {}
    for _, row in first_of_each_id(path, _rows(path, bad_rows), lambda row: row.sample_id, "sample_id", bad_rows):
        found[row.sample_id] = Question(
            id=row.sample_id,
            dataset=DATASET,
            language=language,
            text=row.text,
            answers=(row.answer,),
            extra={"domain": MULTIPLE_CHOICE, "tier": tier, "subject": row.subject}
            | ({"type": row.subject_category} if row.subject_category else {}),
        )
    return found


def _rows(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, MmluRow]]:
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if suffix == "parquet":
        return at_least_one(path, _parquet_rows(path, bad_rows), bad_rows)
    if suffix == "csv":
        return table_rows(path, MmluRow, bad_rows, delimiter=",")
    return read_rows(path, MmluRow, bad_rows)


def _parquet_rows(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, MmluRow]]:
    with path.open("rb") as file:
        for number, values in enumerate(parquet_dictionaries(file, path), start=1):
            if (row := validated(MmluRow.model_validate, values, path, number, bad_rows)) is not None:
                yield number, row

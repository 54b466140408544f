"""Global-MMLU: MMLU's four-option questions in 42 languages (Singh et al., 2024).

https://arxiv.org/abs/2412.03304; a language's folder holds its splits as the data set's hub has them
(`am/test-00000-of-00001.parquet`), or as `test.csv` or `test.jsonl` with the same columns.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import pyarrow
import pyarrow.parquet
import pydantic

from lcrag.data.batches import seeded_order
from lcrag.data.english.asked import table_rows
from lcrag.data.files import data_file
from lcrag.data.questions import MULTIPLE_CHOICE, Question
from lcrag.data.rows import BadRows, Row, Text, first_problem, read_rows
from lcrag.data.tiers import tier_of
from lcrag.errors import UserError

DATASET = "global_mmlu"
SOURCE = "https://huggingface.co/datasets/CohereLabs/Global-MMLU"
SPLITS = ("test", "dev")
# Ours where Translate-R1 names no tier: low are those that a web crawl holds little of.
TIERS: Mapping[str, tuple[str, ...]] = {
    "high": tuple("ar bn cs de el en es fa fil fr he hi id it ja ko lt ms nl pl pt ro ru sr sv tr uk vi zh".split()),
    "low": tuple("am ha ig ky mg ne ny si sn so sw te yo".split()),
}
LANGUAGES = tuple(sorted(language for own in TIERS.values() for language in own))


class MmluRow(Row):
    """One question."""

    sample_id: Text
    subject: Text
    subject_category: Text
    question: Text
    option_a: Text
    option_b: Text
    option_c: Text
    option_d: Text
    answer: Annotated[Literal["A", "B", "C", "D"], pydantic.BeforeValidator(lambda value: str(value).strip())]

    @property
    def text(self) -> str:
        """The question and its options, a line each."""
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
    """The questions of a split, every language version of one together; the answer is the option's letter.

    A question that some language lacks is dropped for all. `extra["type"]` is the subject's category.

    Args:
      folder: Where the languages' folders are.
      split: test (14,042 questions) or dev (285).
      languages: Languages to ask in.
      limit: At most so many questions, chosen by the seed, the same in all languages.
      seed: Of the choice.
      tiers: Tier -> its languages.
      bad_rows: What becomes of rows that cannot be used.

    Raises:
      UserError: an unknown split or language, one in no tier, a missing file, or a bad row.
    """
    if split not in SPLITS:
        raise UserError(f"there is no split {split!r} of global_mmlu: use one of {', '.join(SPLITS)}")
    if unknown := [code for code in languages if code not in LANGUAGES]:
        raise UserError(f"global_mmlu has no questions in {unknown[0]!r}: use some of {' '.join(LANGUAGES)}")
    versions = [_version(folder, split, language, tier_of(language, tiers), bad_rows) for language in languages]
    shared = [name for name in versions[0] if all(name in version for version in versions)] if versions else []
    chosen = set(seeded_order(shared, seed)[:limit])
    return [version[name] for name in shared if name in chosen for version in versions]


def _version(folder: pathlib.Path, split: str, language: str, tier: str, bad_rows: BadRows) -> dict[str, Question]:
    """Id -> question in one language, in the file's order."""
    name = f"{split}-00000-of-00001.parquet"
    path = data_file(folder / language, (name, f"{split}.parquet", f"{split}.csv", f"{split}.jsonl"), SOURCE)
    lines: dict[str, int] = {}
    found = {}
    for line, row in _rows(path, bad_rows):
        if row.sample_id in lines:
            bad_rows.add(path, line, "sample_id", f"{row.sample_id} is also that of line {lines[row.sample_id]}")
            continue
        lines[row.sample_id] = line
        found[row.sample_id] = Question(
            id=row.sample_id,
            dataset=DATASET,
            language=language,
            text=row.text,
            answers=(row.answer,),
            extra={"domain": MULTIPLE_CHOICE, "tier": tier, "subject": row.subject, "type": row.subject_category},
        )
    return found


def _rows(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, MmluRow]]:
    suffix = path.name.removesuffix(".gz").rpartition(".")[2]
    if suffix == "parquet":
        return _parquet_rows(path, bad_rows)
    if suffix == "csv":
        return table_rows(path, MmluRow, bad_rows, delimiter=",")
    return read_rows(path, MmluRow, bad_rows)


def _parquet_rows(path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, MmluRow]]:
    """(number from 1, row) of a Parquet file."""
    good, before = 0, len(bad_rows.problems)
    for number, values in enumerate(_parquet_values(path), start=1):
        try:
            row = MmluRow.model_validate(values)
        except pydantic.ValidationError as error:
            bad_rows.add(path, number, *first_problem(error))
            continue
        good += 1
        yield number, row
    if not good:
        problems = bad_rows.problems[before:]
        raise UserError(f"no row of {path} can be used: {problems[0] if problems else 'the file is empty'}")


def _parquet_values(path: pathlib.Path) -> list[dict]:
    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} cannot be read ({reason}): download it again") from error

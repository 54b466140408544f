"""Answered questions, the parts of a data set that are reported separately, and the rows of `evaluation.json`."""

import collections
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated

import numpy as np
import pydantic
from jaxtyping import Bool

from lcrag.errors import UserError
from lcrag.files import write_text

# NaN, null in JSON, if unknown.
Nullable = Annotated[float, pydantic.BeforeValidator(lambda number: math.nan if number is None else number)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """One question with the answer of one episode."""

    question_id: str  # the same in every language version of the question
    dataset: str
    language: str  # ISO 639-1 code of the language the answer should be in
    answer: str | None  # None if the episode gave none
    golds: tuple[str, ...]  # gold answers and their aliases in `language`
    searches: int = 0  # number of queries the episode searched for
    retrieval_rounds: int = 0  # number of times it waited for search results
    subsets: tuple[str, ...] = ()  # reported parts of the data set with the question: "native_missing", "two_hops", ...
    sampled_tokens: int | None = None  # including completions outside the dialogue; None if unknown
    total_tokens: int | None = None  # of all contexts: sampled, prompts and observations; None if unknown
    answer_retrieved: bool | None = None  # whether a retrieved passage contains a gold answer; None if unknown
    plan: str | None = None  # canonical text of the policy's plan; None without a plan
    domain: str = ""  # empty for data sets with one way of answering
    tier: str = ""  # tier of its language; empty for data sets without tiers
    reward: float | None = None  # in [0, 1], excluding tool costs; None if not scored
    tool_calls: int | None = None  # calls of the translation tool; None if the program has no tool
    failed: bool = False  # whether a search, translator or another model of the episode failed; no mean counts it
    unscored: bool = False  # whether the reward's judge failed; the mean reward does not count it

    @property
    def cluster(self) -> str:
        """Identifies the question across languages: its versions are not independent observations."""
        return f"{self.dataset}/{self.question_id}"


def slices(
    answered: Sequence[Answered], seen_languages: Collection[str]
) -> Iterator[tuple[str, str, Bool[np.ndarray, " questions"]]]:
    """Yields (subset, language, questions): groups of languages, languages, then subsets; subset "" is the whole."""
    codes = np.array([question.language for question in answered])
    seen = np.isin(codes, list(seen_languages))
    groups = {"all": np.ones(len(codes), bool), "seen": seen, "zero_shot": ~seen}
    yield from (("", name, chosen) for name, chosen in groups.items() if chosen.any())
    yield from (("", code, codes == code) for code in dict.fromkeys(codes.tolist()))
    members: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(len(codes), bool))
    for index, question in enumerate(answered):
        for subset in question.subsets:
            members[subset][index] = True
    for subset in sorted(members):
        for name, chosen in groups.items():
            if (both := chosen & members[subset]).any():
                yield subset, name, both


def split_name(split: str, subset: str) -> str:
    """Returns the "split" field of a subset's rows: "held_out/native_missing", or the split itself for subset ""."""
    return f"{split}/{subset}" if subset else split


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One value of a metric and its labels."""

    method: str  # e.g. "LcRL"
    model: str
    dataset: str
    split: str  # its split; a subset of one is "held_out/native_missing"
    language: str  # an ISO 639-1 code, "all", "seen" or "zero_shot"
    metric: str
    value: Nullable  # NaN if no question was scored
    count: int  # number of questions that were averaged
    seed: int | str  # of the inference run, or those that were averaged, "0,1,2"
    standard_error: Nullable = math.nan


class _File(pydantic.BaseModel, strict=True):
    rows: list[Row]


def write_rows(path: str | pathlib.Path, rows: Sequence[Row]) -> None:
    """Replaces a file atomically by `{"rows": [...]}`, with one row per line."""
    path = pathlib.Path(path)
    lines = []
    for row in rows:
        numbers = {"value": row.value, "standard_error": row.standard_error}
        known = {name: None if math.isnan(number) else number for name, number in numbers.items()}
        lines.append(json.dumps(dataclasses.asdict(row) | known, ensure_ascii=False))
    write_text(path, '{"rows": [\n' + ",\n".join(lines) + "\n]}\n")


def read_rows(path: str | pathlib.Path) -> list[Row]:
    """Reads a file of `write_rows`."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no evaluation in {path}: run `lcrag evaluate` with this output folder first")
    try:
        return _File.model_validate_json(path.read_bytes()).rows
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = (f"row {part + 1}" if isinstance(part, int) else f'"{part}"' for part in first["loc"])
        where = ", ".join([str(path), *place])
        raise UserError(f"{where}: {first['msg']}; delete the file and run `lcrag evaluate` again") from error


def mean_over_seeds(rows: Iterable[Row]) -> list[Row]:
    """Averages rows that differ only in their seed; rows without a value are ignored.

    The standard error of an average is set to the mean of the seeds' standard errors. This is an upper bound, because
    all seeds answer the same questions.
    """
    groups = collections.defaultdict(list)
    for row in rows:
        groups[(row.method, row.model, row.dataset, row.split, row.language, row.metric)].append(row)
    averages = []
    for same in groups.values():
        values = [row.value for row in same if not math.isnan(row.value)]
        errors = [row.standard_error for row in same if not math.isnan(row.standard_error)]
        average = dataclasses.replace(
            same[0],
            value=statistics.fmean(values) if values else math.nan,
            standard_error=statistics.fmean(errors) if errors else math.nan,
            count=sum(row.count for row in same),
            seed=",".join(str(row.seed) for row in same),
        )
        averages.append(average if len(same) > 1 else same[0])
    return averages

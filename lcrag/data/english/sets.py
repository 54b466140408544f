"""The English question sets by name, with their splits, files and formats.

If the test answers are not public, "test" is the development set, as in the papers.
"""

import dataclasses
import gzip
import pathlib
from collections.abc import Callable, Mapping

from lcrag.data.batches import seeded_order
from lcrag.data.english.formats import Asked, Reader, read_flashrag, read_kilt, read_searcher
from lcrag.data.english.official import (
    read_bamboogle,
    read_dpr,
    read_multi_hop,
    read_musique,
    read_nq,
    read_pop,
    read_simplified,
    read_trivia,
    read_wikihop,
)
from lcrag.data.files import data_file
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows, UnusableQuestion, first_of_each_id
from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

_BEGINNING_BYTES = 1 << 17


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """A published question set.

    Attributes:
      name: Its name and the name of its folder.
      files: Split -> possible names of its file, the official one first.
      source: Download address of the official files.
      json: Reader of its JSON format, if it has one.
      table: Reader of its tables, or DPR's, if there are any.
      decomposed: Whether its rows contain the reasoning steps.
    """

    name: str
    files: Mapping[str, tuple[str, ...]]
    source: str
    json: Reader | None = None
    table: Reader | None = None
    decomposed: bool = False

    def file(self, folder: pathlib.Path, split: str, name: str | None = None) -> pathlib.Path:
        """Returns the file of a split in a folder; `name` overrides the known file names.

        Raises:
          UserError: there is no such split or file.
        """
        if split not in self.files:
            raise UserError(f"there is no split {split!r} of {self.name}: use one of {', '.join(self.files)}")
        return data_file(folder, (name,) if name else self.files[split], self.source)

    def read(
        self, path: pathlib.Path, bad_rows: BadRows, *, add_plan: Callable[[Question], Question] | None = None
    ) -> list[Asked]:
        """Returns the questions of a file in any known format, in order.

        Args:
          add_plan: Adds a golden plan made from the question's decomposition; a row for which it raises
            `UnusableQuestion` is a bad row, counted under the error's cause.

        Raises:
          UserError: the format is unknown, a row is bad and bad rows are not skipped, or golden plans are wanted and
            the set has no decompositions.
        """
        if add_plan and not self.decomposed:
            raise UserError(
                f"the rows of {self.name} have no decompositions to make golden plans of: make plans with"
                " `lcrag curate golden_plans`, or set english_questions.golden_plans to False"
            )
        found = []
        rows = self._reader(path)(path, bad_rows)
        for line, each in first_of_each_id(path, rows, lambda each: each.question.id, "id", bad_rows):
            try:
                question = add_plan(each.question) if add_plan else each.question
            except UnusableQuestion as error:
                bad_rows.add(path, line, "question_decomposition", str(error), cause=error.cause)
                continue
            question = dataclasses.replace(question, dataset=self.name)
            found.append(dataclasses.replace(each, question=question))
        return found

    def _reader(self, path: pathlib.Path) -> Reader:
        """Chooses the reader by the beginning of a file."""
        beginning = _beginning(path)
        reader = self._json_reader(beginning) if beginning.startswith(("{", "[")) else self.table
        if reader is None:
            own = " or ".join(name for name, known in (("JSON", self.json), ("a table", self.table)) if known)
            raise UserError(f"{path} has no known format of {self.name}, which is {own}: see docs/data.md")
        return reader

    def _json_reader(self, beginning: str) -> Reader | None:
        keys = {key for key in ("golden_answers", "output", "Question", "source", "_id") if f'"{key}"' in beginning}
        if beginning.startswith("{") and "golden_answers" in keys:
            return read_flashrag
        if beginning.startswith("{") and "output" in keys:
            return read_kilt
        if beginning.startswith("[") and {"Question", "source"} <= keys:
            return read_searcher
        return read_simplified if self.json is read_multi_hop and "_id" not in keys else self.json


def _beginning(path: pathlib.Path) -> str:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(_BEGINNING_BYTES).decode(errors="replace").lstrip("\ufeff \t\r\n")
    except (EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from error


def first_questions(found: list[Asked], limit: int | None, seed: int) -> list[Asked]:
    """Returns at most `limit` questions in the file's order, chosen by a hash of seed and id."""
    if limit is None or limit >= len(found):
        return found
    kept = set(seeded_order((each.question.id for each in found), seed)[:limit])
    return [each for each in found if each.question.id in kept]


def questions_of(found: list[Asked]) -> list[Question]:
    """Returns the questions without paragraphs."""
    return [each.question for each in found]


def with_golden_passages(found: list[Asked]) -> list[Asked]:
    """Adds the texts of the paragraphs that answer a question to its `extra`, as "golden_passages".

    Questions whose set names no such paragraphs are unchanged.
    """
    return [dataclasses.replace(each, question=_with_golden(each)) for each in found]


def _with_golden(asked: Asked) -> Question:
    supports = set(asked.question.extra.get("supports", ()))
    texts = [passage.text for passage in asked.passages if passage.id in supports]
    extra = asked.question.extra | ({"golden_passages": texts} if texts else {})
    return dataclasses.replace(asked.question, extra=extra)


def passages_of(found: list[Asked]) -> list[Passage]:
    """Returns the distinct paragraphs."""
    return list({passage.id: passage for each in found for passage in each.passages}.values())


def question_set(name: str) -> QuestionSet:
    """Returns the question set with a name.

    Raises:
      UserError: no set has this name.
    """
    if name not in QUESTION_SETS:
        raise UserError(f"there is no English question set {name!r}: use one of {', '.join(QUESTION_SETS)}")
    return QUESTION_SETS[name]


_ALL = (
    QuestionSet(
        name="hotpotqa",
        files={
            "train": ("hotpot_train_v1.1.json", "train.jsonl"),
            "test": ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json", "dev.jsonl"),
        },
        source="http://curtis.ml.cmu.edu/datasets/hotpot/",
        json=read_multi_hop,
    ),
    QuestionSet(
        name="2wikimultihopqa",
        files={"train": ("train.json", "train.jsonl"), "test": ("dev.json", "dev.jsonl")},
        source="https://github.com/Alab-NII/2wikimultihop (data_ids_april7.zip)",
        json=read_multi_hop,
    ),
    QuestionSet(
        name="musique",
        files={
            "train": ("musique_ans_v1.0_train.jsonl", "train.jsonl"),
            "test": ("musique_ans_v1.0_dev.jsonl", "dev.jsonl"),
        },
        source="https://github.com/StonyBrookNLP/musique (musique_v1.0.zip)",
        json=read_musique,
        decomposed=True,
    ),
    QuestionSet(
        name="bamboogle",
        files={"test": ("Bamboogle Prerelease - Sheet1.csv", "test.jsonl", "bamboogle.json")},
        source="https://github.com/ofirpress/self-ask (the spreadsheet as CSV)",
        table=read_bamboogle,
    ),
    QuestionSet(
        name="wikihop",
        files={"train": ("train.json",), "test": ("dev.json",)},
        source="http://qangaroo.cs.ucl.ac.uk/ (qangaroo_v1.1.zip)",
        json=read_wikihop,
    ),
    QuestionSet(
        name="nq_open",
        files={
            "train": ("NQ-open.train.jsonl", "train.jsonl", "nq-train.qa.csv"),
            "validation": ("dev.jsonl", "nq-dev.qa.csv"),
            "test": ("NQ-open.dev.jsonl", "test.jsonl", "nq-test.qa.csv"),
        },
        source="https://github.com/google-research-datasets/natural-questions/tree/master/nq_open",
        json=read_nq,
        table=read_dpr,
    ),
    QuestionSet(
        name="triviaqa",
        files={
            "train": ("unfiltered-web-train.json", "train.jsonl", "trivia-train.qa.csv"),
            "validation": ("dev.jsonl", "trivia-dev.qa.csv"),
            "test": ("unfiltered-web-dev.json", "test.jsonl", "trivia-test.qa.csv"),
        },
        source="https://nlp.cs.washington.edu/triviaqa/ (triviaqa-unfiltered.tar.gz)",
        json=read_trivia,
        table=read_dpr,
    ),
    QuestionSet(
        name="popqa",
        files={"test": ("popQA.tsv", "test.tsv", "test.jsonl")},
        source="https://github.com/AlexTMallen/adaptive-retrieval (data/popQA.tsv)",
        table=read_pop,
    ),
)
QUESTION_SETS: Mapping[str, QuestionSet] = {each.name: each for each in _ALL}

"""The English question sets by name: their splits, files and formats.

Where the test answers are not public, "test" is the development set, as in the papers.
"""

import dataclasses
import gzip
import pathlib
from collections.abc import Callable, Mapping

from lcrag.data.batches import seeded_order
from lcrag.data.english.asked import Asked, Reader
from lcrag.data.english.flashrag import read_flashrag, read_kilt, read_searcher
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
from lcrag.data.rows import BadRows, UnusableQuestion
from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

_BEGINNING_BYTES = 1 << 17


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionSet:
    """A published question set.

    Attributes:
      name: As it is called, also its folder.
      files: Split -> names its file may have, the official one first.
      source: Where the official files are downloaded from.
      json: Reads its own JSON, None where it has none.
      table: Reads its own tables, or DPR's, None where there are none.
      own_passages: Whether its official rows come with paragraphs.
      decomposed: Whether its rows come with the steps that answer the question.
    """

    name: str
    files: Mapping[str, tuple[str, ...]]
    source: str
    json: Reader | None = None
    table: Reader | None = None
    own_passages: bool = False
    decomposed: bool = False

    def file(self, folder: pathlib.Path, split: str, name: str | None = None) -> pathlib.Path:
        """The file of a split in a folder.

        Args:
          folder: Where to look.
          split: One of `files`.
          name: The file's name where it is another.

        Raises:
          UserError: there is no such split, or not its file.
        """
        if split not in self.files:
            raise UserError(f"there is no split {split!r} of {self.name}: use one of {', '.join(self.files)}")
        return data_file(folder, (name,) if name else self.files[split], self.source)

    def read(
        self, path: pathlib.Path, bad_rows: BadRows, *, add_plan: Callable[[Question], Question] | None = None
    ) -> list[Asked]:
        """What a file asks, in its order, whatever format it has.

        Args:
          path: The file.
          bad_rows: What becomes of rows that cannot be used.
          add_plan: Adds a golden plan made of the question's decomposition; a row for which it raises
            `UnusableQuestion` is a bad row, counted under the error's cause.

        Raises:
          UserError: its format is not known, a row is not what it should be and bad rows are not skipped, or there
            should be golden plans and the set has no decompositions.
        """
        if add_plan and not self.decomposed:
            raise UserError(
                f"the rows of {self.name} hold no decomposition that could be a golden plan: make their plans with"
                " `lcrag curate golden_plans`, or set english_questions.golden_plans to False"
            )
        lines: dict[str, int] = {}
        found = []
        for line, each in self._reader(path)(path, bad_rows):
            identity = each.question.id
            if identity in lines:
                bad_rows.add(path, line, "id", f"{identity} is also that of line {lines[identity]}")
                continue
            lines[identity] = line
            try:
                question = add_plan(each.question) if add_plan else each.question
            except UnusableQuestion as error:
                bad_rows.add(path, line, "question_decomposition", str(error), cause=error.cause)
                continue
            question = dataclasses.replace(question, dataset=self.name)
            found.append(dataclasses.replace(each, question=question))
        return found

    def _reader(self, path: pathlib.Path) -> Reader:
        """The reader of a file's format, told by how it begins."""
        beginning = _beginning(path)
        reader = self._json_reader(beginning) if beginning.startswith(("{", "[")) else self.table
        if reader is None:
            own = " or ".join(name for name, known in (("JSON", self.json), ("a table", self.table)) if known)
            raise UserError(f"{path} has no form in which {self.name} is published, which is {own}: see docs/data.md")
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
    """How a file begins; what cannot be read is left for its reader to name."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            return file.read(_BEGINNING_BYTES).decode(errors="replace").lstrip("\ufeff \t\r\n")
    except (EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read ({error}): download it again") from error


def first_questions(found: list[Asked], limit: int | None, seed: int) -> list[Asked]:
    """At most `limit` of them, chosen by the seed whatever else is there, in the file's order."""
    if limit is None or limit >= len(found):
        return found
    kept = set(seeded_order((each.question.id for each in found), seed)[:limit])
    return [each for each in found if each.question.id in kept]


def questions_of(found: list[Asked]) -> list[Question]:
    """The questions alone."""
    return [each.question for each in found]


def passages_of(found: list[Asked]) -> list[Passage]:
    """All their paragraphs, each once."""
    return list({passage.id: passage for each in found for passage in each.passages}.values())


def question_set(name: str) -> QuestionSet:
    """The question set of a name.

    Raises:
      UserError: there is none.
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
        own_passages=True,
    ),
    QuestionSet(
        name="2wikimultihopqa",
        files={"train": ("train.json", "train.jsonl"), "test": ("dev.json", "dev.jsonl")},
        source="https://github.com/Alab-NII/2wikimultihop (data_ids_april7.zip)",
        json=read_multi_hop,
        own_passages=True,
    ),
    QuestionSet(
        name="musique",
        files={
            "train": ("musique_ans_v1.0_train.jsonl", "train.jsonl"),
            "test": ("musique_ans_v1.0_dev.jsonl", "dev.jsonl"),
        },
        source="https://github.com/StonyBrookNLP/musique (musique_v1.0.zip)",
        json=read_musique,
        own_passages=True,
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
        own_passages=True,
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

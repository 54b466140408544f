"""Published question sets in English, multi-hop and open-domain: their files, formats and splits.

If the test answers are not public, "test" is the development set, as in the papers. Multi-hop: HotpotQA,
2WikiMultiHopQA, MuSiQue and WikiHop. Open-domain, without paragraphs: Natural Questions (Kwiatkowski et al., 2019;
NQ-open: Lee et al., 2019: https://arxiv.org/abs/1906.00300), TriviaQA (Joshi et al., 2017:
https://arxiv.org/abs/1705.03551), PopQA (Mallen et al., 2023: https://arxiv.org/abs/2212.10511), Bamboogle (Press et
al., 2023: https://arxiv.org/abs/2210.03350).

In place of an official file, FlashRAG's version (Jin et al., 2024: https://arxiv.org/abs/2405.13576) is recognised by
its content: JSON lines `{"id", "question", "golden_answers", "metadata"}`.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import gin
import pydantic

from lcrag.data.questions import Question, distinct_answers, limited, records_fingerprint, with_question_mark
from lcrag.data.rows import (
    BadRows,
    Place,
    Row,
    Text,
    UnusableQuestion,
    counted_bad_rows,
    data_file,
    dataset_folder,
    list_rows,
    opened,
    read_rows,
)
from lcrag.errors import Count, UserError, lookup, typed
from lcrag.files import cache_folder
from lcrag.retrieval import Collections, Passage
from lcrag.retrieval.collections import KEPT, kept_collections
from lcrag.retrieval.encoder import named_encoder

LANGUAGE = "en"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RawQuestion:
    """A question with the paragraphs that its set provides, if any.

    `question.extra` holds the set's annotations: `type` (comparison, bridge, 2hop, ...), `supports` (ids of the
    paragraphs that answer it), `supporting_facts` ([title, number of the sentence from 0], ...), `evidences` (triples),
    `decomposition` ([{"question", "answer", "support"}, ...] with `#1` for the first answer), and so on.
    """

    question: Question
    passages: tuple[Passage, ...] = ()


def _raw_question(
    id: str, text: str, answers: Iterable[str], passages: Iterable[Passage] = (), **extra: Any
) -> RawQuestion:
    """Returns a question without a data set name; empty values of `extra` are dropped."""
    if not (golds := distinct_answers(answers)):
        raise ValueError("every answer is blank")
    extra = {name: value for name, value in extra.items() if value not in (None, "", [])}
    text = with_question_mark(text)
    question = Question(id=id, dataset="", language=LANGUAGE, text=text, answers=golds, extra=extra)
    return RawQuestion(question=question, passages=tuple(passages))


def _paragraph(title: str, text: str) -> Passage:
    """Returns a paragraph as a passage; its id is a hash of its content, so equal paragraphs have one id."""
    title, text = title.strip(), text.strip()
    content = hashlib.sha256(f"{title}\n{text}".encode()).hexdigest()[:12]
    return Passage(id=f"{title}/{content}", title=title, text=text)


def _named(*names: str | pydantic.AliasPath) -> Any:
    return pydantic.Field(validation_alias=pydantic.AliasChoices(*names))


_List = pydantic.Strict(False)  # reads a JSON list as a tuple


class MultiHopRow(Row):
    """An element of HotpotQA's list, or 2WikiMultiHopQA's, whose `evidences` are (subject, relation, object)."""

    id: Annotated[Text, pydantic.Field(alias="_id")]
    question: Text
    answer: Text
    type: Text
    level: str | None = None
    context: list[Annotated[tuple[Text, list[str]], _List]]
    supporting_facts: list[Annotated[tuple[Text, int], _List]]
    evidences: list[Annotated[tuple[str, str, str], _List]] = []

    def raw_question(self) -> RawQuestion:
        passages = [_paragraph(title, " ".join(map(str.strip, sentences))) for title, sentences in self.context]
        supporting = {title.strip() for title, _ in self.supporting_facts}
        return _raw_question(
            self.id,
            self.question,
            [self.answer],
            passages,
            type=self.type,
            level=self.level,
            supports=[passage.id for passage in passages if passage.title in supporting],
            supporting_facts=list(map(list, self.supporting_facts)),
            evidences=list(map(list, self.evidences)),
        )


class PlainRow(Row):
    """A question and its answers, in the columns of NQ-open, TriviaQA, Bamboogle and PopQA.

    PopQA's `prop` is the relation, its `s_pop` the monthly views of the subject's page.
    """

    id: Annotated[Text, _named("id", "QuestionId")] = ""  # empty: the number of the row
    question: Annotated[Text, _named("question", "Question")]
    answer: Annotated[str | list[str], _named("answer", pydantic.AliasPath("Answer", "Value"), "Answer")] = []
    answers: Annotated[
        list[str] | pydantic.Json[list[str]],  # a JSON list in a cell of PopQA's table
        _named("answers", "possible_answers", pydantic.AliasPath("Answer", "Aliases")),
    ] = []
    type: Annotated[str | None, _named("type", "prop")] = None
    s_pop: Annotated[str | None, pydantic.StringConstraints(pattern=r"^[0-9]+$")] = None

    def raw_question(self) -> RawQuestion:
        golds = [self.answer] if isinstance(self.answer, str) else self.answer
        popularity = None if self.s_pop is None else int(self.s_pop)
        return _raw_question(self.id, self.question, [*golds, *self.answers], type=self.type, popularity=popularity)


class Paragraph(Row):
    """A paragraph of MuSiQue."""

    idx: int
    title: str
    paragraph_text: Text


class Step(Row):
    """A single-hop question of MuSiQue and the number of its paragraph; `#1` in it stands for the first's answer."""

    question: Text
    answer: Text
    paragraph_support_idx: int | None = None


class MusiqueRow(Row):
    """One line of MuSiQue. Aliases are golden answers too, as in the official script.

    An id begins with the kind of composition: `3hop1__...` is the first of two with three hops.
    """

    id: Text
    question: Text
    answer: Text
    answer_aliases: list[str] = []
    answerable: bool = True
    paragraphs: list[Paragraph]
    question_decomposition: list[Step]

    def raw_question(self) -> RawQuestion | None:
        if not self.answerable:
            return None
        passages: dict[int | None, Passage]
        passages = {part.idx: _paragraph(part.title, part.paragraph_text) for part in self.paragraphs}
        if len(passages) < len(self.paragraphs):
            raise ValueError("paragraphs: two have the same idx")
        steps = self.question_decomposition
        if missing := {step.paragraph_support_idx for step in steps} - {None, *passages}:
            raise ValueError(f"question_decomposition: there is no paragraph {missing.pop()}")
        supports = [passages.get(step.paragraph_support_idx) for step in steps]
        kind, mark, _ = self.id.partition("__")
        return _raw_question(
            self.id,
            self.question,
            [self.answer, *self.answer_aliases],
            passages.values(),
            type=kind if mark else "",
            supports=[support.id for support in supports if support],
            decomposition=[
                {"question": step.question, "answer": step.answer, "support": support.id if support else None}
                for step, support in zip(steps, supports, strict=True)
            ],
        )


class WikiHopRow(Row):
    """A query such as "country_of_citizenship juan rossell". Its paragraphs have no titles or marks of support."""

    id: Text
    query: Text
    answer: Text
    candidates: list[str]
    supports: list[Text]

    def raw_question(self) -> RawQuestion:
        relation, space, subject = self.query.partition(" ")
        if not space:
            raise ValueError("query: expected a relation, a space and a subject")
        name, passages = relation.replace("_", " "), [_paragraph("", text) for text in self.supports]
        extra = {"relation": name, "subject": subject, "candidates": list(self.candidates)}
        return _raw_question(self.id, f"What is the {name} of {subject}?", [self.answer], passages, **extra)


class FlashRagRow(Row):
    """One line of FlashRAG, without the paragraphs and facts that some of its sets have.

    Its metadata differ between sets; values of other types are ignored.
    """

    id: Text
    question: Text
    golden_answers: list[str]
    metadata: dict[str, Any] = {}

    def raw_question(self) -> RawQuestion:
        known = {name: value for name, value in self.metadata.items() if isinstance(value, str)}
        kind, views = known.get("type") or known.get("prop"), str(self.metadata.get("s_pop"))
        extra: dict[str, Any] = {
            "type": kind,
            "level": known.get("level"),
            "popularity": int(views) if views.isdecimal() else None,
        }
        return _raw_question(self.id, self.question, self.golden_answers, **extra)


@dataclasses.dataclass(frozen=True)
class QuestionSet:
    """A published question set."""

    name: str  # also the name of its folder
    files: Mapping[str, tuple[str, ...]]  # split -> possible names of its file, the official one first
    source: str  # download address of the official files
    # Of its JSON files; None: it has a table. `raw_question()` returns a row's question, None if the set leaves it out,
    # and raises a ValueError if the row cannot be used.
    row: type[Any] | None = None
    list_under: str | None = None  # key of a file's JSON list; empty: the file is the list; None: it has JSON lines
    decomposed: bool = False  # whether its rows contain the reasoning steps

    def file(self, folder: pathlib.Path, split: str, name: str | None = None) -> pathlib.Path:
        """Returns the file of a split in a folder; `name` overrides the known file names."""
        names = lookup(self.files, split, f"{self.name} split")
        return data_file(folder, (name,) if name else names, self.source)

    def read(
        self,
        path: pathlib.Path,
        bad_rows: BadRows,
        *,
        add_plan: Callable[[Question], Question] | None = None,
        limit: int | None = None,
        seed: int = 0,
    ) -> list[RawQuestion]:
        """Returns the questions of an official file or FlashRAG's, in order.

        Args:
          add_plan: Adds a golden plan made from the question's decomposition; a row for which it raises
            `UnusableQuestion` is a bad row, counted under the error's cause.
          limit: Maximum number of questions, chosen by a hash of seed and id.
        """
        if add_plan and not self.decomposed:
            raise UserError(
                f"the rows of {self.name} have no decompositions to make golden plans of: make plans with"
                " `lcrag curate golden_plans`, and leave english_questions.golden_plans None"
            )
        with opened(path) as (content, _):
            beginning = content.read(1 << 17).decode(errors="replace").lstrip()
        schema, key, is_json = self.row, self.list_under, beginning.startswith(("{", "["))
        if beginning.startswith("{") and '"golden_answers"' in beginning:
            schema, key = FlashRagRow, None
        elif is_json == (schema is None):
            known = "JSON" if schema else "a table"
            raise UserError(f"{path} has no known format of {self.name}, which is {known}: see docs/data.md")
        schema = schema or PlainRow
        rows: Iterable[tuple[Place, Any]]
        rows = read_rows(path, schema, bad_rows) if key is None else list_rows(path, schema, bad_rows, key)

        by_id: dict[str, RawQuestion] = {}
        for place, row in rows:
            try:
                raw = row.raw_question()
            except ValueError as error:
                bad_rows.add(path, place, "", str(error))
                continue
            if raw is None:
                continue
            number = str(place).rpartition(" ")[2]  # in a list, "Data 3"
            asked = dataclasses.replace(raw.question, id=raw.question.id or number, dataset=self.name)
            if asked.id in by_id:
                bad_rows.add(path, place, "id", f"{asked.id} is already used by an earlier row")
                continue
            try:
                asked = add_plan(asked) if add_plan else asked
            except UnusableQuestion as error:  # any other error of the plans is ours
                bad_rows.add(path, place, "question_decomposition", str(error), cause=error.cause)
                continue
            by_id[asked.id] = dataclasses.replace(raw, question=asked)
        chosen = limited([raw.question for raw in by_id.values()], limit, seed=seed)
        return [by_id[question.id] for question in chosen]


@gin.configurable
@typed
def english_questions(
    dataset: str,
    split: str,
    folder: str | None = None,
    file: str | None = None,
    limit: Count | None = None,
    seed: int = 0,
    types: Sequence[str] | None = None,
    golden_plans: Callable[[Question], Question] | None = None,
    golden_passages: bool = False,
) -> list[Question]:
    """Returns the questions of a split of an English question-answering data set.

    Args:
      dataset: hotpotqa, 2wikimultihopqa, musique, bamboogle, wikihop, nq_open, triviaqa or popqa.
      split: train, validation or test; not every set has all three.
      file: Name of the split's file, if it differs from the known names.
      types: Types of which questions are kept, among those of the limit: `("comparison",)`; None: all.
      golden_plans: Makes golden plans of the set's question decompositions (musique): `@decomposition_plans()`.
      golden_passages: Whether to add the texts of the supporting paragraphs, of sets that have any, to each question.
    """
    chosen = lookup(QUESTION_SETS, dataset, "English question set")
    path = chosen.file(dataset_folder(dataset, folder, binding="english_questions.folder"), split, file)
    with counted_bad_rows() as bad_rows:
        raw_questions = chosen.read(path, bad_rows, add_plan=golden_plans, limit=limit, seed=seed)
    if types is not None:
        known = {str(raw.question.extra.get("type", "")): None for raw in raw_questions}
        for name in types:
            lookup(known, name, f"type of the chosen questions of {dataset}")
        raw_questions = [raw for raw in raw_questions if raw.question.extra.get("type") in types]
    questions = []
    for raw in raw_questions:
        supports = raw.question.extra.get("supports", ()) if golden_passages else ()
        texts = [passage.text for passage in raw.passages if passage.id in supports]
        extra = raw.question.extra | ({"golden_passages": texts} if texts else {})
        questions.append(dataclasses.replace(raw.question, extra=extra))
    return questions


@gin.configurable
@typed
def english_collections(
    datasets: Sequence[str],
    splits: Sequence[str] = ("test",),
    folder: str | None = None,
    limit: Count | None = None,
    seed: int = 0,
    encoder: str | None = None,
) -> Collections:
    """Opens one English collection of the paragraphs in data sets' rows, built on first use and kept in the cache.

    Args:
      datasets: Sets whose rows have paragraphs: hotpotqa, 2wikimultihopqa, musique or wikihop.
      splits: Splits whose paragraphs are used; splits that a set does not have are ignored.
      folder: The folder that holds the sets' folders; None: `$LCRAG_DATA`.
      limit: Maximum number of questions per split whose paragraphs are used; `english_questions` selects the same ones.
    """
    opened = named_encoder(encoder, "english_collections.encoder")
    with counted_bad_rows() as bad_rows:
        by_id: dict[str, Passage] = {}
        for name in datasets:
            chosen = lookup(QUESTION_SETS, name, "English question set")
            place = pathlib.Path(folder) / name if folder else None
            root = dataset_folder(name, place, binding="english_collections.folder")
            of_set: list[Passage] = []
            for split in filter(chosen.files.__contains__, splits):
                questions = chosen.read(chosen.file(root, split), bad_rows, limit=limit, seed=seed)
                of_set += [passage for question in questions for passage in question.passages]
            if not of_set:
                raise UserError(
                    f"{name} comes without paragraphs in {', '.join(splits)}: search Wikipedia for its questions"
                    " instead, with --gin.COLLECTIONS='@remote_collections()'"
                )
            by_id |= {passage.id: passage for passage in of_set}
    passages = list(by_id.values())
    root = cache_folder() / KEPT / f"english-{records_fingerprint(passages)}-{opened.fingerprint()}"
    return kept_collections(root, opened, (LANGUAGE,), lambda _: passages)


_GITHUB = "https://github.com"
_ALL = (
    QuestionSet(
        "hotpotqa",
        files={
            "train": ("hotpot_train_v1.1.json", "train.jsonl"),
            "test": ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json", "dev.jsonl"),
        },
        source="http://curtis.ml.cmu.edu/datasets/hotpot/",
        row=MultiHopRow,
        list_under="",
    ),
    QuestionSet(
        "2wikimultihopqa",
        files={"train": ("train.json", "train.jsonl"), "test": ("dev.json", "dev.jsonl")},
        source=f"{_GITHUB}/Alab-NII/2wikimultihop (data_ids_april7.zip)",
        row=MultiHopRow,
        list_under="",
    ),
    QuestionSet(
        "musique",
        files={
            "train": ("musique_ans_v1.0_train.jsonl", "train.jsonl"),
            "test": ("musique_ans_v1.0_dev.jsonl", "dev.jsonl"),
        },
        source=f"{_GITHUB}/StonyBrookNLP/musique (musique_v1.0.zip)",
        row=MusiqueRow,
        decomposed=True,
    ),
    QuestionSet(
        "bamboogle",
        files={"test": ("Bamboogle Prerelease - Sheet1.csv", "test.jsonl")},
        source=f"{_GITHUB}/ofirpress/self-ask (the spreadsheet as CSV)",
    ),
    QuestionSet(
        "wikihop",
        files={"train": ("train.json",), "test": ("dev.json",)},
        source="http://qangaroo.cs.ucl.ac.uk/ (qangaroo_v1.1.zip)",
        row=WikiHopRow,
        list_under="",
    ),
    QuestionSet(
        "nq_open",
        files={
            "train": ("NQ-open.train.jsonl", "train.jsonl"),
            "validation": ("dev.jsonl",),
            "test": ("NQ-open.dev.jsonl", "test.jsonl"),
        },
        source=f"{_GITHUB}/google-research-datasets/natural-questions/tree/master/nq_open",
        row=PlainRow,
    ),
    QuestionSet(
        "triviaqa",
        files={
            "train": ("unfiltered-web-train.json", "train.jsonl"),
            "validation": ("dev.jsonl",),
            "test": ("unfiltered-web-dev.json", "test.jsonl"),
        },
        source="https://nlp.cs.washington.edu/triviaqa/ (triviaqa-unfiltered.tar.gz)",
        row=PlainRow,
        list_under="Data",
    ),
    QuestionSet(
        "popqa",
        files={"test": ("popQA.tsv", "test.tsv", "test.jsonl")},
        source=f"{_GITHUB}/AlexTMallen/adaptive-retrieval (data/popQA.tsv)",
    ),
)
QUESTION_SETS: Mapping[str, QuestionSet] = {question_set.name: question_set for question_set in _ALL}

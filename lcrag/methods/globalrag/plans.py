"""Plans of a question, and golden plans: reference plans with the answers to their sub-questions.

A plan is one strict JSON object of sub-questions with placeholders for their answers (GlobalRAG, section 3.1):

  {"Q1": ["What is the most populous city of the USA?", "#1"], "Q2": ["Who was the first mayor of #1?", "#2"]}

`#1` in the question of Q2 is the answer of Q1, so Q2 depends on Q1: a plan is a directed acyclic graph. A `#n` in the
question of Qn itself ("the #1 song of 1969"), or one that a sub-question quotes from the whole question, is ordinary
text, and gets a space when the plan is read.

Questions carry golden plans in `extra`, in one of two forms; `previous` and `supports` are optional:

  golden_plans: [{"Q1": {"query": "Who directed Jaws?", "answer": ["Steven Spielberg"], "previous": [], "supports": []},
                  "Q2": {"query": "Where was #1 born?", "answer": ["Cincinnati"], "previous": ["Q1"], "supports": []}}]
  plan: {"Q1": ["Who directed Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]}, and
  sub_answers: {"#1": ["Steven Spielberg"], "#2": ["Cincinnati"]}

The first is what `lcrag curate golden_plans` writes, one or several graphs per question; the second is a single plan as
a policy writes it. `with_own_plan` and `with_decomposition` make golden plans without a teacher, and
`published_golden_plans` reads the authors' training questions.
"""

import copy
import dataclasses
import functools
import graphlib
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeAlias

import gin
import pydantic

from lcrag.data.questions import Question, trimmed
from lcrag.data.rows import Row, Text, UnusableQuestion, counted_bad_rows, read_rows
from lcrag.errors import UserError, typed
from lcrag.files import local_files
from lcrag.rewards.text import folded, is_visible

# What can be wrong with a plan, in the order of the checks.
FAULTS = (
    "invalid_json",  # includes NaN and lone surrogates
    "duplicate_key",
    "not_an_object",
    "empty",
    "too_many_questions",
    "bad_key",  # not Q1, Q2, ...
    "bad_entry",  # not a list of a non-empty question and a placeholder
    "bad_placeholder",  # the placeholder of Qn is not #n
    "unknown_reference",  # a question names the answer of a question that does not exist
    "cyclic",
)
DISORDERED = "inconsistent_order"  # a question names the answer of a later one; invalid in golden plans only

MAX_QUESTIONS = 16  # golden plans have at most about 6; the limit bounds the cost of matching
_KEY = re.compile(r"Q[1-9][0-9]{0,3}")
_REFERENCE = re.compile(r"#([0-9]+)")
_DIGIT_AFTER = re.compile("#(?=[0-9])")
_PUBLISHED = re.compile("<A([0-9]+)>")

GoldenGraph: TypeAlias = dict[str, dict[str, Any]]  # {Qn: {"query", "answer", "previous", "supports"}}


class BadPlan(ValueError):
    """Raised for a text or an object that is not a valid plan; `fault` is one of `FAULTS`."""

    def __init__(self, fault: str, detail: str):
        super().__init__(detail)
        self.fault = fault


@dataclasses.dataclass(frozen=True)
class QuestionPlan:
    """A valid plan, `Qn` -> sub-question in the order written; build it with `parse_plan` or `plan_of`."""

    questions: Mapping[str, str]

    @functools.cached_property
    def dependencies(self) -> Mapping[str, tuple[str, ...]]:
        """For each key, the keys whose answers its question names, without duplicates, in the order named."""
        return {
            key: tuple(dict.fromkeys(f"Q{number}" for number in _REFERENCE.findall(question)))
            for key, question in self.questions.items()
        }

    @functools.cached_property
    def order(self) -> tuple[str, ...]:
        """The keys in topological order; ties keep the order written."""
        return tuple(graphlib.TopologicalSorter(self.dependencies).static_order())

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """(Qk, Qi) for each #k in the question of Qi."""
        return tuple((before, key) for key, names in self.dependencies.items() for before in names)

    @property
    def forward_reference(self) -> tuple[str, str] | None:
        """The first (key, later key) where a question names the answer of a later one, None where none does."""
        keys = list(self.questions)
        later = ((key, name) for at, key in enumerate(keys) for name in self.dependencies[key] if name in keys[at:])
        return next(later, None)

    def canonical(self) -> dict[str, str]:
        """The questions with a neutral word for every placeholder, which makes them independent of the numbering."""
        return {key: _REFERENCE.sub("something", question) for key, question in self.questions.items()}

    def as_object(self) -> dict[str, list[str]]:
        """The plan as the JSON object that a policy writes; `plan_of` reads it back."""
        return {key: [text, placeholder(key)] for key, text in self.questions.items()}

    def as_json(self) -> str:
        """The plan on one line, as a policy writes it; `parse_plan` reads it back."""
        return json.dumps(self.as_object(), ensure_ascii=False)


def placeholder(key: str) -> str:
    """Returns `#n` for the key `Qn`."""
    return f"#{key.removeprefix('Q')}"


def substituted(question: str, answers: Mapping[str, str]) -> str:
    """Returns a sub-question with known answers (by key) in place of their placeholders."""
    return _REFERENCE.sub(lambda name: answers.get(f"Q{name[1]}", name[0]), question)


def parse_plan(text: str, question: str = "") -> QuestionPlan:
    """Parses a plan of a question from JSON text; raises `BadPlan`."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise BadPlan("duplicate_key", "a key of the plan occurs twice")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=without_duplicates)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except BadPlan:
        raise
    except (ValueError, RecursionError) as error:  # lone surrogates cannot be encoded, deep nesting cannot be parsed
        raise BadPlan("invalid_json", f"the plan is not valid JSON ({type(error).__name__})") from error
    return plan_of(value, question)


def plan_of(value: object, question: str = "") -> QuestionPlan:
    """Builds a plan from a decoded JSON object `{"Q1": ["...", "#1"], ...}`; raises `BadPlan`.

    What it quotes of the `question` that it is for is no reference, nor is the placeholder of Qn in Qn itself.
    """
    if not isinstance(value, Mapping):
        raise BadPlan("not_an_object", "the plan is not an object of questions")
    if not value:
        raise BadPlan("empty", "the plan has no question")
    if len(value) > MAX_QUESTIONS:
        raise BadPlan("too_many_questions", f"the plan has {len(value)} questions, more than {MAX_QUESTIONS}")

    def around(match: re.Match[str]) -> tuple[str, str, str]:
        """The number of a `#n`, and the words before and after it, empty where there are none."""
        before = re.search(r"(\w+)\W*$", match.string[: match.start()])
        after = re.compile(r"\w+").search(match.string, match.end())
        return match[1], before[1].casefold() if before else "", after[0].casefold() if after else ""

    in_question = [around(match) for match in _REFERENCE.finditer(question)]

    def is_quoted(match: re.Match[str]) -> bool:
        """Whether a `#n` is of the question: the same word is after it, or before it at the end of a sub-question.

        A word of one or two letters counts only if the word on the other side is the same too.
        """
        number, before, after = around(match)
        return any(
            number == other
            and (
                (after == other_after and (len(after) > 2 or before == other_before))
                or (not after and len(before) > 2 and before == other_before)
            )
            for other, other_before, other_after in in_question
        )

    questions = {}
    for key, entry in value.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise BadPlan("bad_key", f"the key {key!r} is not Q1, Q2 and so on")
        pair = list(entry) if isinstance(entry, (list, tuple)) else []
        if len(pair) != 2 or not all(isinstance(part, str) for part in pair) or not pair[0].strip():
            raise BadPlan("bad_entry", f"{key} is not a list of a question and a placeholder")
        if pair[1] != placeholder(key):
            raise BadPlan("bad_placeholder", f"the placeholder of {key} is {pair[1]!r}, not {placeholder(key)}")
        text = pair[0].strip()
        for match in reversed([*_REFERENCE.finditer(text)]):
            if match[0] == pair[1] or is_quoted(match):
                text = f"{text[: match.start()]}# {text[match.end() - len(match[1]) :]}"
        questions[key] = text
    plan = QuestionPlan(questions)
    for key, names in plan.dependencies.items():
        if unknown := [name for name in names if name not in plan.questions]:
            raise BadPlan("unknown_reference", f"{key} names {placeholder(unknown[0])}, which no question answers")
    try:
        graphlib.TopologicalSorter(plan.dependencies).prepare()
    except graphlib.CycleError as error:
        raise BadPlan("cyclic", f"{' needs '.join(reversed(error.args[1]))}: the plan is cyclic") from error
    return plan


@dataclasses.dataclass(frozen=True)
class GoldenPlan:
    """A reference plan, and for each key its golden answers, aliases included."""

    plan: QuestionPlan
    answers: Mapping[str, tuple[str, ...]]


def golden_plans(extra: Mapping[str, Any]) -> tuple[GoldenPlan, ...]:
    """Returns the golden plans in `Question.extra`; the `ValueError` of an invalid one names its place there."""
    if "golden_plans" in extra:
        graphs, plans = extra["golden_plans"], []
        if not isinstance(graphs, (list, tuple)) or not graphs:
            raise ValueError("golden_plans: it is not a list of at least one graph")
        for number, graph in enumerate(graphs):
            try:
                plans.append(golden_graph(graph))
            except ValueError as error:
                raise ValueError(f"golden_plans.{number}: {error}") from error
        return tuple(plans)
    if "plan" not in extra:
        return ()
    plan, answers = plan_of(extra["plan"]), extra.get("sub_answers")
    answers = answers if isinstance(answers, Mapping) else {}
    names = {key: placeholder(key) for key in plan.questions}
    return (GoldenPlan(plan, {key: _answers(f"sub_answers.{name}", answers.get(name)) for key, name in names.items()}),)


def golden_graph(graph: object) -> GoldenPlan:
    """Reads the golden plan of one graph, whose `previous` must be the answers that the query names."""
    if not isinstance(graph, Mapping) or not all(isinstance(node, Mapping) for node in graph.values()):
        raise ValueError("it is not an object of sub-questions")
    for key, node in graph.items():
        if not isinstance(node.get("query"), str) or not node["query"].strip():
            raise ValueError(f"{key} has no query, or an empty one")
    plan = plan_of({key: [node["query"], placeholder(str(key))] for key, node in graph.items()})
    for key, node in graph.items():
        named, given = sorted(plan.dependencies[key]), node.get("previous")
        if given is not None and not (isinstance(given, (list, tuple)) and sorted(map(str, given)) == named):
            raise ValueError(f"{key} has previous {given}, but its query names {named}")
    return GoldenPlan(plan, {key: _answers(f"answer of {key}", node.get("answer")) for key, node in graph.items()})


def _answers(place: str, value: object) -> tuple[str, ...]:
    answers = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else ()
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise ValueError(f"{place}: it is not a non-empty text or a list of such texts")
    return answers


def graph_with_answers(
    plan: QuestionPlan, answers: Iterable[Sequence[str]], supports: Iterable[Sequence[str]]
) -> GoldenGraph:
    """Builds a golden graph of a plan, with the answers and supporting passages of each sub-question in order."""
    nodes = zip(plan.questions.items(), answers, supports, strict=True)
    return {
        key: {"query": query, "answer": list(golds), "previous": list(plan.dependencies[key]), "supports": list(ids)}
        for (key, query), golds, ids in nodes
    }


def united(graphs: Iterable[GoldenGraph]) -> list[GoldenGraph]:
    """Returns the golden graphs of a question, equal plans as one with the answers and supports of all."""
    by_plan: dict[tuple[str, ...], GoldenGraph] = {}
    for graph in graphs:
        queries = tuple(node["query"] for node in graph.values())
        for key, node in by_plan.setdefault(queries, copy.deepcopy(graph)).items():
            for name in ("answer", "supports"):
                node[name] = list(dict.fromkeys((*node[name], *graph[key][name])))
    return list(by_plan.values())


def with_own_plan(question: Question) -> Question:
    """Returns a one-hop question with itself as its only sub-question; one with a golden plan stays as it is.

    A space separates `#` from a following digit, which would read as a placeholder.
    """
    if golden_plans(question.extra):
        return question
    plan = {"Q1": [_DIGIT_AFTER.sub("# ", question.text), "#1"]}
    extra = question.extra | {"plan": plan, "sub_answers": {"#1": list(question.answers)}}
    return dataclasses.replace(question, extra=extra)


@gin.configurable
@typed
def with_own_plans(questions: Sequence[Question]) -> list[Question]:
    """Applies `with_own_plan` to all questions."""
    try:
        return [with_own_plan(question) for question in questions]
    except ValueError as error:
        raise UserError(f"a golden plan of the questions cannot be used: {error}; correct it in their file") from error


class _Node(Row):
    answer: str | list[str] | None = None
    template: str | None = None


class _Metadata(Row):
    plan: dict[str, list[str] | None] | None = None  # {"Q1": ["What is the birth city of Daniela Scalia?", "<A1>"]}
    graph: dict[str, _Node | None] | list[dict[str, _Node | None]]

    def golden_graph(self) -> GoldenGraph:
        """Returns its graph in our form, with the answers of several graphs united; raises a `ValueError`."""
        graphs = [self.graph] if isinstance(self.graph, dict) else self.graph
        queries = {key: entry[0] for key, entry in (self.plan or {}).items() if entry}
        answers: dict[str, dict[str, None]] = {}
        for graph in graphs:
            for key, node in graph.items():
                if node is None:  # Parquet has a column for every key of the file
                    continue
                queries.setdefault(key, node.template or "")
                given = [node.answer] if isinstance(node.answer, str) else node.answer or []
                answers.setdefault(key, {}).update(dict.fromkeys(filter(is_visible, map(trimmed, given))))
        # A `#1` of theirs is text, and <A1> the placeholder.
        texts = {key: _PUBLISHED.sub(r"#\1", _DIGIT_AFTER.sub("# ", query)) for key, query in queries.items()}
        golden = {key: {"query": text, "answer": list(answers.get(key, ()))} for key, text in texts.items()}
        golden_graph(golden)
        return golden


class PublishedRow(Row):
    """A row of the authors' training questions; files for the trainer have `prompt` and `reward_model`."""

    question: Text
    golden_answers: Annotated[list[Text], pydantic.Field(min_length=1)]
    metadata: _Metadata

    @pydantic.model_validator(mode="before")
    @classmethod
    def of_trainer(cls, row: Any) -> Any:
        """Takes question and answers of a row for the trainer from the prompt and the reward's truth."""
        if isinstance(row, Mapping) and "question" not in row and "prompt" in row:
            with suppress(LookupError, TypeError, AttributeError):
                asked = row["prompt"][-1]["content"].rpartition("Question:")[2]
                row = {**row, "question": asked, "golden_answers": row["reward_model"]["ground_truth"]["target"]}
        return row


@gin.configurable
@typed
def published_golden_plans(files: Sequence[str | pathlib.Path], dataset: str = "globalrag") -> list[Question]:
    """Returns the authors' training questions with their golden plans (github.com/CarnegieBin/GlobalRAG).

    In their rows a placeholder is `<A1>`, `template` is a sub-question with placeholders, and a list of graphs differs
    in answers alone. An id is the row's number in all files.

    Args:
      files: Files of JSON lines or Parquet, also in an object store.
    """
    questions: list[Question] = []
    with counted_bad_rows() as bad_rows:
        for path in map(local_files, files):
            for line, row in read_rows(path, PublishedRow, bad_rows):
                try:
                    extra = {"golden_plans": [row.metadata.golden_graph()]}
                except ValueError as error:
                    cause = error.fault.replace("_", " ") if isinstance(error, BadPlan) else ""
                    bad_rows.add(path, line, "metadata", str(error), cause=cause)
                    continue
                answers = tuple(dict.fromkeys(row.golden_answers))
                names = {"id": str(len(questions) + 1), "dataset": dataset, "language": "en"}
                questions.append(Question(**names, text=row.question, answers=answers, extra=extra))
    return questions


@gin.configurable
def decomposition_plans() -> Callable[[Question], Question]:
    """Returns `with_decomposition`, for `english_questions.golden_plans` (MuSiQue)."""
    return with_decomposition


def with_decomposition(question: Question) -> Question:
    """Returns a question with its data set's decomposition as its golden plan, in `extra["golden_plans"]`.

    `extra["decomposition"]` is a list of `{"question", "answer", "support"}`. Step n becomes Qn unchanged, where `#k`
    stands for the answer of step k. A step whose answer is the question's gets the question's aliases too. Raises
    `UnusableQuestion`.
    """
    steps = question.extra.get("decomposition")
    if not steps:
        raise UnusableQuestion("no decomposition", "the row has no steps to make a golden plan of")
    try:
        plan = plan_of({f"Q{n}": [step["question"], f"#{n}"] for n, step in enumerate(steps, start=1)}, question.text)
    except BadPlan as error:
        raise UnusableQuestion(error.fault.replace("_", " "), str(error)) from error
    if forward := plan.forward_reference:
        raise UnusableQuestion(DISORDERED.replace("_", " "), f"{forward[0]} names the answer of {forward[1]}")
    step_answers = [step["answer"].strip() for step in steps]
    if not all(step_answers):
        raise UnusableQuestion("no sub-answer", f"step {step_answers.index('') + 1} has no answer")
    golds, wanted = question.answers, {folded(gold) for gold in question.answers}
    if folded(step_answers[-1]) not in wanted:
        detail = f"the last step's answer is {step_answers[-1]!r}, the question's is {golds[0]!r}"
        raise UnusableQuestion("another answer", detail)
    answers = [dict.fromkeys((answer, *(golds if folded(answer) in wanted else ()))) for answer in step_answers]
    supports = ([step["support"]] if step["support"] else [] for step in steps)
    graph = graph_with_answers(plan, map(tuple, answers), supports)
    return dataclasses.replace(question, extra=question.extra | {"golden_plans": [graph]})

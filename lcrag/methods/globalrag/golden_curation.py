"""Filters a teacher's trajectories, extracts the golden graphs of those that pass, and reports both.

The filters are those of GlobalRAG's appendix D.3: an invalid, cyclic or disordered plan, an unresolved sub-question,
and a wrong final answer remove a trajectory. A question that an evaluation asks in the same words is removed too
(appendix E.1).
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lcrag.curation.playing import CONTEXT_FULL, KEPT, NO_ANSWER, WRONG
from lcrag.data.jsonl_questions import question_row
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord
from lcrag.evaluation.tables import Cell, Table
from lcrag.methods.globalrag.golden_trajectory import NO_PLAN
from lcrag.methods.globalrag.plans import DISORDERED, FAULTS, GoldenGraph, graph_with_answers, plan_of
from lcrag.rewards import normalise, squad_exact_match

UNRESOLVED = "an unresolved sub-question"
BAD_PLANS = {fault: f"a bad plan: {fault.replace('_', ' ')}" for fault in (NO_PLAN, *FAULTS, DISORDERED)}
FILTERS = (CONTEXT_FULL, *BAD_PLANS.values(), UNRESOLVED, NO_ANSWER, WRONG)  # in the order of the checks


def without_held_out(questions: Iterable[Question], held_out: Iterable[Question]) -> list[Question]:
    """Returns the questions that no held-out one asks in the same words, ignoring case and punctuation."""
    asked = {normalise(each.text) for each in held_out}
    return [each for each in questions if normalise(each.text) not in asked]


def golden_verdict(record: EpisodeRecord, correct: bool) -> str:
    """Returns `KEPT`, or the first of `FILTERS` that removes an episode of `golden_trajectory`."""
    extra = record.outcome.extra
    if not record.finished:
        return CONTEXT_FULL
    if extra["plan_fault"] is not None:
        return BAD_PLANS[extra["plan_fault"]]
    if extra["unresolved"] is not None:
        return UNRESOLVED
    if record.outcome.answer is None:
        return NO_ANSWER
    return KEPT if correct else WRONG


def graph_of(record: EpisodeRecord) -> GoldenGraph:
    """Returns the golden graph of a kept episode.

    Queries keep their placeholders. Where a sub-answer matches the golden answer, its aliases are answers too.
    """
    extra, golds = record.outcome.extra, record.question.answers
    plan = plan_of(extra["plan"])
    own = [extra["sub_answers"][key] for key in plan.questions]
    final = squad_exact_match(own, [golds] * len(own)) == 1
    aliases = [golds if is_final else () for is_final in final.tolist()]
    answers = [list(dict.fromkeys((each, *others))) for each, others in zip(own, aliases, strict=True)]
    return graph_with_answers(plan, answers, (extra["supports"][key] for key in plan.questions))


@dataclasses.dataclass(frozen=True)
class GoldenQuestion:
    """A question with its golden graphs, whose plans all differ."""

    question: Question
    graphs: tuple[GoldenGraph, ...]

    def row(self) -> dict[str, Any]:
        """A line of `questions.jsonl`; the id includes the data set."""
        return question_row(self.question, identity=self.question.coupling, extra={"golden_plans": list(self.graphs)})


def golden_questions(questions: Iterable[Question], rows: Iterable[Mapping[str, Any]]) -> list[GoldenQuestion]:
    """Returns the questions with at least one kept trajectory, in the order given.

    Args:
      questions: All questions.
      rows: Trajectories with `key`, `verdict` and, if kept, `graph`; of equal plans of a question the first counts.
    """
    graphs: dict[str, dict[tuple[str, ...], GoldenGraph]] = collections.defaultdict(dict)
    for row in rows:
        if row["verdict"] == KEPT:
            queries = tuple(node["query"] for node in row["graph"].values())
            graphs[row["key"]].setdefault(queries, row["graph"])
    return [GoldenQuestion(each, tuple(graphs[each.key].values())) for each in questions if each.key in graphs]


def curation_report(
    asked: Sequence[Question],
    questions: Sequence[Question],
    rows: Sequence[Mapping[str, Any]],
    golden: Sequence[GoldenQuestion],
) -> dict[str, Any]:
    """Counts what each filter removed and what was kept: the content of `report.json`.

    Args:
      asked: All questions.
      questions: Those that are not held out.
      rows: The trajectories.
      golden: The questions that were kept.
    """
    kept = [row for row in rows if row["verdict"] == KEPT]
    searches = [row["outcome"]["counts"]["searches"] for row in kept]
    verdicts = collections.Counter(row["verdict"] for row in rows)
    return {
        "questions": len(asked),
        "held_out": len(asked) - len(questions),
        "trajectories": len(rows),
        "removed": {name: verdicts[name] for name in FILTERS},
        "kept": len(kept),
        "golden": {
            "questions": len(golden),
            "by_dataset": _counts(each.question.dataset for each in golden),
            "by_graphs": _counts(len(each.graphs) for each in golden),
            "by_sub_questions": _counts(len(graph) for each in golden for graph in each.graphs),
        },
        "searches_of_kept": sum(searches) / len(searches) if searches else None,
    }


def filter_table(report: Mapping[str, Any]) -> Table:
    """What each filter removed and how many were left, in the order of the filters."""
    planned, left = report["questions"] - report["held_out"], report["trajectories"]
    lines: list[tuple[str, str, int]] = [
        ("questions", "", report["questions"]),
        ("asked in an evaluation too", f"{report['held_out']:,}", planned),
        ("trajectories", "", left),
    ]
    for name, removed in filter(lambda each: each[1], report["removed"].items()):
        left -= removed
        lines.append((name, f"{removed:,}", left))
    return Table(
        title="What each filter removed",
        header=("", "removed", "left"),
        sections=(tuple((Cell(name), Cell(removed), Cell(f"{left:,}")) for name, removed, left in lines),),
        note="Filters that removed nothing are left out.",
    )


def golden_table(report: Mapping[str, Any]) -> Table:
    """How many questions were kept, by data set, and the size of their plans."""
    golden = report["golden"]
    sections = [[("questions with a golden plan", golden["questions"]), *golden["by_dataset"].items()]]
    for name, counts in (("plans of a question", "by_graphs"), ("sub-questions of a plan", "by_sub_questions")):
        sections.append([(f"{name}: {count}", number) for count, number in golden[counts].items()])
    lines = tuple(tuple((Cell(name), Cell(f"{number:,}")) for name, number in section) for section in sections)
    searches = report["searches_of_kept"]
    note = "" if searches is None else f"{searches:.2f} searches in a trajectory that was kept."
    return Table(title="Golden plans", header=("", "number"), sections=tuple(filter(None, lines)), note=note)


def _counts(values: Iterable[Any]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(collections.Counter(values).items())}

"""Which trajectories of a teacher are golden, the graphs they leave, and the questions that carry these.

The filters are GlobalRAG's (appendix D.3): a plan that is none, cyclic or out of order, a sub-question that was not
resolved, and an answer that is not the golden one remove a trajectory; so does a question that an evaluation asks too.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lcrag.curation.verdicts import CONTEXT_FULL, KEPT, NO_ANSWER, WRONG
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord
from lcrag.methods.globalrag.golden_trajectory import DISORDERED, NO_PLAN
from lcrag.methods.globalrag.plans import FAULTS, Plan, golden_graph, plan_of
from lcrag.methods.rag_r1.selection import key_of
from lcrag.rewards import normalise, squad_exact_match

UNRESOLVED = "an unresolved sub-question"
BAD_PLANS = {fault: f"a bad plan: {fault.replace('_', ' ')}" for fault in (NO_PLAN, *FAULTS, DISORDERED)}
FILTERS = (CONTEXT_FULL, *BAD_PLANS.values(), UNRESOLVED, NO_ANSWER, WRONG)  # in the order in which they act

Graph = dict[str, dict[str, Any]]


def without_held_out(questions: Iterable[Question], held_out: Iterable[Question]) -> list[Question]:
    """The questions that no held-out one asks in the same words, case and punctuation aside (appendix E.1)."""
    asked = {normalise(each.text) for each in held_out}
    return [each for each in questions if normalise(each.text) not in asked]


def golden_verdict(record: EpisodeRecord, correct: bool) -> str:
    """`KEPT`, or the first of `FILTERS` that removes an episode of `golden_trajectory`."""
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


def graph_of(record: EpisodeRecord) -> Graph:
    """The golden graph of a kept episode: `{Qn: {"query", "answer", "previous", "supports"}}`.

    A query names earlier answers by their placeholders. Where a sub-answer is the golden answer, its aliases are
    answers too.
    """
    extra, golds = record.outcome.extra, record.question.answers
    plan: Plan = plan_of(extra["plan"])
    answers = {key: extra["sub_answers"][key] for key in plan.questions}
    final = squad_exact_match(list(answers.values()), [golds] * len(answers)) == 1
    graph = {
        key: {
            "query": query,
            "answer": list(dict.fromkeys((answers[key], *(golds if is_final else ())))),
            "previous": list(plan.dependencies[key]),
            "supports": extra["supports"][key],
        }
        for (key, query), is_final in zip(plan.questions.items(), final.tolist(), strict=True)
    }
    golden_graph(graph)  # what is written is what the reward reads
    return graph


@dataclasses.dataclass(frozen=True)
class Golden:
    """A question with its golden graphs, no two of which have equal plans."""

    question: Question
    graphs: tuple[Graph, ...]

    def row(self) -> dict[str, Any]:
        """A line that `lcrag.data.jsonl_questions` reads; its id names the data set too."""
        return {
            "id": self.question.coupling,
            "language": self.question.language,
            "question": self.question.text,
            "answers": list(self.question.answers),
            "extra": self.question.extra | {"golden_plans": list(self.graphs)},
        }


def golden_questions(questions: Iterable[Question], rows: Iterable[Mapping[str, Any]]) -> list[Golden]:
    """The questions with a trajectory that was kept, in the order given.

    Args:
      questions: All of them.
      rows: The trajectories, each with its `key`, its `verdict` and, where it is kept, its `graph`; the later ones of a
        question add the plans that the earlier ones did not have.
    """
    graphs: dict[str, dict[tuple[str, ...], Graph]] = collections.defaultdict(dict)
    for row in rows:
        if row["verdict"] == KEPT:
            queries = tuple(node["query"] for node in row["graph"].values())
            graphs[row["key"]].setdefault(queries, row["graph"])
    return [Golden(each, tuple(graphs[key_of(each)].values())) for each in questions if key_of(each) in graphs]


def account(
    asked: Sequence[Question],
    questions: Sequence[Question],
    rows: Sequence[Mapping[str, Any]],
    golden: Sequence[Golden],
) -> dict[str, Any]:
    """What each filter removed and what was kept, in numbers.

    Args:
      asked: All questions.
      questions: Those that are not held out.
      rows: The trajectories.
      golden: The questions that were kept.
    """
    kept = [row for row in rows if row["verdict"] == KEPT]
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
        "searches_of_kept": _mean([row["outcome"]["counts"]["searches"] for row in kept]),
    }


def _counts(values: Iterable[Any]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(collections.Counter(values).items())}


def _mean(values: Collection[float]) -> float | None:
    return sum(values) / len(values) if values else None

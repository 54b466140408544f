"""`lcrag curate demonstrations`: a teacher runs a program as the policy; its correct episodes become rows for SFT."""

import collections as counting
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from lcrag.commands.curate import teaching
from lcrag.composition.teachers import Teacher
from lcrag.curation.playing import KEPT, VERDICTS, right, verdict
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, episode_json
from lcrag.limits import Count, NonNegative
from lcrag.methods.rag_r1.curation import KINDS, segments
from lcrag.retrieval import SearchableCollections
from lcrag.runs import Journal
from lcrag.runs.display import make_console
from lcrag.runs.files import write_json, write_json_lines

EPISODES, ROWS = "episodes.jsonl", "rows.jsonl"
SAME_HASHES = ("questions", "teacher", "tokenizer", "world")
MAY_CHANGE = ("demonstrations.batch", *teaching.MAY_CHANGE)


def demonstrations(
    output_dir: pathlib.Path,
    *,
    questions: Sequence[Question],
    program: teaching.BuildProgram,
    collections: SearchableCollections,
    teacher: Teacher,
    answer: str = "exact_match",
    temperature: NonNegative = 0.0,
    batch: Count = 256,
) -> None:
    """Demonstrates a program; the same call continues after an interruption.

    Writes every episode with its verdict to `episodes.jsonl`, the training rows of the kept ones to `rows.jsonl`, and
    counts to `report.json`.

    Args:
      output_dir: Output folder.
      questions: Questions to demonstrate.
      program: Builds the episode program.
      collections: Collections that the program searches.
      teacher: Writes the policy's turns.
      answer: Name of the answer reward that decides whether an answer is correct.
      temperature: Sampling temperature of the teacher; 0 is greedy.
      batch: Questions that are run concurrently and written together.

    Raises:
      UserError: the folder holds another run, or the teacher cannot play.
    """
    taught = teaching.Teaching(
        program=program, collections=collections, teacher=teacher, temperature=temperature, batch=batch
    )
    with taught.open_run(output_dir, questions, {}, may_change=MAY_CHANGE, same_hashes=SAME_HASHES) as run:
        journal = Journal(run.path / EPISODES)
        done = {row["key"] for row in journal.rows}
        left = [(number, each) for number, each in enumerate(questions) if each.key not in done]
        for records in taught.play(left, attempt=0):
            journal.append(_judged(records, answer))
        rows = [row for episode in journal.rows if episode["verdict"] == KEPT for row in segments(episode)]
        write_json_lines(run.path / ROWS, rows)
        report = _report(journal.rows, rows)
        write_json(run.path / teaching.REPORT, report)
        make_console().print(_table(report))


def _judged(records: Sequence[EpisodeRecord], answer: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of `episodes.jsonl`: key, correctness and verdict of each episode, and the episode."""
    for record, correct in zip(records, right(records, answer), strict=True):
        judgement = {"key": record.question.key, "correct": correct, "verdict": verdict(record, correct)}
        yield judgement | episode_json(record, times=False)


def _report(episodes: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    verdicts = counting.Counter(episode["verdict"] for episode in episodes)
    kinds = counting.Counter(row["kind"] for row in rows)
    rounds = [episode["outcome"]["counts"]["retrieval_rounds"] for episode in episodes if episode["verdict"] == KEPT]
    return {
        "questions": len(episodes),
        "right": sum(episode["correct"] for episode in episodes),
        "verdicts": {name: verdicts[name] for name in VERDICTS},
        "rows": len(rows),
        "kinds": {name: kinds[name] for name in KINDS},
        "retrieval_rounds_of_kept": sum(rounds) / len(rounds) if rounds else None,
    }


def _table(report: Mapping[str, Any]) -> Table:
    table = Table("", "number", title=f"demonstrations of {report['questions']} questions")
    for name, count in report["verdicts"].items():
        table.add_row(name, str(count))
    table.add_section()
    for name, count in report["kinds"].items():
        table.add_row(f"rows: {name.replace('_', ' ')}", str(count))
    return table

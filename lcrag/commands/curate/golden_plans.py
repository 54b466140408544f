"""`lcrag curate golden_plans`: makes golden plans from a teacher's correct trajectories (GlobalRAG, appendix D)."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from lcrag.commands.curate import teaching
from lcrag.composition.teachers import Teacher
from lcrag.curation.playing import KEPT, right
from lcrag.data.files import records_fingerprint
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, episode_json
from lcrag.evaluation import to_markdown, to_rich
from lcrag.limits import Count, NonNegative
from lcrag.methods.globalrag.golden_curation import (
    curation_report,
    filter_table,
    golden_questions,
    golden_table,
    golden_verdict,
    graph_of,
    without_held_out,
)
from lcrag.retrieval import SearchableCollections
from lcrag.runs import Journal
from lcrag.runs.display import make_console
from lcrag.runs.files import write_json, write_json_lines, write_text

TRAJECTORIES, QUESTIONS, PAGE = "trajectories.jsonl", "questions.jsonl", "report.md"
SAME_HASHES = ("questions", "held_out", "teacher", "tokenizer", "world")
MAY_CHANGE = ("golden_plans.batch", "golden_plans.trajectories", *teaching.MAY_CHANGE)


def golden_plans(
    output_dir: pathlib.Path,
    *,
    questions: Sequence[Question],
    program: teaching.BuildProgram,
    collections: SearchableCollections,
    teacher: Teacher,
    held_out: Sequence[Question] = (),
    answer: str = "squad_exact_match",
    trajectories: Count = 1,
    temperature: NonNegative = 0.0,
    batch: Count = 256,
) -> None:
    """Makes golden plans; the same call continues after an interruption.

    Writes every trajectory with its verdict to `trajectories.jsonl`, the questions with kept trajectories and their
    golden graphs to `questions.jsonl`, which `jsonl_questions` reads, and counts to `report.json` and `report.md`.

    Args:
      output_dir: Output folder.
      questions: Questions to plan.
      program: Builds the teacher's program, `golden_trajectory`.
      collections: Collections that the program searches.
      teacher: Writes the policy's turns.
      held_out: Questions of evaluations; questions with the same words are not planned.
      answer: Name of the answer reward that decides whether an answer is correct.
      trajectories: Trajectories per question; the distinct plans of the kept ones are all golden.
      temperature: Sampling temperature of the teacher; 0 is greedy.
      batch: Questions that are run concurrently and written together.

    Raises:
      UserError: the folder holds another run, or the teacher cannot play.
    """
    taught = teaching.Teaching(
        program=program, collections=collections, teacher=teacher, temperature=temperature, batch=batch
    )
    left = without_held_out(questions, held_out)
    hashes = {"held_out": records_fingerprint(held_out)}
    with taught.open_run(output_dir, questions, hashes, may_change=MAY_CHANGE, same_hashes=SAME_HASHES) as run:
        journal = Journal(run.path / TRAJECTORIES)
        done = {(row["key"], row["attempt"]) for row in journal.rows}
        for attempt in range(1, trajectories + 1):
            missing = [(number, each) for number, each in enumerate(left) if (each.key, attempt) not in done]
            for records in taught.play(missing, attempt):
                journal.append(_judged(records, answer, attempt))
        golden = golden_questions(left, journal.rows)
        write_json_lines(run.path / QUESTIONS, (each.row() for each in golden))
        report = curation_report(questions, left, journal.rows, golden)
        write_json(run.path / teaching.REPORT, report)
        tables = (filter_table(report), golden_table(report))
        write_text(run.path / PAGE, "\n".join(["# Golden plans\n", *map(to_markdown, tables)]))
        console = make_console()
        for table in tables:
            console.print(to_rich(table))


def _judged(records: Sequence[EpisodeRecord], answer: str, attempt: int) -> Iterator[dict[str, Any]]:
    """Yields the lines of `trajectories.jsonl`: key, verdict and, if kept, golden graph, and the episode."""
    for record, correct in zip(records, right(records, answer), strict=True):
        verdict = golden_verdict(record, correct)
        graph = {"graph": graph_of(record)} if verdict == KEPT else {}
        yield {
            "key": record.question.key,
            "attempt": attempt,
            "verdict": verdict,
            **graph,
            **episode_json(record, times=False),
        }

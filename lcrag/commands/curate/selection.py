"""`lcrag curate selection`: selects hard but answerable questions by stochastic rollouts (RAG-R1, section 3.2.1)."""

import collections as counting
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from lcrag.commands.curate import teaching
from lcrag.commands.curate.demonstrations import EPISODES
from lcrag.composition.teachers import Teacher
from lcrag.curation.playing import right
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.limits import Count, InnerShare, NonNegative, Seed, Share
from lcrag.methods.rag_r1.curation import (
    RIGHT_AT_FIRST,
    WRONG_AT_FIRST,
    Selected,
    select,
    split,
    unfiltered,
)
from lcrag.retrieval import SearchableCollections
from lcrag.runs import Journal
from lcrag.runs.display import make_console
from lcrag.runs.files import write_json, write_json_lines

ROLLOUTS = "rollouts.jsonl"
TRAIN, VALIDATION, UNFILTERED = "train.jsonl", "validation.jsonl", "unfiltered.jsonl"
SAME_HASHES = ("questions", "teacher", "tokenizer", "demonstrations")
MAY_CHANGE = ("selection.batch", *teaching.MAY_CHANGE)


def selection(
    output_dir: pathlib.Path,
    *,
    demonstrated: str,
    questions: Sequence[Question],
    program: teaching.BuildProgram,
    collections: SearchableCollections,
    teacher: Teacher,
    answer: str = "exact_match",
    rollouts: Count = 10,
    temperature: NonNegative = 1.2,
    easy_share: Share = 0.25,
    validation_share: InnerShare = 0.05,
    seed: Seed = 0,
    batch: Count = 256,
) -> None:
    """Selects questions for reinforcement learning; the same call continues after an interruption.

    Samples each question whose demonstration was wrong until a rollout is correct, at most `rollouts` times. Writes
    every rollout to `rollouts.jsonl`, the selected questions to `train.jsonl` and `validation.jsonl`, and the training
    questions without filtering by rollouts to `unfiltered.jsonl`; `jsonl_questions` reads the last three.

    Args:
      output_dir: Output folder.
      demonstrated: Folder of the demonstrations, which say which questions were answered correctly at first.
      questions: The demonstrated questions; others are left out.
      program: Builds the episode program; RAG-R1 allows it 10 searches here.
      collections: Collections that the program searches.
      teacher: The policy that is sampled.
      answer: Name of the answer reward that decides whether an answer is correct.
      rollouts: Maximum rollouts of a question.
      temperature: Sampling temperature of the rollouts.
      easy_share: Share of the questions correct at first that is kept too.
      validation_share: Share of the selected questions that is kept for validation.
      seed: Seed of the draw of easy questions and of the split.
      batch: Questions sampled concurrently and written together.

    Raises:
      UserError: the folder holds another run, there are no demonstrations, or the teacher cannot play.
    """
    taught = teaching.Teaching(
        program=program, collections=collections, teacher=teacher, temperature=temperature, batch=batch
    )
    first_right = _first_right(pathlib.Path(demonstrated))
    asked = [each for each in questions if each.key in first_right]
    marks = hashlib.sha256(json.dumps(first_right, sort_keys=True).encode()).hexdigest()[:16]
    hashes, console = {"demonstrations": marks}, make_console()
    with taught.open_run(
        output_dir, questions, hashes, seed=seed, may_change=MAY_CHANGE, same_hashes=SAME_HASHES
    ) as run:
        journal = Journal(run.path / ROLLOUTS)
        for attempt in range(1, rollouts + 1):
            left = _still_wrong(asked, first_right, journal.rows, attempt)
            for records in taught.play(left, attempt):
                journal.append(
                    {"key": each.question.key, "attempt": attempt, "correct": correct, "answer": each.outcome.answer}
                    for each, correct in zip(records, right(records, answer), strict=True)
                )
            console.print(f"rollout {attempt}: {len(left)} questions", highlight=False)
        solved = {row["key"]: row["attempt"] for row in journal.rows if row["correct"]}
        sides = _sides(asked, first_right, solved, easy_share, validation_share, seed)
        for name, side in sides.items():
            write_json_lines(run.path / name, (each.row() for each in side))
        report = _report(first_right, solved, sides)
        write_json(run.path / teaching.REPORT, report)
        console.print(_table(report))


def _sides(
    asked: Sequence[Question],
    first_right: Mapping[str, bool],
    solved: Mapping[str, int],
    easy_share: float,
    validation_share: float,
    seed: int,
) -> dict[str, Sequence[Selected]]:
    """Returns the selected questions of each file."""
    selected = select(asked, first_right, solved, easy_share=easy_share, seed=seed)
    train, validation = split(selected, validation_share, seed)
    everything = unfiltered(asked, first_right, solved, validation, easy_share=easy_share, seed=seed)
    return {TRAIN: train, VALIDATION: validation, UNFILTERED: everything}


def _first_right(folder: pathlib.Path) -> dict[str, bool]:
    """Returns whether the demonstration of each question, by its key, was correct."""
    if not (folder / EPISODES).is_file():
        raise UserError(f"{folder} holds no demonstrations: run `lcrag curate demonstrations` into it first")
    return {row["key"]: row["correct"] for row in Journal(folder / EPISODES).rows}


def _still_wrong(
    questions: Sequence[Question], first_right: Mapping[str, bool], rows: Sequence[Mapping[str, Any]], attempt: int
) -> list[tuple[int, Question]]:
    """Returns the questions of an attempt, numbered: never correct so far, and not tried in this attempt yet."""
    solved = {row["key"] for row in rows if row["correct"]}
    tried = {row["key"] for row in rows if row["attempt"] >= attempt}
    return [
        (number, each)
        for number, each in enumerate(questions)
        if not first_right[each.key] and each.key not in solved | tried
    ]


def _report(
    first_right: Mapping[str, bool], solved: Mapping[str, int], sides: Mapping[str, Sequence[Selected]]
) -> dict[str, Any]:
    reasons = counting.Counter(each.because for name in (TRAIN, VALIDATION) for each in sides[name])
    wrong = sum(not correct for correct in first_right.values())
    return {
        "right_at_first": len(first_right) - wrong,
        "wrong_at_first": wrong,
        "never_right": wrong - len(solved),
        "right_in_rollout": dict(sorted(counting.Counter(solved.values()).items())),
        "selected": {reason: reasons[reason] for reason in (WRONG_AT_FIRST, RIGHT_AT_FIRST)},
        "written": {name: len(side) for name, side in sides.items()},
    }


def _table(report: Mapping[str, Any]) -> Table:
    table = Table("", "questions", title="selection for reinforcement learning")
    for name in ("right_at_first", "wrong_at_first", "never_right"):
        table.add_row(name.replace("_", " "), str(report[name]))
    table.add_section()
    for reason, count in report["selected"].items():
        table.add_row(f"selected, {reason}", str(count))
    for name, count in report["written"].items():
        table.add_row(f"in {name}", str(count))
    return table

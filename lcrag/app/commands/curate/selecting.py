"""`lcrag curate selection`: questions that are hard and can be answered, by stochastic rollouts (RAG-R1, 3.2.1)."""

import collections
import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from lcrag.app.commands.curate.demonstrating import EPISODES, REPORT, check_distinct
from lcrag.app.composition.checking import check_counts
from lcrag.app.composition.configuration import operative_config
from lcrag.app.composition.teachers import Plays
from lcrag.app.display import make_console
from lcrag.app.runs import Journal, open_run, provenance
from lcrag.app.runs.atomic import write_json, write_json_lines
from lcrag.curation.verdicts import right
from lcrag.data.fingerprints import records_fingerprint
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program
from lcrag.errors import UserError
from lcrag.methods.rag_r1.selection import (
    RIGHT_AT_FIRST,
    WRONG_AT_FIRST,
    Selected,
    question_row,
    select,
    split,
    unfiltered,
)
from lcrag.retrieval import SearchableCollections

ROLLOUTS = "rollouts.jsonl"
TRAIN, VALIDATION, UNFILTERED = "train.jsonl", "validation.jsonl", "unfiltered.jsonl"
SAME_HASHES = ("questions", "teacher", "tokenizer", "demonstrations")
MAY_CHANGE = ("selection.batch", "endpoint_teacher.url", "endpoint_teacher.concurrency", "remote_collections.url")


def selection(
    output_dir: pathlib.Path,
    *,
    demonstrated: str,
    questions: Sequence[Question],
    program: Callable[[Question, Sequence[str]], Program],
    collections: SearchableCollections,
    teacher: Plays,
    answer: str = "exact_match",
    rollouts: int = 10,
    temperature: float = 1.2,
    easy_share: float = 0.25,
    validation_share: float = 0.05,
    seed: int = 0,
    batch: int = 256,
) -> None:
    """Selects questions for reinforcement learning; the same call continues after an interruption.

    A question whose demonstration was wrong is sampled until a rollout is right, at most `rollouts` times. Every
    rollout is written into `rollouts.jsonl`; the selected questions into `train.jsonl` and `validation.jsonl`, and what
    training would have without the rollouts into `unfiltered.jsonl`: files that `jsonl_questions` reads.

    Args:
      output_dir: The folder.
      demonstrated: Folder of the demonstrations, which say what was right at first.
      questions: Those that were demonstrated; those that were not are left out.
      program: Builds the episode program; RAG-R1 allows it 10 searches here.
      collections: What it searches.
      teacher: Who is sampled.
      answer: Name of the answer reward that says whether an answer is right.
      rollouts: Of a question at most.
      temperature: Of the rollouts.
      easy_share: Share of the questions right at first that is kept too.
      validation_share: Share of the selected questions that is kept for validation.
      seed: Of the easy questions' draw and of the split.
      batch: Questions sampled side by side, and written at once.

    Raises:
      UserError: the folder holds something else, there are no demonstrations, or the teacher cannot play.
    """
    check_counts("selection", rollouts=rollouts, batch=batch)
    check_distinct(questions)
    first_right = read_first(pathlib.Path(demonstrated))
    asked = [each for each in questions if each.key in first_right]
    hashes = {"questions": records_fingerprint(questions), "demonstrations": marks_fingerprint(first_right)}
    hashes |= {**collections.content_hashes(), **teacher.hashes}
    next(iter(program(questions[0], collections.languages)))  # rejects impossible settings before the folder is claimed
    config, about = operative_config(), provenance(seed=seed, hashes=hashes)
    console = make_console()
    with open_run(output_dir, config=config, about=about, may_change=MAY_CHANGE, same_hashes=SAME_HASHES) as run:
        journal = Journal(run.path / ROLLOUTS)
        for attempt in range(1, rollouts + 1):
            left = still_wrong(asked, first_right, journal.rows, attempt)
            for start in range(0, len(left), batch):
                cast = [(each, program(each, collections.languages), n) for n, each in left[start : start + batch]]
                records = teacher.play(cast, collections.search, temperature=temperature, attempt=attempt)
                marked = zip(records, right(records, answer), strict=True)
                journal.append(rollout_row(record, attempt, correct) for record, correct in marked)
            console.print(f"rollout {attempt}: {len(left)} questions", highlight=False)
        solved = {row["key"]: row["attempt"] for row in journal.rows if row["correct"]}
        selected = select(asked, first_right, solved, easy_share=easy_share, seed=seed)
        train, validation = split(selected, validation_share, seed)
        everything = unfiltered(asked, first_right, solved, validation, easy_share=easy_share, seed=seed)
        sides = {TRAIN: train, VALIDATION: validation, UNFILTERED: everything}
        for name, side in sides.items():
            write_json_lines(run.path / name, map(question_row, side))
        report = account(first_right, solved, sides)
        write_json(run.path / REPORT, report)
        console.print(_table(report))


def read_first(folder: pathlib.Path) -> dict[str, bool]:
    """Whether the demonstration of each question was right.

    Raises:
      UserError: the folder holds no demonstrations.
    """
    if not (folder / EPISODES).is_file():
        raise UserError(f"{folder} holds no demonstrations: run `lcrag curate demonstrations` into it first")
    return {row["key"]: row["correct"] for row in Journal(folder / EPISODES).rows}


def marks_fingerprint(marks: Mapping[str, bool]) -> str:
    """Sixteen hexadecimal digits that name which questions were right."""
    return hashlib.sha256(json.dumps(marks, sort_keys=True).encode()).hexdigest()[:16]


def still_wrong(
    questions: Sequence[Question],
    first_right: Mapping[str, bool],
    rows: Sequence[Mapping[str, Any]],
    attempt: int,
) -> list[tuple[int, Question]]:
    """The questions, with their places, that an attempt is for: never right so far, and not tried in it yet."""
    solved = {row["key"] for row in rows if row["correct"]}
    tried = {row["key"] for row in rows if row["attempt"] >= attempt}
    return [
        (number, each)
        for number, each in enumerate(questions)
        if not first_right[each.key] and each.key not in solved | tried
    ]


def rollout_row(record: EpisodeRecord, attempt: int, correct: bool) -> dict[str, Any]:
    """A line of `rollouts.jsonl`."""
    key = record.question.key
    return {"key": key, "attempt": attempt, "correct": correct, "answer": record.outcome.answer}


def account(
    first_right: Mapping[str, bool], solved: Mapping[str, int], sides: Mapping[str, Sequence[Selected]]
) -> dict[str, Any]:
    """What was selected and why, in numbers."""
    reasons = collections.Counter(each.because for name in (TRAIN, VALIDATION) for each in sides[name])
    wrong = sum(not correct for correct in first_right.values())
    return {
        "right_at_first": len(first_right) - wrong,
        "wrong_at_first": wrong,
        "never_right": wrong - len(solved),
        "right_in_rollout": dict(sorted(collections.Counter(solved.values()).items())),
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

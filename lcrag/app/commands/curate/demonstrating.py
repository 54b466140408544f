"""`lcrag curate demonstrations`: a teacher plays a program, and what it does right becomes rows for `lcrag sft`."""

import collections
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from lcrag.app.composition.checking import check_counts
from lcrag.app.composition.configuration import operative_config
from lcrag.app.composition.teachers import Plays
from lcrag.app.display import make_console
from lcrag.app.runs import Journal, open_run, provenance
from lcrag.app.runs.atomic import write_json, write_json_lines
from lcrag.curation.verdicts import KEPT, VERDICTS, right, verdict
from lcrag.data.fingerprints import records_fingerprint
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program, episode_json
from lcrag.errors import UserError
from lcrag.methods.rag_r1.segmentation import KINDS, segments
from lcrag.retrieval import SearchableCollections

EPISODES, ROWS, REPORT = "episodes.jsonl", "rows.jsonl", "report.json"
SAME_HASHES = ("questions", "teacher", "tokenizer", "world")
MAY_CHANGE = ("demonstrations.batch", "endpoint_teacher.url", "endpoint_teacher.concurrency", "remote_collections.url")


def demonstrations(
    output_dir: pathlib.Path,
    *,
    questions: Sequence[Question],
    program: Callable[[Question, Sequence[str]], Program],
    collections: SearchableCollections,
    teacher: Plays,
    answer: str = "exact_match",
    temperature: float = 0.0,
    batch: int = 256,
) -> None:
    """Demonstrates a program; the same call continues after an interruption.

    Every episode is written with the verdict on it into `episodes.jsonl`, the training rows of those that are kept into
    `rows.jsonl`, and what became of all into `report.json`.

    Args:
      output_dir: The folder.
      questions: What is demonstrated.
      program: Builds the episode program from (question, languages of the collection set).
      collections: What it searches.
      teacher: Who plays it.
      answer: Name of the answer reward that says whether an answer is right.
      temperature: Of the teacher; 0: it does not sample.
      batch: Questions played side by side, and written at once.

    Raises:
      UserError: the folder holds something else, or the teacher cannot play.
    """
    check_counts("demonstrations", batch=batch)
    check_distinct(questions)
    hashes = {"questions": records_fingerprint(questions), **collections.content_hashes(), **teacher.hashes}
    about, console = provenance(seed=0, hashes=hashes), make_console()
    next(iter(program(questions[0], collections.languages)))  # rejects impossible settings before the folder is claimed
    config = operative_config()
    with open_run(output_dir, config=config, about=about, may_change=MAY_CHANGE, same_hashes=SAME_HASHES) as run:
        journal = Journal(run.path / EPISODES)
        done = {row["key"] for row in journal.rows}
        left = [(number, each) for number, each in enumerate(questions) if each.key not in done]
        for start in range(0, len(left), batch):
            cast = [
                (each, program(each, collections.languages), number) for number, each in left[start : start + batch]
            ]
            records = teacher.play(cast, collections.search, temperature=temperature, attempt=0)
            journal.append(judged(records, answer))
            console.print(f"{len(journal.rows)} of {len(questions)} questions", highlight=False)
        rows = [row for episode in journal.rows if episode["verdict"] == KEPT for row in segments(episode)]
        write_json_lines(run.path / ROWS, rows)
        report = account(journal.rows, rows)
        write_json(run.path / REPORT, report)
        console.print(_table(report))


def check_distinct(questions: Sequence[Question]) -> None:
    """Refuses no questions, and one that is there twice.

    Raises:
      UserError: there are such questions.
    """
    if not questions:
        raise UserError("there is no question to curate: choose another split or other languages")
    key, count = collections.Counter(each.key for each in questions).most_common(1)[0]
    if count > 1:
        raise UserError(f"the question {key} is there {count} times: name each data set once")


def judged(records: Sequence[EpisodeRecord], answer: str) -> Iterator[dict[str, Any]]:
    """The episodes as lines, each with its key, whether it is right, and the verdict."""
    for record, correct in zip(records, right(records, answer), strict=True):
        judgement = {"key": record.question.key, "correct": correct, "verdict": verdict(record, correct)}
        yield judgement | episode_json(record)


def account(episodes: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was kept and why the rest was not, in numbers."""
    verdicts = collections.Counter(episode["verdict"] for episode in episodes)
    kinds = collections.Counter(row["kind"] for row in rows)
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

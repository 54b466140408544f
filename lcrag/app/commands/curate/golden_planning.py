"""`lcrag curate golden_plans`: a teacher plans, resolves and answers; what is right becomes golden (GlobalRAG)."""

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.app.commands.curate.demonstrating import REPORT, check_distinct
from lcrag.app.composition.checking import check_counts
from lcrag.app.composition.configuration import operative_config
from lcrag.app.composition.teachers import Plays
from lcrag.app.display import make_console
from lcrag.app.runs import Journal, open_run, provenance
from lcrag.app.runs.atomic import write_json, write_json_lines, write_text
from lcrag.curation.verdicts import KEPT, right
from lcrag.data.fingerprints import records_fingerprint
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program, episode_json
from lcrag.evaluation import Table, to_markdown, to_rich
from lcrag.evaluation.table import Cell
from lcrag.methods.globalrag.golden_plans import account, golden_questions, golden_verdict, graph_of, without_held_out
from lcrag.retrieval import SearchableCollections

TRAJECTORIES, QUESTIONS, PAGE = "trajectories.jsonl", "questions.jsonl", "report.md"
SAME_HASHES = ("questions", "held_out", "teacher", "tokenizer", "world")
MAY_CHANGE = (
    *("golden_plans.batch", "golden_plans.trajectories"),
    *("endpoint_teacher.url", "endpoint_teacher.concurrency", "remote_collections.url"),
)


def golden_plans(
    output_dir: pathlib.Path,
    *,
    questions: Sequence[Question],
    program: Callable[[Question, Sequence[str]], Program],
    collections: SearchableCollections,
    teacher: Plays,
    held_out: Sequence[Question] = (),
    answer: str = "squad_exact_match",
    trajectories: int = 1,
    temperature: float = 0.0,
    batch: int = 256,
) -> None:
    """Makes golden plans; the same call continues after an interruption.

    Every trajectory is written with the verdict on it into `trajectories.jsonl`; the questions of those that are kept,
    with their golden graphs, into `questions.jsonl`, which `jsonl_questions` reads; what each filter removed into
    `report.json` and `report.md`.

    Args:
      output_dir: The folder.
      questions: What is planned.
      program: Builds the teacher's program: `golden_trajectory`.
      collections: What it searches.
      teacher: Who plays it.
      held_out: Questions of evaluations; none of the same words is planned.
      answer: Name of the answer reward that says whether an answer is right.
      trajectories: Of a question; the different plans of those that are kept are all golden.
      temperature: Of the teacher; 0: it does not sample.
      batch: Questions played side by side, and written at once.

    Raises:
      UserError: the folder holds something else, or the teacher cannot play.
    """
    check_counts("golden_plans", trajectories=trajectories, batch=batch)
    check_distinct(questions)
    left = without_held_out(questions, held_out)
    hashes = {"questions": records_fingerprint(questions), "held_out": records_fingerprint(held_out)}
    hashes |= {**collections.content_hashes(), **teacher.hashes}
    about, console = provenance(seed=0, hashes=hashes), make_console()
    next(iter(program(questions[0], collections.languages)))  # rejects impossible settings before the folder is claimed
    config = operative_config()
    with open_run(output_dir, config=config, about=about, may_change=MAY_CHANGE, same_hashes=SAME_HASHES) as run:
        journal = Journal(run.path / TRAJECTORIES)
        done = {(row["key"], row["attempt"]) for row in journal.rows}
        for attempt in range(1, trajectories + 1):
            missing = [(number, each) for number, each in enumerate(left) if (each.key, attempt) not in done]
            for start in range(0, len(missing), batch):
                part = missing[start : start + batch]
                cast = [(each, program(each, collections.languages), number) for number, each in part]
                records = teacher.play(cast, collections.search, temperature=temperature, attempt=attempt)
                journal.append(judged(records, answer, attempt))
                console.print(f"trajectory {attempt}: {start + len(part)} of {len(missing)} questions", highlight=False)
        golden = golden_questions(left, journal.rows)
        write_json_lines(run.path / QUESTIONS, (each.row() for each in golden))
        report = account(questions, left, journal.rows, golden)
        write_json(run.path / REPORT, report)
        tables = (filter_table(report), golden_table(report))
        write_text(run.path / PAGE, "\n".join(["# Golden plans\n", *map(to_markdown, tables)]))
        for table in tables:
            console.print(to_rich(table))


def judged(records: Sequence[EpisodeRecord], answer: str, attempt: int) -> Iterator[dict[str, Any]]:
    """The trajectories as lines, each with its key, the verdict on it and, where it is kept, its golden graph."""
    for record, correct in zip(records, right(records, answer), strict=True):
        verdict = golden_verdict(record, correct)
        graph = {"graph": graph_of(record)} if verdict == KEPT else {}
        yield {"key": record.question.key, "attempt": attempt, "verdict": verdict, **graph, **episode_json(record)}


def filter_table(report: Mapping[str, Any]) -> Table:
    """What each filter removed, in the order in which they act, and what was left behind it."""
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
    """How many questions were kept, by data set, and how large their plans are."""
    golden = report["golden"]
    sections = [[("questions with a golden plan", golden["questions"]), *golden["by_dataset"].items()]]
    for name, counts in (("plans of a question", "by_graphs"), ("sub-questions of a plan", "by_sub_questions")):
        sections.append([(f"{name}: {count}", number) for count, number in golden[counts].items()])
    lines = tuple(tuple((Cell(name), Cell(f"{number:,}")) for name, number in section) for section in sections)
    searches = report["searches_of_kept"]
    note = "" if searches is None else f"{searches:.2f} searches in a trajectory that was kept."
    return Table(title="Golden plans", header=("", "number"), sections=tuple(filter(None, lines)), note=note)

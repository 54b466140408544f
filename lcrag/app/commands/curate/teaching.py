"""What the curations with a teacher share: checks before the output folder is claimed, and batches of episodes."""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from lcrag.app.composition.teachers import Teacher
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program
from lcrag.errors import UserError
from lcrag.retrieval import SearchableCollections

# (question, languages of the collection set) -> its episode program
BuildProgram: TypeAlias = Callable[[Question, Sequence[str]], Program]

REPORT = "report.json"
MAY_CHANGE = ("endpoint_teacher.url", "endpoint_teacher.concurrency", "remote_collections.url")


def check_distinct(questions: Sequence[Question]) -> None:
    """Checks that there are questions, and none of them twice.

    Raises:
      UserError: there are none, or one is repeated.
    """
    if not questions:
        raise UserError("there is no question to curate: choose another split or other languages")
    key, count = collections.Counter(each.key for each in questions).most_common(1)[0]
    if count > 1:
        raise UserError(f"the question {key} is there {count} times: name each data set once")


def check_program(program: BuildProgram, question: Question, collections: SearchableCollections) -> None:
    """Starts an episode, so that a program rejects impossible settings before the output folder is claimed."""
    next(iter(program(question, collections.languages)))


def play_batches(
    numbered: Sequence[tuple[int, Question]],
    program: BuildProgram,
    collections: SearchableCollections,
    teacher: Teacher,
    *,
    batch: int,
    temperature: float,
    attempt: int,
) -> Iterator[list[EpisodeRecord]]:
    """Plays a program on questions with the numbers of their random streams; yields the episodes of each batch."""
    for start in range(0, len(numbered), batch):
        part = numbered[start : start + batch]
        jobs = [(question, program(question, collections.languages), number) for number, question in part]
        yield teacher.play(jobs, collections.search, temperature=temperature, attempt=attempt)

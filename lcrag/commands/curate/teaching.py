"""Common code of the curations with a teacher: checks before the output folder is opened, and batches of episodes."""

import collections
import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from lcrag.composition.configuration import operative_config
from lcrag.composition.teachers import Teacher
from lcrag.data.files import records_fingerprint
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program
from lcrag.errors import UserError
from lcrag.retrieval import SearchableCollections
from lcrag.runs import open_run, provenance
from lcrag.runs.display import ProgressDisplay, progress_display
from lcrag.runs.folder import RunFolder

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teaching:
    """Runs a program with a teacher as the policy, on many questions at a time.

    Attributes:
      program: Builds a question's program.
      collections: The collections that it searches.
      teacher: Writes the policy's turns.
      temperature: Sampling temperature of the teacher; 0 is greedy.
      batch: Questions that are run concurrently.
    """

    program: BuildProgram
    collections: SearchableCollections
    teacher: Teacher
    temperature: float
    batch: int

    @contextlib.contextmanager
    def open_run(
        self,
        folder: pathlib.Path,
        questions: Sequence[Question],
        hashes: Mapping[str, str],
        *,
        seed: int = 0,
        may_change: Collection[str],
        same_hashes: Collection[str],
    ) -> Iterator[RunFolder]:
        """Opens the output folder for some questions; `hashes` are those of further data that the run depends on.

        Raises:
          UserError: there are no questions or one twice, the program rejects its settings, or as `open_run`.
        """
        check_distinct(questions)
        found = {"questions": records_fingerprint(questions), **hashes}
        about = provenance(seed=seed, hashes={**found, **self.collections.content_hashes(), **self.teacher.hashes})
        next(iter(self.program(questions[0], self.collections.languages)))  # rejects impossible settings
        config = operative_config()
        with open_run(folder, config=config, about=about, may_change=may_change, same_hashes=same_hashes) as run:
            yield run

    def play(self, numbered: Sequence[tuple[int, Question]], attempt: int) -> Iterator[list[EpisodeRecord]]:
        """Runs questions with the numbers of their random streams; yields the episodes of each batch.

        Shows the progress, with the average rate of tokens.
        """
        tokens, started = 0, time.monotonic()
        options: dict[str, Any] = {"temperature": self.temperature, "attempt": attempt}
        with progress_display(f"attempt {attempt or 1}", len(numbered), unit="question", transient=True) as display:
            for start in range(0, len(numbered), self.batch):
                part = numbered[start : start + self.batch]
                jobs = [(each, self.program(each, self.collections.languages), number) for number, each in part]
                show = functools.partial(_show, display, start)
                records = self.teacher.play(jobs, self.collections.search, progress=show, **options)
                tokens += sum(int(record.by_policy.sum()) for record in records)
                rate = tokens / (time.monotonic() - started)
                display.update(start + len(part), note=f"{rate:,.0f} tokens/s")
                yield records


def _show(display: ProgressDisplay, before: int, finished: int, total: int) -> None:
    display.update(before + finished)

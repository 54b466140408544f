"""A player of LcRL's program that knows the format and reads, but decides at random: the cold start imitates it."""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from lcrag.atlas.oracle import Oracle, Reading, searches_in
from lcrag.atlas.wording import UNKNOWN, UNREAD, query_text, sentence_text
from lcrag.data.questions import Question

# Searches that miss a tag or both.
MALFORMED = (" {query}", "<search> {query}", " {query}</search>", "<answer> {query}</search>")


@dataclasses.dataclass(frozen=True)
class RandomSearcher:
    """Knows the format and reads passages, but searches at random and trusts passages at random.

    It plays questions over one fact. After every search it notes one or two of the sentences that it has read about the
    fact, as written, or that it has read none; then it searches again or answers with the value of its last note. What
    it leaves to reinforcement learning is when to search again, which passage to trust, and when to stop. Its choices
    are a function of the dialogue.

    Attributes:
      budget: Maximum number of searches; each number from 1 is equally likely.
      slips: Share of the dialogues whose first text is a malformed action, after which it tries again.
      most_notes: Maximum number of sentences noted after a search; each number from 1 is equally likely.
      reader: Reads and translates what the passages say.
    """

    budget: int
    slips: float = 0.0
    most_notes: int = 1
    reader: Oracle = Oracle()

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; see `Oracle.next_text`."""
        generator = np.random.default_rng(zlib.crc32("\0".join(text for _, text in turns).encode()))
        query = query_text(question.language, question.extra["kind"], question.extra["entity"])
        searches = searches_in(turns)
        if searches == 0 and all(by == "environment" for by, _ in turns) and generator.random() < self.slips:
            return MALFORMED[int(generator.integers(len(MALFORMED)))].format(query=query)
        search = f"<search> {query}</search>"
        if searches == 0:
            return search
        readings = self.reader.readings(text for by, text in turns if by == "environment")
        notes, value = self.notes(generator, readings, question)
        left = self.budget - searches
        again = generator.random() < left / (left + 1)
        return notes + (search if again else f"<answer> {value or UNKNOWN[question.language]}</answer>")

    def notes(
        self, generator: np.random.Generator, readings: Sequence[Reading], question: Question
    ) -> tuple[str, str | None]:
        """Returns lines of some of the sentences read about the question's fact, and the last one's value in the
        question's language; without any, a line with a question mark for the value, and None.
        """
        relation, subject = question.extra["kind"], question.extra["subject"][1]
        about = list({row.text: row for row in readings if (row.relation, row.subject) == (relation, subject)}.values())
        if not about:
            return f" {question.extra['entity']}: {sentence_text(question.language, relation, UNREAD)}\n", None
        count = int(generator.integers(1, min(self.most_notes, len(about)) + 1))
        trusted = [about[place] for place in generator.permutation(len(about))[:count]]
        notes = "".join(f" {row.text}\n" for row in trusted)
        return notes, self.reader.in_language(trusted[-1], question.language)

"""The atlas's oracle for R-Search's program: it searches, copies the passage it relies on as evidence, and answers."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from lcrag.atlas.oracle import Oracle, SearchState
from lcrag.data.batches import in_share
from lcrag.data.questions import Question
from lcrag.limits import Amount, Seed, Share

_OBSERVATION = re.compile(r"<observation>(.*?)</observation>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class EvidenceOracle:
    """Plays `r_search` in its atlas wording, as `Oracle` plays LcRL's program.

    Attributes:
      budget: Searches allowed; then it answers as well as it can.
      evidence: Whether it gives evidence after a search.
      hasty: Share of the questions that it answers after one search, whatever that found.
      seed: Selects these questions.
    """

    budget: Amount = 3
    evidence: bool = True
    hasty: Share = 0.0
    seed: Seed = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text, as `Oracle.next_text`."""
        budget = min(self.budget, 1) if in_share(question.key, self.hasty, self.seed) else self.budget
        text = Oracle(budget=budget).next_text(question, [(by, _as_information(text)) for by, text in turns])
        if not self.evidence or not text.startswith("<answer>"):
            return text
        seen = [line for by, shown in turns if by == "environment" for line in _lines(shown)]
        if not seen:
            return text
        lines = "".join(f" {line}\n" for line in relied_on(question, seen, text))
        return f"<original_evidence>\n{lines}</original_evidence>{text}"


def relied_on(question: Question, lines: Sequence[str], answer: str) -> list[str]:
    """Returns the passages that an answer relies on.

    For one fact, that is the first passage from which alone the oracle gives this answer; for several, all that bear on
    it.
    """
    alone = Oracle(budget=0)
    bearing = [line for line in dict.fromkeys(lines) if _bears_on(alone, question, line)]
    if "+" in question.extra["kind"]:
        return bearing or [lines[0]]
    for line in bearing or lines:
        if alone.next_text(question, [("environment", _block(line))]) == answer:
            return [line]
    return [lines[0]]


def _as_information(text: str) -> str:
    """Replaces R-Search's tags around passages with LcRL's."""
    return text.replace("<observation>", "<information>").replace("</observation>", "</information>")


def _lines(text: str) -> Iterator[str]:
    """Yields the passages of an observation."""
    for block in _OBSERVATION.findall(text):
        yield from filter(None, map(str.strip, block.splitlines()))


def _bears_on(oracle: Oracle, question: Question, line: str) -> bool:
    """Returns whether a passage states a fact on the way to the answer; after the first hop, about any subject."""
    known = SearchState(question, oracle, oracle.readings([_block(line)]))
    first, *later = known.relations
    named = {wanted.subject for wanted in known.given}
    return any(
        reading.relation in later or (reading.relation == first and reading.subject in named)
        for reading in known.readings
    )


def _block(line: str) -> str:
    return f"<information>\n {line}\n</information>"

"""The rule-based teacher of R-Search's program: it searches, copies what it relies on as evidence, and answers.

It may be told to be hasty: to answer now and then after its first search, whatever that has shown.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from lcrag.atlas.oracle import Oracle
from lcrag.data.questions import Question
from lcrag.data.seeded_order import in_share

_OBSERVATION = re.compile(r"<observation>(.*?)</observation>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class EvidenceOracle:
    """Plays an episode of `r_search` in its atlas wording, one text at a time, as `Oracle` plays LcRL's.

    Attributes:
      budget: Searches it may make; then it answers as well as it can.
      evidence: Whether it gives evidence before an answer that was searched for.
      hasty: Share of the questions that it answers after one search, as well as it can.
      seed: Of which questions these are.
    """

    budget: int = 3
    evidence: bool = True
    hasty: float = 0.0
    seed: int = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """What the policy should write next.

        Args:
          question: An atlas question.
          turns: (by, text) of the turns so far, the opening prompt included or not; by is "policy" or "environment".
        """
        budget = min(self.budget, 1) if self._hurries(question) else self.budget
        text = Oracle(budget=budget).next_text(question, [(by, _as_information(text)) for by, text in turns])
        if not self.evidence or not text.startswith("<answer>"):
            return text
        seen = [line for by, shown in turns if by == "environment" for line in _lines(shown)]
        if not seen:
            return text
        lines = "".join(f" {line}\n" for line in relied_on(question, seen, text))
        return f"<original_evidence>\n{lines}</original_evidence>{text}"

    def _hurries(self, question: Question) -> bool:
        return in_share(question.key, self.hasty, self.seed)


def relied_on(question: Question, lines: Sequence[str], answer: str) -> list[str]:
    """Of one hop, the first passage from which alone the oracle would answer the same; of more, all on the way."""
    alone = Oracle(budget=0)
    bearing = [line for line in dict.fromkeys(lines) if _bears_on(alone, question, line)]
    if "+" in question.extra["kind"]:
        return bearing or [lines[0]]
    for line in bearing or lines:
        if alone.next_text(question, [("environment", _block(line))]) == answer:
            return [line]
    return [lines[0]]


def _as_information(text: str) -> str:
    """What R-Search's environment shows, in the tags of LcRL's."""
    return text.replace("<observation>", "<information>").replace("</observation>", "</information>")


def _lines(text: str) -> Iterator[str]:
    """The passages of an observation."""
    for block in _OBSERVATION.findall(text):
        yield from filter(None, map(str.strip, block.splitlines()))


def _bears_on(oracle: Oracle, question: Question, line: str) -> bool:
    """Whether a passage can be read as a fact on the way to the answer; beyond the first hop, about any subject."""
    first, *later = question.extra["kind"].split("+")
    subject = question.extra["subject"][1]
    return any(
        reading.relation in later or (reading.relation == first and reading.subject == subject)
        for reading in oracle.readings([_block(line)])
    )


def _block(line: str) -> str:
    return f"<information>\n {line}\n</information>"

"""R-Search on the atlas: a player that stops and chooses its evidence at random, and a reader that follows rules."""

import dataclasses
import zlib
from collections.abc import Sequence

import gin
import numpy as np

from lcrag.atlas.oracle import Oracle, SearchState, searches_in
from lcrag.atlas.wording import UNKNOWN, query_text
from lcrag.data.questions import Question
from lcrag.errors import UserError


@gin.register
@dataclasses.dataclass(frozen=True)
class RandomReasoner:
    """Plays `r_search`, or `search_r1`, in the atlas wording: it follows chains of facts, but stops at random.

    After every search it notes the facts on the way to the answer that the search has shown, or, without any, the fact
    that it wants, with "?" for a value that it has not read. Then it searches for the first fact that it has not read
    (for the last one again if it has read all), or answers with what it has; each number of searches from 1 to the
    budget is equally likely. As evidence it gives a random part of the sentences that it has read about these facts.
    When to go on, and which evidence an answer needs, is left to reinforcement learning. Its choices are a function of
    the dialogue.

    Attributes:
      budget: Maximum number of searches.
      evidence: Whether it gives evidence.
    """

    budget: int = 3
    evidence: bool = True

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; see `lcrag.atlas.oracle.Oracle.next_text`."""
        generator = np.random.default_rng(zlib.crc32("\0".join(text for _, text in turns).encode()))
        reader, searches = Oracle(), searches_in(turns)
        seen = [_as_information(text) for by, text in turns if by == "environment"]
        state = SearchState(question, reader, reader.readings(seen))
        path = state.path({}, guess=False, asked=())
        wanted = next((each for each in path if state.value(each) is None), path[-1])
        search = f"<search> {query_text(question.language, wanted.relation, wanted.name)}</search>"
        if searches == 0:
            return search
        fallback = [state.note(wanted)]
        notes = "".join(f" {line}\n" for line in state.notes(seen[-1:]) or fallback)
        left = self.budget - searches
        if generator.random() < left / (left + 1):
            return notes + search
        chosen = self._evidence(state.notes(seen) or fallback, generator) if self.evidence else ""
        read = [value for each in path if (value := state.value(each))]
        several = state.complete or len(state.given) > 1
        value = state.answer() if several else (read or [UNKNOWN[question.language]])[-1]
        return f"{notes}{chosen}<answer> {value}</answer>"

    @staticmethod
    def _evidence(lines: Sequence[str], generator: np.random.Generator) -> str:
        """Returns some of the lines in their order, at least one, each number of them equally likely, in their tags."""
        count = int(generator.integers(1, len(lines) + 1))
        chosen = sorted(generator.permutation(len(lines))[:count])
        return "<original_evidence>\n" + "".join(f" {lines[place]}\n" for place in chosen) + "</original_evidence>"


@gin.register
class RuleReader:
    """Answers the atlas's questions from evidence by rules: a reader of another kind than the policies.

    It knows words and names in all languages, but no facts. It answers what follows from the sentences, and needs every
    fact of a chain, a comparison or a conjunction.

    Args:
      questions: The questions it may be asked.
    """

    def __init__(self, questions: Sequence[Question]):
        self._questions = {question.text: question for question in questions}

    def __call__(self, questions: Sequence[str], evidences: Sequence[str]) -> list[str]:
        """Returns the answers, in order; "" if the evidence gives none.

        Raises:
          UserError: a question is not one of those it may be asked.
        """
        if unknown := [text for text in questions if text not in self._questions]:
            raise UserError(
                f"RuleReader does not know the question {unknown[0]!r}: bind the training set as its questions"
            )
        pairs = zip(questions, evidences, strict=True)
        return [self._answer(self._questions[text], evidence) for text, evidence in pairs]

    @staticmethod
    def _answer(question: Question, evidence: str) -> str:
        reader = Oracle()
        lines = "".join(f" {line.strip()}\n" for line in evidence.splitlines())
        state = SearchState(question, reader, reader.readings([f"<information>\n{lines}</information>"]))
        return state.answer() if state.complete else ""


def _as_information(text: str) -> str:
    """Replaces R-Search's tags around passages with LcRL's."""
    return text.replace("<observation>", "<information>").replace("</observation>", "</information>")

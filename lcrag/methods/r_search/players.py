"""R-Search on the atlas: a player that stops and chooses its evidence at random, and a reader that follows rules."""

import dataclasses
import zlib
from collections.abc import Sequence

import gin
import numpy as np

from lcrag.atlas.facts import query_text
from lcrag.atlas.oracle import SearchState, read_texts, searches_in
from lcrag.data.questions import Question
from lcrag.episodes.programs import UNKNOWN
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
    """

    budget: int = 3  # maximum number of searches
    evidence: bool = True  # whether it gives evidence

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; see `lcrag.atlas.oracle.Oracle.next_text`."""
        generator = np.random.default_rng(zlib.crc32("\0".join(text for _, text in turns).encode()))
        searches = searches_in(turns)
        # `read_texts` knows LcRL's tags around passages.
        seen = [
            text.replace("<observation>", "<information>").replace("</observation>", "</information>")
            for by, text in turns
            if by == "environment"
        ]
        state = SearchState(question, read_texts(seen))
        path = state.path({}, guess=False, asked=())
        wanted = next((fact for fact in path if state.value(fact) is None), path[-1])
        search = f"<search> {query_text(question.language, wanted.relation, wanted.name)}</search>"
        if searches == 0:
            return search
        fallback = [state.note(wanted)]
        notes = "".join(f" {line}\n" for line in state.notes(seen[-1:]) or fallback)
        left = self.budget - searches
        if generator.random() < left / (left + 1):
            return notes + search
        evidence = ""
        if self.evidence:  # some of the sentences in their order, each number of them equally likely
            lines = state.notes(seen) or fallback
            count = int(generator.integers(1, len(lines) + 1))
            chosen = "".join(f" {lines[place]}\n" for place in sorted(generator.permutation(len(lines))[:count]))
            evidence = f"<original_evidence>\n{chosen}</original_evidence>"
        read = [value for fact in path if (value := state.value(fact))]
        several = state.complete or len(state.given) > 1
        value = state.answer() if several else (read or [UNKNOWN[question.language]])[-1]
        return f"{notes}{evidence}<answer> {value}</answer>"


@gin.register
class RuleReader:
    """Answers the atlas's questions from evidence by rules: a reader of another kind than the policies.

    It knows words and names in all languages, but no facts. It answers what follows from the sentences, and needs every
    fact of a chain, a comparison or a conjunction.
    """

    def __init__(self, questions: Sequence[Question]):
        self._questions = {question.text: question for question in questions}

    def __call__(self, questions: Sequence[str], evidences: Sequence[str]) -> list[str]:
        """Returns the answers, in order; "" if the evidence gives none."""
        if unknown := [text for text in questions if text not in self._questions]:
            raise UserError(
                f"RuleReader does not know the question {unknown[0]!r}: bind the training set as its questions"
            )
        answers = []
        for text, evidence in zip(questions, evidences, strict=True):
            lines = "".join(f" {line.strip()}\n" for line in evidence.splitlines())
            state = SearchState(self._questions[text], read_texts([f"<information>\n{lines}</information>"]))
            answers.append(state.answer() if state.complete else "")
        return answers

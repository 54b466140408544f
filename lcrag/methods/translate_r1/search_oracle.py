"""The rule-based teacher of translation and search: what it cannot read, it has translated, and then searches."""

import dataclasses
from collections.abc import Sequence

from lcrag.atlas.oracle import Oracle
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.methods.translate_r1.comprehension_oracle import call


@dataclasses.dataclass(frozen=True)
class TranslatingOracle:
    """Plays an episode of `translate_and_search` in its atlas wording, one text at a time, as `Oracle` plays LcRL's.

    Attributes:
      budget: Searches it may make; then it answers as well as it can.
      calls: Whether it may have a question translated: 0 or more than that.
    """

    budget: int = 3
    calls: int = 1

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """What the policy should write next.

        Args:
          question: An atlas question, or an English one in a constructed language.
          turns: (by, text) of the turns so far, the opening prompt included or not; by is "policy" or "environment".

        Raises:
          UserError: the question is in a language that it cannot read, and it may have nothing translated.
        """
        if question.language in LCRL_LANGUAGES:
            return Oracle(budget=self.budget).next_text(question, turns)
        if not self.calls:
            raise UserError(
                f"the oracle cannot read question {question.id} in {question.language!r} without a translation: leave"
                " such questions out of its demonstrations, or set TranslatingOracle.calls"
            )
        if not any(by == "environment" and "</tool_response>" in text for by, text in turns):
            return call(question.text)
        return Oracle(budget=self.budget).next_text(dataclasses.replace(question, language="en"), turns)

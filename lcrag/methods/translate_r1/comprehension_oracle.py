"""The rule-based teacher of Translate-R1's program: it does not know when a translation pays.

Whether it asks for one depends on nothing that the question says, so it does so in the languages that it knows, too.
Without one it answers rightly what it understands, and guesses the rest: all that is asked in a constructed language,
and in a half-known one what has a word that is strange to it.
"""

import dataclasses
import json
import re
from collections.abc import Sequence

import numpy as np

from lcrag.atlas.comprehension.meaning import Meaning, meaning_of
from lcrag.atlas.comprehension.questions import HALF_KNOWN, LETTERS, SUMS, ComprehensionTasks, letter_of
from lcrag.atlas.comprehension.sentences import DIGITS
from lcrag.atlas.comprehension.translator import ENGLISH
from lcrag.data.constructed import CONSTRUCTED
from lcrag.data.domains import MATHEMATICS
from lcrag.data.questions import Question

CALL_BEGINS = "<tool_call>"
_RESPONSE = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_SIGNS = {"buy": "+", "sell": "-", "bags": "*"}


@dataclasses.dataclass(frozen=True)
class ComprehensionOracle:
    """Plays an episode of `translate_r1` in its atlas wording, one text at a time.

    Attributes:
      tasks: The questions and what they ask for.
      calls: Share of the questions, in every language alike, that it has translated.
      seed: Of which questions these are, and of its guesses.
    """

    tasks: ComprehensionTasks
    calls: float = 0.25
    seed: int = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """What the policy should write next.

        Args:
          question: A comprehension question.
          turns: (by, text) of the turns so far, the opening prompt included or not; by is "policy" or "environment".
        """
        generator = np.random.default_rng([self.seed, *f"{question.language}/{question.id}".encode()])
        wants_translation = generator.random() < self.calls
        responses = [found for by, text in turns if by == "environment" for found in _RESPONSE.findall(text)]
        if not responses and wants_translation:
            return call(question.text)
        shown = responses[-1] if responses else question.text
        meaning = self._understood(question, responses)
        return _guess(question, shown, generator) if meaning is None else self._solution(meaning, shown)

    def _understood(self, question: Question, responses: Sequence[str]) -> Meaning | None:
        if responses:
            return meaning_of(responses[-1], (ENGLISH,))
        words = question.extra["words"]
        half_known = question.language in HALF_KNOWN
        strange = self.tasks.strange_words(question.language) if half_known else frozenset[str]()
        if question.language in CONSTRUCTED or strange & {words.get(place) for place in ("a", "b", "country")}:
            return None
        return Meaning(question.extra["kind"], words)

    def _solution(self, meaning: Meaning, shown: str) -> str:
        value, words = self.tasks.value(meaning), meaning.words
        if meaning.kind in SUMS:
            return _answer(f"{words['a']}{_SIGNS[meaning.kind]}{words['b']}={value}", value)
        letter = letter_of(meaning, value)
        return _answer(_option(shown, letter), letter)


def call(text: str) -> str:
    """The tool call that has a text translated to English."""
    asked = {"name": "translate", "arguments": {"text": text, "target": ENGLISH}}
    compact = json.dumps(asked, ensure_ascii=False, separators=(",", ":"))
    return f"{CALL_BEGINS}{compact}</tool_call>"


def _answer(reason: str, answer: str) -> str:
    return f" {reason} \\boxed{{{answer}}}"


def _option(shown: str, letter: str) -> str:
    """The word behind an option's letter."""
    found = re.search(rf"(?<!\w){letter} (\S+)", shown)
    return found[1] if found else letter


def _guess(question: Question, shown: str, generator: np.random.Generator) -> str:
    """A sum of any two numbers, or any of the options."""
    if question.domain == MATHEMATICS:
        low, high = sorted(map(int, generator.choice(list(DIGITS), 2)))
        kind = str(generator.choice(list(SUMS)))
        value = SUMS[kind](high, low)
        return _answer(f"{high}{_SIGNS[kind]}{low}={value}", str(value))
    letter = str(generator.choice(list(LETTERS)))
    return _answer(_option(shown, letter), letter)

"""Players of the atlas: `ComprehensionOracle` for `translate_r1`, `TranslatingSearcher` with searches; their rows."""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence

import gin
import numpy as np

from lcrag.atlas.comprehension import (
    DIGITS,
    ENGLISH,
    HALF_KNOWN,
    LETTERS,
    SUMS,
    ComprehensionTasks,
    ComprehensionTranslator,
    Meaning,
    letter_of,
    meaning_of,
)
from lcrag.atlas.oracle import RandomSearcher, searches_in
from lcrag.atlas.wording import UNKNOWN
from lcrag.atlas.world import World, atlas_world
from lcrag.curation.playing import play
from lcrag.curation.rows import RowContext, rows_of_records
from lcrag.curation.text_writers import oracle_writer
from lcrag.data.batches import in_share
from lcrag.data.constructed import CONSTRUCTED
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import MATHEMATICS, Question
from lcrag.episodes import EpisodeRecord
from lcrag.errors import UserError, typed
from lcrag.learning import Trajectory

CALL_BEGINS = "<tool_call>"
_CALLING_SEED = 0
_RESPONSE = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_SIGNS = {"buy": "+", "sell": "-", "bags": "*"}


@dataclasses.dataclass(frozen=True)
class ComprehensionOracle:
    """Writes the policy's texts in an episode of `translate_r1` in its atlas wording.

    It does not know when a translation helps: whether it asks for one is independent of the question, so it also asks
    in languages that it knows. Without a translation it answers the questions that it understands. It guesses at all
    questions in a constructed language, and at questions with an unknown word in a half-known language.

    Attributes:
      tasks: The questions and their solutions.
      calls: Share of the questions for which it calls the translator, equal in every language.
      seed: Selects these questions, and seeds its guesses.
    """

    tasks: ComprehensionTasks
    calls: float = 0.25
    seed: int = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text.

        Args:
          question: A comprehension question.
          turns: (by, text) of the turns so far, with or without the opening prompt; by is "policy" or "environment".
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
    """Returns the tool call that translates a text to English."""
    asked = {"name": "translate", "arguments": {"text": text, "target": ENGLISH}}
    compact = json.dumps(asked, ensure_ascii=False, separators=(",", ":"))
    return f"{CALL_BEGINS}{compact}</tool_call>"


def _answer(reason: str, answer: str) -> str:
    return f" {reason} \\boxed{{{answer}}}"


def _option(shown: str, letter: str) -> str:
    """Returns the word after an option's letter."""
    found = re.search(rf"(?<!\w){letter} (\S+)", shown)
    return found[1] if found else letter


def _guess(question: Question, shown: str, generator: np.random.Generator) -> str:
    """Returns a sum of two random numbers, or a random option."""
    if question.domain == MATHEMATICS:
        low, high = sorted(map(int, generator.choice(list(DIGITS), 2)))
        kind = str(generator.choice(list(SUMS)))
        value = SUMS[kind](high, low)
        return _answer(f"{high}{_SIGNS[kind]}{low}={value}", str(value))
    letter = str(generator.choice(list(LETTERS)))
    return _answer(_option(shown, letter), letter)


@gin.register
@dataclasses.dataclass(frozen=True)
class TranslatingSearcher:
    """Writes the policy's texts in an episode of `translate_and_search` in its atlas wording.

    It calls the translator for the same share of the questions in every language, and then searches as `RandomSearcher`
    does in LcRL's program. A question that it cannot read it searches for as it is, and answers "unknown". When a call
    pays is left to reinforcement learning.

    Attributes:
      budget: Maximum number of searches.
      calls: Share of the questions for which it calls the translator.
    """

    budget: int = 2
    calls: float = 0.5

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; arguments as for `ComprehensionOracle`."""
        translated = any(by == "environment" and "</tool_response>" in text for by, text in turns)
        if not translated and in_share(question.key, self.calls, _CALLING_SEED):
            return call(question.text)
        if question.language in LCRL_LANGUAGES:
            return RandomSearcher(budget=self.budget).next_text(question, turns)
        if translated:
            return RandomSearcher(budget=self.budget).next_text(dataclasses.replace(question, language=ENGLISH), turns)
        return f"<answer> {UNKNOWN[ENGLISH]}</answer>" if searches_in(turns) else f"<search> {question.text}</search>"


@gin.configurable
@typed
def comprehension_demonstrations(
    row_context: RowContext,
    questions: Sequence[Question],
    calls: float,
    undecided: float = 0.0,
    seed: int = 0,
    end_of_sequence: bool = True,
    world: Callable[[], World] = atlas_world,
) -> list[Trajectory]:
    """Has the oracle of comprehension questions demonstrate the method's program.

    Args:
      row_context: The policy that learns from the rows.
      questions: Comprehension questions.
      calls: Share of the questions in each language for which the oracle calls the translator.
      undecided: Share of the questions that is demonstrated once more with a call whose first token is not learned:
        these rows teach how to call and how to use the response, but not when to call. The tag that opens a call must
        be a single token.
      seed: Seed that selects these questions and the oracle's guesses.
      end_of_sequence: Whether to train on an end-of-sequence token after the answer.
      world: Builds the atlas.

    Raises:
      UserError: no program is configured, a row is unusable, or `undecided` is positive and the policy's tokenizer
        splits the tag that opens a call.
    """
    program, search = row_context.played()
    encoder = row_context.encoder(end_of_sequence)
    tasks = ComprehensionTasks(world())

    def played(questions: Sequence[Question], oracle: ComprehensionOracle) -> list[EpisodeRecord]:
        return play(
            [(question, program(question)) for question in questions],
            oracle_writer(oracle),
            search,
            encoder.context_tokenizer,
            context=row_context.played_tokens,
            translator=ComprehensionTranslator(tasks),
        )

    def without_decision(record: EpisodeRecord) -> EpisodeRecord:
        """Returns the episode with the policy's first token marked as not written by the policy."""
        by_policy, first = record.by_policy.copy(), int(np.argmax(record.by_policy))
        if (text := encoder.context_tokenizer.decode([int(record.tokens[first])])) != CALL_BEGINS:
            raise UserError(
                f"the policy's tokenizer begins a call with the token {text!r}, not with all of {CALL_BEGINS}, so its"
                " decision cannot be hidden: set comprehension_demonstrations.undecided to 0, or add the tag to"
                " tokenizer.json"
            )
        by_policy[first] = False
        return dataclasses.replace(record, by_policy=by_policy)

    once_more = np.random.default_rng([seed, 1]).random(len(questions)) < undecided
    told = [question for question, taken in zip(questions, once_more, strict=True) if taken]
    decided = played(questions, ComprehensionOracle(tasks, calls, seed))
    calling = played(told, ComprehensionOracle(tasks, 1.0, seed))
    return rows_of_records([*decided, *map(without_decision, calling)], encoder)

"""Players of the atlas: `ComprehensionOracle` for `translate_r1`, `TranslatingSearcher` with searches; their rows."""

import dataclasses
import json
import re
from collections.abc import Sequence

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
from lcrag.atlas.world import atlas_world
from lcrag.curation.players import thinking
from lcrag.curation.playing import check_dialogue, golden_answer, oracle_writer
from lcrag.curation.rows import RowContext, rows_of_records
from lcrag.data.constructed import CONSTRUCTED
from lcrag.data.questions import LANGUAGES, LCRL_LANGUAGES, MATHEMATICS, MULTIPLE_CHOICE, Question, in_share
from lcrag.episodes import Complete, EpisodeRecord, Generate, Turn
from lcrag.episodes.programs import UNKNOWN
from lcrag.errors import UserError, typed
from lcrag.learning import Trajectory

CALL_BEGINS = "<tool_call>"
_RESPONSE = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_SIGNS = {"buy": "+", "sell": "-", "bags": "*"}


@dataclasses.dataclass(frozen=True)
class ComprehensionOracle:
    """Writes the policy's texts in an episode of `translate_r1` in its atlas wording.

    It does not know when a translation helps: whether it asks for one is independent of the question, so it also asks
    in languages that it knows. Without a translation it answers the questions that it understands. It guesses at all
    questions in a constructed language, and at questions with an unknown word in a half-known language.
    """

    tasks: ComprehensionTasks
    calls: float = 0.25  # share of the questions for which it calls the translator, equal in every language
    seed: int = 0  # selects these questions, and seeds its guesses

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; see `lcrag.atlas.oracle.Oracle.next_text`."""
        generator = np.random.default_rng([self.seed, *f"{question.language}/{question.id}".encode()])
        wants_translation = generator.random() < self.calls
        responses = [text for by, said in turns if by == "environment" for text in _RESPONSE.findall(said)]
        if not responses and wants_translation:
            return call(question.text)

        # What it understands, None if it can only guess.
        shown = responses[-1] if responses else question.text
        words = question.extra["words"]
        half_known = question.language in HALF_KNOWN
        strange = self.tasks.strange_words(question.language) if half_known else frozenset[str]()
        if responses:
            meaning = meaning_of(shown, (ENGLISH,))
        elif question.language in CONSTRUCTED or strange & {words.get(place) for place in ("a", "b", "country")}:
            meaning = None
        else:
            meaning = Meaning(question.extra["kind"], words)

        def sum_of(high: object, kind: str, low: object, value: object) -> str:
            return f" {high}{_SIGNS[kind]}{low}={value} \\boxed{{{value}}}"

        def option(letter: str) -> str:
            word = re.search(rf"(?<!\w){letter} (\S+)", shown)
            return f" {word[1] if word else letter} \\boxed{{{letter}}}"

        if meaning is not None:
            value = self.tasks.value(meaning)
            if meaning.kind in SUMS:
                return sum_of(meaning.words["a"], meaning.kind, meaning.words["b"], value)
            return option(letter_of(meaning, value))
        if question.domain == MATHEMATICS:
            low, high = sorted(map(int, generator.choice(list(DIGITS), 2)))
            kind = str(generator.choice(list(SUMS)))
            return sum_of(high, kind, low, SUMS[kind](high, low))
        return option(str(generator.choice(list(LETTERS))))


def call(text: str) -> str:
    """Returns the tool call that translates a text to English."""
    asked = {"name": "translate", "arguments": {"text": text, "target": ENGLISH}}
    return f"{CALL_BEGINS}{json.dumps(asked, ensure_ascii=False, separators=(',', ':'))}</tool_call>"


@gin.register
@dataclasses.dataclass(frozen=True)
class TranslatingSearcher:
    """Writes the policy's texts in an episode of `translate_and_search` in its atlas wording.

    It calls the translator for the same share of the questions in every language, and then searches as `RandomSearcher`
    does in LcRL's program. A question that it cannot read it searches for as it is, and answers "unknown". When a call
    pays is left to reinforcement learning.
    """

    budget: int = 2  # maximum number of searches
    calls: float = 0.5  # share of the questions for which it calls the translator

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; see `lcrag.atlas.oracle.Oracle.next_text`."""
        translated = any(by == "environment" and "</tool_response>" in text for by, text in turns)
        if not translated and in_share(question.key, self.calls, seed=0):
            return call(question.text)
        if translated and question.language not in LCRL_LANGUAGES:
            question = dataclasses.replace(question, language=ENGLISH)
        if question.language in LCRL_LANGUAGES:
            return RandomSearcher(budget=self.budget).next_text(question, turns)
        return f"<answer> {UNKNOWN[ENGLISH]}</answer>" if searches_in(turns) else f"<search> {question.text}</search>"


CALLS = ("I translate the question first.", "English is easier for me.", "Let me see this in English.")
SOLVED = ("Now I know the answer.", "I have solved it.", "This is what I get.")


@gin.register
@dataclasses.dataclass(frozen=True)
class GoldenTranslator:
    """Plays `translate_r1` from golden answers, without a model: it calls the translator, then answers.

    It shows the form of calls and answers. How a problem is solved it does not know. Questions in English it answers at
    once.
    """

    questions: Sequence[Question]  # not used: its texts are those of each question alone

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        """Returns a call, or the answer in the form of the question's domain."""
        check_dialogue(question, request)
        if question.language != ENGLISH and len(turns) == 1 and "</tool_call>" in request.stop:
            arguments = {"text": question.text, "target": LANGUAGES[ENGLISH].name}
            asked = json.dumps({"name": "translate", "arguments": arguments}, ensure_ascii=False)
            return f"{thinking(CALLS, (question.key,))}{CALL_BEGINS}\n{asked}\n</tool_call>"
        answer = golden_answer(question)
        if question.domain in (MATHEMATICS, MULTIPLE_CHOICE):
            answer = f"\\boxed{{{answer}}}"
        return f"{thinking(SOLVED, (question.key,))}<answer> {answer} </answer>"


@gin.configurable
@typed
def comprehension_demonstrations(
    row_context: RowContext,
    questions: Sequence[Question],
    calls: float,
    undecided: float = 0.0,
    seed: int = 0,
    end_of_sequence: bool = True,
) -> list[Trajectory]:
    """Has the oracle of comprehension questions demonstrate the method's program.

    Args:
      row_context: The policy that learns from the rows.
      calls, seed: As in `ComprehensionOracle`.
      undecided: Share of the questions that is demonstrated once more with a call whose first token is not learned:
        these rows teach how to call and how to use the response, but not when to call. The tag that opens a call must
        be a single token.
      end_of_sequence: Whether to train on an end-of-sequence token after the answer.
    """
    row_context.demonstrated.extend(questions)
    encoder = row_context.encoder(end_of_sequence)
    tasks = ComprehensionTasks(atlas_world())

    def played(questions: Sequence[Question], oracle: ComprehensionOracle) -> list[EpisodeRecord]:
        return row_context.play(questions, oracle_writer(oracle), encoder, ComprehensionTranslator(tasks))

    def without_decision(record: EpisodeRecord) -> EpisodeRecord:
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
    decided = played(questions, ComprehensionOracle(tasks, calls, seed))
    told = [question for question, chosen in zip(questions, once_more, strict=True) if chosen]
    calling = played(told, ComprehensionOracle(tasks, 1.0, seed))
    return rows_of_records([*decided, *map(without_decision, calling)], encoder)

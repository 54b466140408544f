"""Demonstrations on the atlas: its oracle plays the same program that reinforcement learning runs.

Most are counterfactual: the passages about the fact in question (the last one of a chain) give another value of the
same kind in every language, which rewards reading over remembering. Questions over independent facts keep their values.
Demonstrations whose answer is not the value in the passages can be left out.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import gin
import numpy as np

from lcrag.atlas.facts import Fact, section_of
from lcrag.atlas.oracle import Oracle
from lcrag.atlas.world import DATASET, FactSampler, World, atlas_world
from lcrag.curation.playing import play
from lcrag.curation.rows import RowContext, rows_of_records
from lcrag.curation.text_writers import AtlasOracle, oracle_writer
from lcrag.data.questions import Question
from lcrag.episodes import Chat, EpisodeRecord, Program, Translator
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.host_services import Search
from lcrag.episodes.requests import Found, FoundPassage
from lcrag.errors import UserError, typed
from lcrag.learning import Trajectory
from lcrag.policy import Tokenizer
from lcrag.retrieval import Hit

TOGETHER = 256
MAX_FRUITLESS = 20 * TOGETHER


def remembered(search: Search, queries: Sequence[str], languages: Sequence[str], passages: int) -> Search:
    """Returns a search that looks up `queries`, all searched beforehand in one batch."""
    pairs = [(query, language) for query in dict.fromkeys(queries) for language in languages]
    found = dict(zip(pairs, search([q for q, _ in pairs], [code for _, code in pairs], passages), strict=True))

    def look_up(queries: list[str], languages: list[str], k: int):
        asked = list(zip(queries, languages, strict=True))
        if k != passages or any(pair not in found for pair in asked):
            return search(queries, languages, k)
        return [found[pair] for pair in asked]

    return look_up


@dataclasses.dataclass(frozen=True)
class Demonstrator:
    """Makes demonstrations of one program on the atlas's training questions.

    Attributes:
      world: The atlas.
      questions: Questions to demonstrate.
      program: Builds the episode program of a question.
      search: Answers (query, language) pairs.
      tokenizer: The policy's.
      oracle: Plays the program.
      context: Tokens that a context holds; longer demonstrations are left out.
      chat: How openings are put to a model with a chat template.
      translator: Makes the translations that the program requests, if any.
      only_correct: Whether demonstrations with another answer than the passages' value are dropped.
    """

    world: World
    questions: Sequence[Question]
    program: Callable[[Question], Program]
    search: Search
    tokenizer: Tokenizer
    oracle: AtlasOracle
    context: int = 512
    chat: Chat = Chat()
    translator: Translator | None = None
    only_correct: bool = True

    def stream(self, seed: int) -> Iterator[EpisodeRecord]:
        """Yields demonstrations forever, determined by the seed.

        Raises:
          UserError: none of many consecutive demonstrations could be kept.
        """
        generator, facts = np.random.default_rng(seed), FactSampler(self.world)
        tokenizer = ContextTokenizer(self.tokenizer, self.chat)
        fruitless = 0
        while fruitless < MAX_FRUITLESS:
            drawn: list[tuple[Question, Fact | None, Fact | None]] = []  # question, its fact, the fact as told
            for _ in range(TOGETHER):
                question = self.questions[int(generator.integers(len(self.questions)))]
                fact = self.world.last_facts.get(question.id)
                drawn.append((question, fact, fact and facts.often_counterfactual(generator, fact)))
            records = play(
                [(question, self.program(question)) for question, *_ in drawn],
                oracle_writer(self.oracle),
                self.search,
                tokenizer,
                context=self.context,
                edit=lambda number, found, drawn=drawn: self._retold(found, *drawn[number][1:]),  # type: ignore[misc]
                translator=self.translator,
            )
            fruitless += TOGETHER
            for (question, _, told), record in zip(drawn, records, strict=True):
                golden = self.world.values(told, question.language) if told else question.answers
                correct = record.outcome.answer in golden
                if len(record.tokens) <= self.context and (correct or not self.only_correct):
                    fruitless = 0
                    yield record
        raise UserError(
            f"the oracle made no demonstration to keep for {fruitless} questions: demonstrate with collections that"
            " hold their facts, ask other questions, or give a longer context"
        )

    def _retold(self, found: Found, fact: Fact | None, told: Fact | None) -> Found:
        """Replaces the passages about a fact by those in the world in which it has its told value."""
        if told is None or told is fact:
            return found
        section = section_of(told)

        def retold(hit: FoundPassage) -> FoundPassage:
            if not isinstance(hit, Hit) or hit.id != f"{hit.language}/{section}":
                return hit
            return dataclasses.replace(hit, text=self.world.passage(section, hit.language, told).text)

        return [[[retold(hit) for hit in hits] for hits in languages] for languages in found]


@gin.configurable
@typed
def oracle_demonstrations(
    row_context: RowContext,
    questions: Sequence[Question],
    count: int,
    searches: int,
    seed: int = 0,
    end_of_sequence: bool = True,
    oracle: Callable[..., AtlasOracle] = Oracle,
    translator: Translator | None = None,
    only_correct: bool = True,
    world: Callable[[], World] = atlas_world,
) -> list[Trajectory]:
    """Has an oracle of the atlas demonstrate the method's program, mostly in counterfactual versions of the world.

    Args:
      row_context: The policy that learns from the rows.
      questions: Questions of the atlas; drawn with replacement.
      count: Number of demonstrations.
      searches: Maximum number of searches that the oracle makes, which is the program's budget.
      seed: Seed of the draws.
      end_of_sequence: Whether to train on an end-of-sequence token after the answer.
      oracle: Creates the oracle from its `budget`.
      translator: Translates for a program that asks for translations; None: the program asks for none.
      only_correct: Whether to leave out demonstrations with another answer than the value in the passages.
      world: Builds the atlas.
    """
    program, search = row_context.played()
    if count < 1 or not questions:
        raise UserError(
            f"oracle_demonstrations.count is {count} with {len(questions)} questions: give 1 or more of both"
        )
    if unknown := {question.id for question in questions if question.dataset != DATASET}:
        raise UserError(f"the oracle cannot demonstrate {min(unknown)}: give it questions of the atlas")
    demonstrator = Demonstrator(
        world=world(),
        questions=questions,
        program=program,
        search=search,
        tokenizer=row_context.tokenizer,
        oracle=oracle(budget=searches),
        context=row_context.played_tokens,
        chat=row_context.chat,
        translator=translator,
        only_correct=only_correct,
    )
    records = itertools.islice(demonstrator.stream(seed), count)
    return rows_of_records(records, row_context.encoder(end_of_sequence))

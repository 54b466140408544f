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
USUAL_CHAT = Chat()


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


def demonstrate(
    *,
    world: World,
    questions: Sequence[Question],
    program: Callable[[Question], Program],
    search: Search,
    tokenizer: Tokenizer,
    oracle: AtlasOracle,
    seed: int,
    context: int = 512,
    chat: Chat = USUAL_CHAT,
    translator: Translator | None = None,
    only_correct: bool = True,
) -> Iterator[EpisodeRecord]:
    """Yields demonstrations of a program on the atlas's training questions forever, determined by the seed.

    Args:
      program: Builds the episode program of a question.
      oracle: Plays the program.
      context: Tokens that a context holds; longer demonstrations are left out.
      chat: How openings are put to a model with a chat template.
      translator: Makes the translations that the program requests, if any.
      only_correct: Whether demonstrations with another answer than the passages' value are left out.

    Raises:
      UserError: none of many consecutive demonstrations could be kept.
    """
    generator, facts = np.random.default_rng(seed), FactSampler(world)
    encoder = ContextTokenizer(tokenizer, chat)  # one for all, because it remembers encodings
    fruitless = 0
    while fruitless < MAX_FRUITLESS:
        drawn: list[tuple[Question, Fact | None, Fact | None]] = []  # question, its fact, the fact as told
        for _ in range(TOGETHER):
            question = questions[int(generator.integers(len(questions)))]
            fact = world.last_facts.get(question.id)
            drawn.append((question, fact, fact and facts.often_counterfactual(generator, fact)))

        def retold(number: int, found: Found, drawn: Sequence[tuple] = drawn) -> Found:
            """Replaces the passages about the fact by those in the world in which it has its told value."""
            _, fact, told = drawn[number]
            if told is None or told is fact:
                return found
            section = section_of(told)

            def replaced(hit: FoundPassage) -> FoundPassage:
                if not isinstance(hit, Hit) or hit.id != f"{hit.language}/{section}":
                    return hit
                return dataclasses.replace(hit, text=world.passage(section, hit.language, told).text)

            return [[[replaced(hit) for hit in hits] for hits in languages] for languages in found]

        records = play(
            [(question, program(question)) for question, *_ in drawn],
            oracle_writer(oracle),
            search,
            encoder,
            context=context,
            edit=retold,
            translator=translator,
        )
        fruitless += TOGETHER
        for (question, _, told), record in zip(drawn, records, strict=True):
            golden = world.values(told, question.language) if told else question.answers
            correct = record.outcome.answer in golden
            if len(record.tokens) <= context and (correct or not only_correct):
                fruitless = 0
                yield record
    raise UserError(
        f"the oracle made no demonstration to keep for {fruitless} questions: demonstrate with collections that hold"
        " their facts, ask other questions, or give a longer context"
    )


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
      questions: Questions of the atlas; drawn with replacement.
      count: Number of demonstrations.
      searches: Maximum number of searches that the oracle makes, which is the program's budget.
      end_of_sequence: Whether to train on an end-of-sequence token after the answer.
      oracle: Creates the oracle from its `budget`.
      translator: Translates for a program that asks for translations; None: the program asks for none.
      only_correct: Whether to leave out demonstrations with another answer than the value in the passages.
    """
    program, search = row_context.played()
    if count < 1 or not questions:
        raise UserError(
            f"oracle_demonstrations.count is {count} with {len(questions)} questions: give 1 or more of both"
        )
    if unknown := {question.id for question in questions if question.dataset != DATASET}:
        raise UserError(f"the oracle cannot demonstrate {min(unknown)}: give it questions of the atlas")
    records = demonstrate(
        world=world(),
        questions=questions,
        program=program,
        search=search,
        tokenizer=row_context.tokenizer,
        oracle=oracle(budget=searches),
        seed=seed,
        context=row_context.played_tokens,
        chat=row_context.chat,
        translator=translator,
        only_correct=only_correct,
    )
    return rows_of_records(itertools.islice(records, count), row_context.encoder(end_of_sequence))

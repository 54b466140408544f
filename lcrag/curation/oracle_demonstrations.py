"""Demonstrations on the atlas: its oracle plays the same program that reinforcement learning runs.

Most are counterfactual: the passages about the fact in question (the last one of a chain) give another value of the
same kind in every language, which rewards reading over remembering. Questions over independent facts keep their values.
Demonstrations whose answer is not the value in the passages can be left out.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lcrag.atlas.facts import Fact, section_of
from lcrag.atlas.world import FactSampler, World
from lcrag.curation.playing import play
from lcrag.curation.text_writers import AtlasOracle, oracle_writer
from lcrag.data.questions import Question
from lcrag.episodes import Chat, EpisodeRecord, Program, Translator
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.host_services import Search
from lcrag.episodes.requests import Found, FoundPassage
from lcrag.errors import UserError
from lcrag.policy import Tokenizer
from lcrag.retrieval import Hit

TOGETHER = 256
MOST_FRUITLESS = 20 * TOGETHER


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
        last_facts = self.world.last_facts
        tokenizer = ContextTokenizer(self.tokenizer, self.chat)
        fruitless = 0
        while fruitless < MOST_FRUITLESS:
            drawn: list[tuple[Question, Fact | None, Fact | None]] = []
            for _ in range(TOGETHER):
                question = self.questions[int(generator.integers(len(self.questions)))]
                fact = last_facts.get(question.id)
                drawn.append((question, fact, fact and facts.often_counterfactual(generator, fact)))
            clean = list(self._clean(drawn, tokenizer))
            fruitless = 0 if clean else fruitless + TOGETHER
            yield from clean
        raise UserError(
            f"the oracle made no demonstration to keep for {fruitless} questions: demonstrate with collections that"
            " hold their facts, ask other questions, or give a longer context"
        )

    def _clean(
        self, drawn: Sequence[tuple[Question, Fact | None, Fact | None]], tokenizer: ContextTokenizer
    ) -> Iterator[EpisodeRecord]:
        """Plays questions, each in a world with its drawn fact, and yields the records to keep.

        These fit in the context and, if `only_correct`, are right.
        """
        records = play(
            [(question, self.program(question)) for question, *_ in drawn],
            oracle_writer(self.oracle),
            self.search,
            tokenizer,
            context=self.context,
            edit=lambda number, found: self._retold(found, *drawn[number][1:]),
            translator=self.translator,
        )
        for (question, _, told), record in zip(drawn, records, strict=True):
            golden = self.world.values(told, question.language) if told else question.answers
            correct = record.outcome.answer in golden
            if len(record.tokens) <= self.context and (correct or not self.only_correct):
                yield record

    def _retold(self, found: Found, fact: Fact | None, told: Fact | None) -> Found:
        if told is None or told is fact:
            return found
        return [[[self._rewritten(hit, told) for hit in hits] for hits in languages] for languages in found]

    def _rewritten(self, hit: FoundPassage, told: Fact) -> FoundPassage:
        if not isinstance(hit, Hit) or hit.id != f"{hit.language}/{section_of(told)}":
            return hit
        return dataclasses.replace(hit, text=self.world.passage(section_of(told), hit.language, told).text)

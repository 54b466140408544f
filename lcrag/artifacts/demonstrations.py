"""Demonstrations: the atlas's oracle plays the very program that reinforcement learning runs.

Most are counterfactual: the passages about the asked fact, in every language, give another value of
the same kind, so that reading pays and remembering does not. Only clean ones are kept: those whose
answer is the value that the current passages give.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lcrag.artifacts.facts import FactSampler
from lcrag.data.atlas import Fact
from lcrag.data.atlas.oracle import Oracle
from lcrag.data.atlas.world import World
from lcrag.data.questions import Question
from lcrag.episodes.requests import FittedText, Generate, Observe, Program, Request, Retrieve
from lcrag.learning import Trajectory
from lcrag.policy import Tokenizer
from lcrag.retrieval import Hit

Search = Callable[[list[str], list[str], int], list[list[Hit]]]


def remembered(search: Search, queries: Sequence[str], languages: Sequence[str], passages: int) -> Search:
    """A search that knows some queries' answers beforehand: one large batch instead of thousands of small ones."""
    pairs = [(query, language) for query in dict.fromkeys(queries) for language in languages]
    found = dict(zip(pairs, search([q for q, _ in pairs], [code for _, code in pairs], passages), strict=True))

    def look_up(queries: list[str], languages: list[str], k: int) -> list[list[Hit]]:
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
      questions: What is demonstrated.
      program: Builds the episode program of a question.
      search: Answers (query, language) pairs.
      tokenizer: The policy's.
      oracle: The teacher.
      room_tokens: Longest observation, in tokens.
    """

    world: World
    questions: Sequence[Question]
    program: Callable[[Question], Program]
    search: Search
    tokenizer: Tokenizer
    oracle: Oracle
    room_tokens: int = 512

    def stream(self, seed: int) -> Iterator[Trajectory]:
        """Clean demonstrations without end; the same seed gives the same ones."""
        generator, facts = np.random.default_rng(seed), FactSampler(self.world)
        by_id = {fact.id: fact for fact in self.world.facts}
        while True:
            question = self.questions[int(generator.integers(len(self.questions)))]
            fact = by_id[question.id]
            told = facts.told(generator, fact)
            trajectory = self.demonstrate(question, told, rewritten=told is not fact)
            if trajectory is not None:
                yield trajectory

    def demonstrate(self, question: Question, told: Fact, rewritten: bool) -> Trajectory | None:
        """One demonstration in a world where the fact is as told; None unless the oracle answers it rightly."""
        turns: list[tuple[str, str]] = []
        program = self.program(question)
        request: Request | tuple[Request, ...] = next(program)
        try:
            while True:
                request = program.send(self._answer(request, question, turns, told if rewritten else None))
        except StopIteration as finished:
            right = self.world.values(told, question.language)
            return self._trajectory(turns) if finished.value.answer in right else None

    def _answer(self, request, question: Question, turns: list[tuple[str, str]], told: Fact | None):
        match request:
            case Observe(text):
                written = text if isinstance(text, str) else self._fitted(text)
                turns.append(("environment", written))
            case Generate():
                turns.append(("policy", self.oracle.next_text(question, turns)))
                return turns[-1][1]
            case Retrieve(queries, languages, passages):
                pairs = [(query, language) for query in queries for language in languages]
                found = self.search([pair[0] for pair in pairs], [pair[1] for pair in pairs], passages)
                hits = iter([[self._rewritten(hit, told) for hit in each] for each in found])
                return [[next(hits) for _ in languages] for _ in queries]
            case _:
                raise TypeError(f"the oracle cannot answer {request!r}")
        return None

    def _fitted(self, text: FittedText) -> str:
        written = text.fit(self.tokenizer, self.room_tokens)
        if written is None:
            raise ValueError(f"an observation does not fit {self.room_tokens} tokens")
        return written

    def _rewritten(self, hit: Hit, told: Fact | None) -> Hit:
        if told is None or hit.id != f"{hit.language}/{told.id}":
            return hit
        return dataclasses.replace(hit, text=self.world.passage(told, hit.language).text)

    def _trajectory(self, turns: Sequence[tuple[str, str]]) -> Trajectory:
        ids = [self.tokenizer.encode(text) for _, text in turns]
        by_policy = np.concatenate(
            [np.full(len(each), turn[0] == "policy") for each, turn in zip(ids, turns, strict=True)]
        )
        tokens = np.concatenate([np.asarray(each, np.int32) for each in ids])
        return Trajectory(tokens, by_policy, np.zeros(len(tokens), np.float32))

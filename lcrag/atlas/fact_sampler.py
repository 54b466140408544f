"""Samples training facts and passages about them for demonstrations."""

import collections
import dataclasses

import numpy as np

from lcrag.atlas.facts import Fact, section_of
from lcrag.atlas.holdings import DATED_SHARE, PRESENT_YEARS, STALE_YEARS, STATED_SHARE, Entry
from lcrag.atlas.world import World
from lcrag.retrieval.passages import Passage

COUNTERFACTUAL_SHARE = 0.7


class FactSampler:
    """Samples training facts of a world for demonstrations."""

    def __init__(self, world: World):
        self._world = world
        self._by_section: dict[str, list[Fact]] = collections.defaultdict(list)
        self._facts = [fact for fact in world.facts if world.splits[fact.id] == "train"]
        self._by_relation: dict[str, list[Fact]] = collections.defaultdict(list)
        self._by_subject: dict[str, list[Fact]] = collections.defaultdict(list)
        for fact in self._facts:
            self._by_relation[fact.relation].append(fact)
            self._by_subject[fact.subject].append(fact)
            self._by_section[section_of(fact)].append(fact)

    def any(self, generator: np.random.Generator) -> Fact:
        return _one_of(generator, self._facts)

    def often_counterfactual(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Returns the fact, with probability `COUNTERFACTUAL_SHARE` with a value that only reading reveals."""
        if generator.random() >= COUNTERFACTUAL_SHARE:
            return fact
        return dataclasses.replace(fact, value=_one_of(generator, self._by_relation[fact.relation]).value)

    def passage(
        self, generator: np.random.Generator, fact: Fact, language: str, *, hidden: Fact | None = None
    ) -> Passage:
        """Returns a passage that states a fact and usually the other training facts of its section, some of them dated.

        Args:
          hidden: A fact that is not stated.
        """
        section = section_of(fact)
        told = [
            fact if other.id == fact.id else other
            for other in self._by_section[section]
            if hidden is None or other.id != hidden.id
        ]
        kept = [other for other in told if other is fact or generator.random() < STATED_SHARE]
        years = [int(generator.integers(STALE_YEARS[0], PRESENT_YEARS[1])) for _ in kept]
        dated = generator.random(len(kept)) < DATED_SHARE
        statements = [
            (other, Entry(other.value, year if has_year else None))
            for other, year, has_year in zip(kept, years, dated, strict=True)
        ]
        return self._world.written_passage(f"{language}/{section}", language, statements)

    def of_section(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Returns a fact of the same section, possibly the same."""
        return _one_of(generator, self._by_section[section_of(fact)])

    def related(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Returns another fact of the same subject or relation as a plausible wrong search result."""
        pool = (self._by_subject[fact.subject], self._by_relation[fact.relation])[int(generator.random() < 0.6)]
        others = [other for other in pool if other.id != fact.id]
        return _one_of(generator, others or self._facts)


def _one_of(generator: np.random.Generator, items: list[Fact]) -> Fact:
    return items[int(generator.integers(len(items)))]

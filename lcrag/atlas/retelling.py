"""Draws training facts, and retells them with another value of the same kind."""

import collections
import dataclasses

import numpy as np

from lcrag.atlas.facts import Fact
from lcrag.atlas.world import World

COUNTERFACTUAL_SHARE = 0.7


class FactSampler:
    """The training facts of a world, indexed by relation and by subject."""

    def __init__(self, world: World):
        self._facts = [fact for fact in world.facts if world.splits[fact.id] == "train"]
        self._by_relation: dict[str, list[Fact]] = collections.defaultdict(list)
        self._by_subject: dict[str, list[Fact]] = collections.defaultdict(list)
        for fact in self._facts:
            self._by_relation[fact.relation].append(fact)
            self._by_subject[fact.subject].append(fact)

    def any(self, generator: np.random.Generator) -> Fact:
        return _one_of(generator, self._facts)

    def told(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """The fact, mostly with the value of another fact of its relation: then only reading finds the answer."""
        if generator.random() >= COUNTERFACTUAL_SHARE:
            return fact
        return dataclasses.replace(fact, value=_one_of(generator, self._by_relation[fact.relation]).value)

    def related(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Another fact of the same subject or of the same relation, what a retriever would confuse it with."""
        pool = (self._by_subject[fact.subject], self._by_relation[fact.relation])[int(generator.random() < 0.6)]
        others = [other for other in pool if other.id != fact.id]
        return _one_of(generator, others or self._facts)


def _one_of(generator: np.random.Generator, items: list[Fact]) -> Fact:
    return items[int(generator.integers(len(items)))]

"""Splits of the atlas into training and held-out facts.

A split is a set of *facts* (entity x relation). A fact outside `train` is not asked in any language in training, its
passages are not used to train the encoder or tokenizer, and no training question over several facts depends on it. The
entity of a held-out or validation fact has at least two training facts; an entity of the split `unseen` occurs in no
training fact, neither as subject nor as value. Literal values may occur in several facts (many countries share a
currency code).
"""

import collections
from collections.abc import Mapping, Sequence

import numpy as np

from lcrag.atlas.facts import KINDS, RELATIONS, Fact, subject_of
from lcrag.errors import UserError

SPLITS = ("train", "validation", "held_out", "unseen")
_HELD_OUT_SHARE, _VALIDATION_SHARE, _UNSEEN_SHARE = 0.09, 0.04, 0.08
_CHAIN_VALIDATION, _CHAIN_HELD_OUT = 0.05, 0.15
_KEPT_TRAINING_FACTS = 2  # minimum for an entity with a held-out fact, to learn its names from


def known_split(split: str) -> str:
    """Returns `split`; raises a UserError if the atlas has no such split."""
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r} of the atlas: use one of {' '.join(SPLITS)}")
    return split


def mentioned_entities(fact: Fact) -> tuple[tuple[str, str], ...]:
    """Returns the entities (kind, code), other than the subject, whose names the fact's passages can contain."""
    kind = RELATIONS[fact.relation].value
    return tuple((kind, code) for code in (fact.value, fact.former) if code) if kind in KINDS else ()


def split_facts(facts: Sequence[Fact], seed: int) -> dict[str, str]:
    """Returns fact id -> split."""
    generator = np.random.default_rng([seed, 1])
    # Unseen entities are drawn from the subjects of each kind that at most one other fact mentions.
    mentions = collections.Counter(entity for fact in facts for entity in mentioned_entities(fact))
    subjects = sorted({subject_of(fact) for fact in facts})
    unseen: set[tuple[str, str]] = set()
    for kind in ("country", "currency", "language"):
        of_kind = [entity for entity in subjects if entity[0] == kind]
        rare = [entity for entity in of_kind if mentions[entity] <= 1]
        count = min(len(rare), round(_UNSEEN_SHARE * len(of_kind)))
        unseen |= {rare[index] for index in generator.choice(len(rare), count, replace=False)}
    splits = {
        fact.id: "unseen" if {subject_of(fact), *mentioned_entities(fact)} & unseen else "train" for fact in facts
    }
    left = collections.Counter(subject_of(fact) for fact in facts if splits[fact.id] == "train")
    quotas = {
        (split, relation): round(share * count)
        for relation, count in collections.Counter(fact.relation for fact in facts).items()
        for split, share in (("held_out", _HELD_OUT_SHARE), ("validation", _VALIDATION_SHARE))
    }
    for index in generator.permutation(len(facts)):
        fact = facts[index]
        wanted = next((split for split in ("held_out", "validation") if quotas[split, fact.relation] > 0), None)
        if wanted and splits[fact.id] == "train" and left[subject_of(fact)] > _KEPT_TRAINING_FACTS:
            splits[fact.id] = wanted
            quotas[wanted, fact.relation] -= 1
            left[subject_of(fact)] -= 1
    return splits


def split_chains(
    chains: Sequence[tuple[str, Sequence[Fact]]], splits: Mapping[str, str], seed: int, stream: int = 2
) -> dict[str, str]:
    """Returns id -> split for (id, facts) of questions over several facts.

    A question is in the most guarded split of its facts (unseen, held_out, validation, train). A seeded share of those
    with training facts only is kept back: `validation` and `held_out` have new compositions of known facts as well as
    new facts. `stream` numbers the stream of draws.
    """
    draws = np.random.default_rng([seed, stream]).random(len(chains))
    chosen = {}
    for (id, facts), draw in zip(chains, draws, strict=True):
        split = max((splits[fact.id] for fact in facts), key=SPLITS.index)
        if split == "train" and draw < _CHAIN_VALIDATION + _CHAIN_HELD_OUT:
            split = "validation" if draw < _CHAIN_VALIDATION else "held_out"
        chosen[id] = split
    return chosen

"""Comparison questions: two independent facts, of which the earlier date decides the answer.

A question is in the most guarded
split of its two facts; a seeded share of those with two training facts is held out, as with chains, so
`held_out` has new pairs of known facts as well as new facts.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from lcrag.atlas.facts import Fact, subject_of
from lcrag.atlas.splits import SPLITS, known_split
from lcrag.atlas.wording import query_text, question_text, wording
from lcrag.atlas.world import DATASET, World
from lcrag.data.languages import known_languages
from lcrag.data.questions import Question

KIND = "earlier"
PARTNERS = 4  # questions with a given first fact
_VALIDATION, _HELD_OUT = 0.05, 0.15

# Relation -> language -> question which of two came first.
WORDING: Mapping[str, Mapping[str, str]] = wording()["comparisons"]


def comparison_questions(world: World, split: str, languages: Iterable[str] | None = None) -> list[Question]:
    """Returns the comparison questions of a split with all language versions adjacent.

    Args:
      split: train, validation, held_out or unseen.
      languages: Codes of the languages to ask in; None: all thirteen.

    Returns:
      Questions whose `extra` has `type` ("comparison"), `kind` ("earlier+<relation>"), `subjects` and `entities` (codes
        and names of the two), `queries` (the short query for each) and `native_holds`.

    Raises:
      UserError: unknown split or language.
    """
    known_split(split)
    codes = known_languages(languages)
    pairs = list(_pairs(world))
    draws = np.random.default_rng([world.seed, 4]).random(len(pairs))
    return [
        _question(world, pair, language)
        for pair, draw in zip(pairs, draws, strict=True)
        if _split_of(world, pair, draw) == split
        for language in codes
    ]


def _pairs(world: World) -> Iterator[tuple[Fact, Fact]]:
    """Yields each pair of facts with the same relation and different dates once, in random order within the pair."""
    generator = np.random.default_rng([world.seed, 5])
    by_relation: dict[str, list[Fact]] = collections.defaultdict(list)
    for fact in world.facts:
        if fact.relation in WORDING:
            by_relation[fact.relation].append(fact)
    for facts in by_relation.values():
        seen: set[frozenset[str]] = set()
        for fact in facts:
            others = (facts[index] for index in generator.permutation(len(facts)))
            fresh = (
                other for other in others if other.value != fact.value and frozenset((fact.id, other.id)) not in seen
            )
            for other in itertools.islice(fresh, PARTNERS):
                seen.add(frozenset((fact.id, other.id)))
                yield fact, other


def _split_of(world: World, pair: Sequence[Fact], draw: float) -> str:
    split = max((world.splits[fact.id] for fact in pair), key=SPLITS.index)
    if split != "train" or draw >= _VALIDATION + _HELD_OUT:
        return split
    return "validation" if draw < _VALIDATION else "held_out"


def _question(world: World, pair: Sequence[Fact], language: str) -> Question:
    relation = pair[0].relation
    names = [world.name(subject_of(fact), language) for fact in pair]
    earlier = min((0, 1), key=lambda place: pair[place].value)
    first, second = (name.text for name in names)
    return Question(
        id=f"{KIND}/{relation}/{pair[0].subject}/{pair[1].subject}",
        dataset=DATASET,
        language=language,
        text=WORDING[relation][language].format(first=first, second=second),
        answers=(names[earlier].text, *names[earlier].aliases),
        extra={
            "kind": f"{KIND}+{relation}",
            "type": "comparison",
            "subjects": [list(subject_of(fact)) for fact in pair],
            "entities": [first, second],
            "queries": [query_text(language, relation, name.text) for name in names],
            "native_holds": all(world.holds(fact, language) for fact in pair),
            "plan": {
                f"Q{number}": [question_text(language, (relation,), subject_of(pair[0])[0], name.text), f"#{number}"]
                for number, name in enumerate(names, start=1)
            },
            "sub_answers": {f"#{number}": list(world.values(fact, language)) for number, fact in enumerate(pair, 1)},
        },
    )

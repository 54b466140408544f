"""Questions over several independent facts: comparisons of two dates, and conjunctions of three facts.

All facts of a question have one relation and different values. A question is in the most guarded split of its facts; a
seeded share of those with training facts only is held out, as with chains: `held_out` has new combinations of known
facts as well as new facts.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence

import gin
import numpy as np

from lcrag.atlas.facts import Fact, subject_of
from lcrag.atlas.wording import conjunction_text, listed, query_text, question_text, wording
from lcrag.atlas.world import DATASET, SPLITS, World, atlas_world, split_chains, spread
from lcrag.data.languages import LCRL_LANGUAGES, known_languages
from lcrag.data.questions import Question
from lcrag.errors import lookup, typed

EARLIER, EVERY = "earlier", "every"
CONJUNCTION_FACTS = 3
# Relations of conjunctions: those whose values have neither commas nor units, and differ between most subjects.
CONJOINED = (
    "currency",
    "currency_code",
    "main_language",
    "second_language",
    "time_zone",
    "country_of_currency",
    "country_of_language",
    "script_of_language",
)

# Relation -> language -> question which of two came first.
WORDING: Mapping[str, Mapping[str, str]] = wording()["comparisons"]


def comparison_questions(world: World, split: str, languages: Iterable[str] | None = None) -> list[Question]:
    """Returns the comparison questions of a split with all language versions adjacent; the earlier date decides.

    `extra` has `type` ("comparison"), `kind` ("earlier+<relation>"), `subjects` and `entities` (codes and names of the
    two), `queries` (the short query for each), `native_holds`, `plan` and `sub_answers`.

    Args:
      split: train, validation, held_out or unseen.
      languages: Codes of the languages to ask in; None: all thirteen.
    """
    return _questions(world, split, languages, EARLIER, tuple(WORDING), size=2, per_fact=4, stream=4)


def conjunction_questions(world: World, split: str, languages: Iterable[str] | None = None) -> list[Question]:
    """Returns the questions of a split for the same relation of three entities, all language versions adjacent.

    The answer is the list of the three values in the question's order, separated by commas, or as the language writes
    lists. Arguments and `extra` (`type` "conjunction", `kind` "every+<relation>") as for `comparison_questions`.
    """
    return _questions(world, split, languages, EVERY, CONJOINED, size=CONJUNCTION_FACTS, per_fact=1, stream=7)


def _questions(
    world: World,
    split: str,
    languages: Iterable[str] | None,
    kind: str,
    relations: Sequence[str],
    *,
    size: int,
    per_fact: int,
    stream: int,
) -> list[Question]:
    lookup(dict.fromkeys(SPLITS), split, "split of the atlas")
    codes = known_languages(languages)

    # Groups of facts with the same relation and different values, each set of facts once, in random order.
    generator = np.random.default_rng([world.seed, stream + 1])
    by_relation: dict[str, list[Fact]] = collections.defaultdict(list)
    for fact in world.facts:
        by_relation[fact.relation].append(fact)
    seen: set[frozenset[str]] = set()
    groups: dict[str, tuple[Fact, ...]] = {}  # id of the question -> its facts
    for fact in (fact for relation in relations for fact in by_relation[relation]):
        for _ in range(per_fact):
            group = {fact.value: fact}
            others = iter(generator.permutation(len(by_relation[fact.relation])))
            while len(group) < size:
                other = by_relation[fact.relation][next(others)]
                group.setdefault(other.value, other)
            if (ids := frozenset(member.id for member in group.values())) not in seen:
                seen.add(ids)
                facts = tuple(group.values())
                groups["/".join((kind, fact.relation, *(member.subject for member in facts)))] = facts

    splits = split_chains(list(groups.items()), world.splits, world.seed, stream)
    questions = []
    for id, facts in groups.items():
        if splits[id] != split:
            continue
        relation, (subject, _) = facts[0].relation, subject_of(facts[0])
        for language in codes:
            names = [world.name(subject_of(fact), language) for fact in facts]
            values = [world.values(fact, language) for fact in facts]
            if kind == EARLIER:
                text = WORDING[relation][language].format(first=names[0].text, second=names[1].text)
                earlier = names[facts[1].value < facts[0].value]
                answers: tuple[str, ...] = (earlier.text, *earlier.aliases)
            else:
                text = conjunction_text(language, relation, subject, [name.text for name in names])
                first = [value[0] for value in values]
                answers = tuple(dict.fromkeys((", ".join(first), listed(first, language))))
            plan = {}
            for number, name in enumerate(names, start=1):
                plan[f"Q{number}"] = [question_text(language, (relation,), subject, name.text), f"#{number}"]
            extra = {
                "kind": f"{kind}+{relation}",
                "type": "comparison" if kind == EARLIER else "conjunction",
                "subjects": [list(subject_of(fact)) for fact in facts],
                "entities": [name.text for name in names],
                "queries": [query_text(language, relation, name.text) for name in names],
                "native_holds": all(world.holds(fact, language) for fact in facts),
                "plan": plan,
                "sub_answers": {f"#{number}": list(value) for number, value in enumerate(values, 1)},
            }
            questions.append(
                Question(id=id, dataset=DATASET, language=language, text=text, answers=answers, extra=extra)
            )
    return questions


@gin.configurable
@typed
def atlas_comparisons(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    limit: int | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """The atlas's comparison questions of a split; at most `limit`, each in all languages, spread over the split."""
    return spread(comparison_questions(world(), split, languages), limit)


@gin.configurable
@typed
def atlas_conjunctions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    limit: int | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """The atlas's questions over three independent facts; at most `limit`, each in all languages, spread over them."""
    return spread(conjunction_questions(world(), split, languages), limit)

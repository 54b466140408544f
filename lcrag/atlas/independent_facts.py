"""Questions over several independent facts: comparisons of two dates, and conjunctions of three facts.

All facts of a question have one relation and different values. A question is in the most guarded split of its facts; a
seeded share of those with training facts only is held out, as with chains: `held_out` has new combinations of known
facts as well as new facts.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from lcrag.atlas.facts import Fact, Name, subject_of
from lcrag.atlas.splits import known_split, split_chains
from lcrag.atlas.wording import conjunction_text, listed, query_text, question_text, wording
from lcrag.atlas.world import DATASET, World
from lcrag.data.languages import known_languages
from lcrag.data.questions import Question

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


@dataclasses.dataclass(frozen=True)
class _Form:
    """A kind of question over several facts.

    Attributes:
      kind: First part of its questions' `kind`.
      type: Its name in tables.
      relations: Relations of its facts.
      size: Number of facts.
      groups: Questions with a given first fact.
      stream: Number of its stream of random draws; the next one is its own too.
    """

    kind: str
    type: str
    relations: Sequence[str]
    size: int
    groups: int
    stream: int


_COMPARISONS = _Form(EARLIER, "comparison", tuple(WORDING), 2, 4, 4)
_CONJUNCTIONS = _Form(EVERY, "conjunction", CONJOINED, CONJUNCTION_FACTS, 1, 7)


def comparison_questions(world: World, split: str, languages: Iterable[str] | None = None) -> list[Question]:
    """Returns the comparison questions of a split with all language versions adjacent; the earlier date decides.

    Args:
      world: The atlas.
      split: train, validation, held_out or unseen.
      languages: Codes of the languages to ask in; None: all thirteen.

    Returns:
      Questions whose `extra` has `type` ("comparison"), `kind` ("earlier+<relation>"), `subjects` and `entities` (codes
        and names of the two), `queries` (the short query for each), `native_holds`, `plan` and `sub_answers`.

    Raises:
      UserError: unknown split or language.
    """
    return _questions(world, _COMPARISONS, split, languages, _compared)


def conjunction_questions(world: World, split: str, languages: Iterable[str] | None = None) -> list[Question]:
    """Returns the questions of a split for the same relation of three entities, all language versions adjacent.

    The answer is the list of the three values in the question's order, separated by commas, or as the language writes
    lists. Arguments, result (`type` "conjunction", `kind` "every+<relation>") and errors as for `comparison_questions`.
    """
    return _questions(world, _CONJUNCTIONS, split, languages, _conjoined)


_Asked = Callable[[World, Sequence[Fact], Sequence[Name], str], tuple[str, tuple[str, ...]]]


def _questions(world: World, form: _Form, split: str, languages: Iterable[str] | None, asked: _Asked) -> list[Question]:
    known_split(split)
    codes = known_languages(languages)
    groups = {_id(form, group): group for group in _groups(world, form)}
    splits = split_chains(list(groups.items()), world.splits, world.seed, form.stream)
    return [
        _question(world, form, id, group, language, asked)
        for id, group in groups.items()
        if splits[id] == split
        for language in codes
    ]


def _groups(world: World, form: _Form) -> Iterator[tuple[Fact, ...]]:
    """Yields groups of facts with the same relation and different values, each set of facts once, in random order."""
    generator = np.random.default_rng([world.seed, form.stream + 1])
    by_relation: dict[str, list[Fact]] = collections.defaultdict(list)
    for fact in world.facts:
        by_relation[fact.relation].append(fact)
    seen: set[frozenset[str]] = set()
    for fact in (fact for relation in form.relations for fact in by_relation[relation]):
        for _ in range(form.groups):
            group = {fact.value: fact}
            others = iter(generator.permutation(len(by_relation[fact.relation])))
            while len(group) < form.size:
                other = by_relation[fact.relation][next(others)]
                group.setdefault(other.value, other)
            if (ids := frozenset(each.id for each in group.values())) not in seen:
                seen.add(ids)
                yield tuple(group.values())


def _id(form: _Form, group: Sequence[Fact]) -> str:
    return "/".join((form.kind, group[0].relation, *(fact.subject for fact in group)))


def _compared(world: World, group: Sequence[Fact], names: Sequence[Name], language: str) -> tuple[str, tuple[str, ...]]:
    first, second = (name.text for name in names)
    earlier = min((0, 1), key=lambda place: group[place].value)
    text = WORDING[group[0].relation][language].format(first=first, second=second)
    return text, (names[earlier].text, *names[earlier].aliases)


def _conjoined(
    world: World, group: Sequence[Fact], names: Sequence[Name], language: str
) -> tuple[str, tuple[str, ...]]:
    values = [world.values(fact, language)[0] for fact in group]
    kind, _ = subject_of(group[0])
    text = conjunction_text(language, group[0].relation, kind, [name.text for name in names])
    return text, tuple(dict.fromkeys((", ".join(values), listed(values, language))))


def _question(world: World, form: _Form, id: str, group: Sequence[Fact], language: str, asked: _Asked) -> Question:
    relation, (kind, _) = group[0].relation, subject_of(group[0])
    names = [world.name(subject_of(fact), language) for fact in group]
    text, answers = asked(world, group, names, language)
    return Question(
        id=id,
        dataset=DATASET,
        language=language,
        text=text,
        answers=answers,
        extra={
            "kind": f"{form.kind}+{relation}",
            "type": form.type,
            "subjects": [list(subject_of(fact)) for fact in group],
            "entities": [name.text for name in names],
            "queries": [query_text(language, relation, name.text) for name in names],
            "native_holds": all(world.holds(fact, language) for fact in group),
            "plan": {
                f"Q{number}": [question_text(language, (relation,), kind, name.text), f"#{number}"]
                for number, name in enumerate(names, start=1)
            },
            "sub_answers": {f"#{number}": list(world.values(fact, language)) for number, fact in enumerate(group, 1)},
        },
    )

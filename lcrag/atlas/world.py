"""The atlas: a small real world of facts with questions and passages in thirteen languages.

A split is a set of *facts* (entity x relation). A fact outside `train` is not asked in any language in training, its
passages are not used to train the encoder or tokenizer, and no training question over several facts depends on it. The
entity of a held-out or validation fact has at least two training facts; an entity of the split `unseen` occurs in no
training fact, neither as subject nor as value. Literal values may occur in several facts (many countries share a
currency code).

Every entity has a home: the language, of the thirteen, that is spoken there. Its collection holds nearly all facts
about the entity, and holds them right. One draw for each fact decides whether *all* other collections share one stale
or wrong value, so agreement between languages does not show that a value is right; the year of an entry tells instead.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import gin
import numpy as np

from lcrag.atlas.facts import (
    COMPOSITIONS,
    KINDS,
    RELATIONS,
    Fact,
    Name,
    conjunction_text,
    listed,
    names_of,
    query_text,
    question_text,
    read_facts,
    section_of,
    sentence_text,
    shipped,
    subject_of,
    wording,
    written,
)
from lcrag.data.questions import LCRL_LANGUAGES, Question, coupled, known_languages
from lcrag.errors import Count, lookup, typed
from lcrag.files import cache_folder, expanded, resolved_folder
from lcrag.retrieval import Collections
from lcrag.retrieval.collections import KEPT, kept_collections
from lcrag.retrieval.encoder import configured_encoder
from lcrag.retrieval.passages import Passage

DATASET = "atlas"
SHIPPED_TOKENIZER = pathlib.Path(__file__).parent / "weights" / "tokenizer"
COUNTERFACTUAL_SHARE = 0.7

SPLITS = ("train", "validation", "held_out", "unseen")
_HELD_OUT_SHARE, _VALIDATION_SHARE, _UNSEEN_SHARE = 0.09, 0.04, 0.08
_CHAIN_VALIDATION, _CHAIN_HELD_OUT = 0.05, 0.15
_KEPT_TRAINING_FACTS = 2  # minimum for an entity with a held-out fact, to learn its names from

Item = TypeVar("Item")
HOME_SHARE, ENGLISH_SHARE, FOREIGN_SHARE = 0.95, 0.5, 0.38  # of the sections about an entity
STATED_SHARE = 0.93  # of the facts of a section
STALE_SHARE = 0.3
DATED_SHARE = 0.5  # of the entries that are not stale
STALE_YEARS, PRESENT_YEARS = (1985, 2005), (2018, 2026)


@dataclasses.dataclass(frozen=True)
class Chain:
    """A question over facts of which each value is the next one's subject; a single fact is the shortest chain."""

    facts: tuple[Fact, ...]

    @functools.cached_property
    def id(self) -> str:
        return f"{'+'.join(self.relations)}/{self.facts[0].subject}"

    @property
    def relations(self) -> tuple[str, ...]:
        return tuple(fact.relation for fact in self.facts)

    @property
    def last(self) -> Fact:
        return self.facts[-1]


@dataclasses.dataclass(frozen=True)
class Entry:
    """The value that a collection gives for a fact, and the year of which it speaks; None: undated."""

    value: str
    year: int | None


Holdings = Mapping[str, Mapping[str, Entry]]  # language -> id of a fact -> what its collection says


@dataclasses.dataclass(frozen=True)
class World:
    """Facts, their splits, and what each collection says of them. Created by `build_world`.

    Chains are all questions over two to four facts.
    """

    seed: int  # of the splits and holdings
    facts: tuple[Fact, ...]
    chains: tuple[Chain, ...]
    splits: Mapping[str, str]  # id of a fact or chain -> split; see the module
    homes: Mapping[tuple[str, str], str]  # entity (kind, code) -> its home language
    holdings: Holdings  # what each language's collection says of each fact that it holds

    @functools.cached_property
    def last_facts(self) -> Mapping[str, Fact]:
        """Question id -> the fact whose value is the answer."""
        return {fact.id: fact for fact in self.facts} | {chain.id: chain.last for chain in self.chains}

    @functools.cached_property
    def _every_chain(self) -> tuple[Chain, ...]:
        return (*(Chain((fact,)) for fact in self.facts), *self.chains)

    @functools.cached_property
    def training_facts(self) -> list[Fact]:
        return [fact for fact in self.facts if self.splits[fact.id] == "train"]

    def questions(
        self,
        split: str,
        languages: Iterable[str] | None = None,
        hops: Sequence[int] = (1,),
        copyable: bool | None = None,
        limit: int | None = None,
    ) -> list[Question]:
        """Returns the questions of a split with all language versions adjacent, in the order of `languages`.

        Args:
          split: train, validation, held_out or unseen.
          hops: Numbers of facts, 1 to 4.
          copyable: Only answers that are the same in every language (True) or not (False).
          limit: At most this many questions, each in all languages, spread evenly over the split.
        """
        lookup(dict.fromkeys(SPLITS), split, "split of the atlas")
        codes = known_languages(languages)
        chains = [
            chain
            for chain in self._every_chain
            if len(chain.facts) in hops
            and self.splits[chain.id] == split
            and copyable in (None, RELATIONS[chain.last.relation].copyable)
        ]
        return [self.question(chain, language) for chain in spread(chains, limit) for language in codes]

    def question(self, chain: Chain, language: str) -> Question:
        """Returns the question over a chain of facts in one language.

        That over several facts has a golden plan in R-Search's notation, in which `#1` is the answer to `Q1`.
        """
        subject, last = subject_of(chain.facts[0]), chain.last
        name = self.name(subject, language).text
        extra = {
            "kind": "+".join(chain.relations),
            "copyable": RELATIONS[last.relation].copyable,
            "hops": len(chain.facts),
            "entity": name,
            "subject": list(subject),
            "query": query_text(language, chain.facts[0].relation, name),
            "home": self.homes[subject_of(last)],
            "native_holds": all(self.holds(fact, language) for fact in chain.facts),
        }
        if len(chain.facts) > 1:
            plan, answers, asked_of = {}, {}, name
            for number, fact in enumerate(chain.facts, 1):
                text = question_text(language, (fact.relation,), subject_of(fact)[0], asked_of)
                plan[f"Q{number}"] = [text, asked_of := f"#{number}"]
                answers[f"#{number}"] = list(self.values(fact, language))
            extra |= {"plan": plan, "sub_answers": answers}
        text = question_text(language, chain.relations, subject[0], name)
        return Question(
            id=chain.id, dataset=DATASET, language=language, text=text, answers=self.values(last, language), extra=extra
        )

    def holds(self, fact: Fact, language: str) -> bool:
        entry = self.holdings[language].get(fact.id)
        return entry is not None and entry.value == fact.value

    def name(self, entity: tuple[str, str], language: str) -> Name:
        kind, code = entity
        return names_of(kind)[code][language]

    def often_counterfactual(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Returns the fact, with probability `COUNTERFACTUAL_SHARE` with a value that only reading reveals."""
        if generator.random() >= COUNTERFACTUAL_SHARE:
            return fact
        others = [other for other in self.training_facts if other.relation == fact.relation]
        return dataclasses.replace(fact, value=others[int(generator.integers(len(others)))].value)

    def values(self, fact: Fact, language: str) -> tuple[str, ...]:
        """Returns the fact's value as the language's passages write it, then its aliases."""
        return written(RELATIONS[fact.relation].value, fact.value, language)

    def passages(self, language: str) -> list[Passage]:
        """Returns the language's collection: a passage for every section about an entity."""
        known_languages((language,))
        return [self.passage(number, language) for number in self._sections[language]]

    def passage(self, number: str, language: str, told: Fact | None = None) -> Passage:
        """Returns a passage by its id without the language; `told` is a fact with another value than the right one."""
        statements = self._sections[language][number]
        if told is not None:
            statements = [
                (fact, Entry(told.value, entry.year) if fact.id == told.id and entry.value == fact.value else entry)
                for fact, entry in statements
            ]
        return self.written_passage(f"{language}/{number}", language, statements)

    def written_passage(self, id: str, language: str, statements: Sequence[tuple[Fact, Entry]]) -> Passage:
        """Returns a passage about one entity that makes some statements."""
        sentences = []
        for fact, entry in statements:
            value, *_ = written(RELATIONS[fact.relation].value, entry.value, language)
            sentences.append(sentence_text(language, fact.relation, value, entry.year))
        return Passage(id=id, title=self.name(subject_of(statements[0][0]), language).text, text="; ".join(sentences))

    @functools.cached_property
    def _sections(self) -> Mapping[str, Mapping[str, Sequence[tuple[Fact, Entry]]]]:
        """Language -> id of a passage -> its facts and what the collection says of them."""
        sections: dict[str, dict[str, list]] = {code: collections.defaultdict(list) for code in self.holdings}
        for language, held in self.holdings.items():
            for fact in self.facts:
                if entry := held.get(fact.id):
                    sections[language][section_of(fact)].append((fact, entry))
        return sections

    @functools.cached_property
    def fingerprint(self) -> str:
        """A short hash of all questions and passages."""
        digest = hashlib.sha256()
        for chain in self._every_chain:
            for language in LCRL_LANGUAGES:
                row = vars(self.question(chain, language)) | {"split": self.splits[chain.id]}
                digest.update(json.dumps(row, sort_keys=True).encode())
        for language in LCRL_LANGUAGES:
            for passage in self.passages(language):
                digest.update(f"{passage.id}\t{passage.title}\t{passage.text}\n".encode())
        return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=4)
def build_world(seed: int = 0, complete: tuple[str, ...] = ()) -> World:
    """Builds the atlas, for equal arguments the same; collections of `complete` languages hold every fact right."""
    known_languages(complete)
    facts = tuple(read_facts())
    by_id = {fact.id: fact for fact in facts}
    chains = []
    for first, *rest in COMPOSITIONS:
        for fact in facts:
            chain = (fact,) if fact.relation == first else ()
            for relation in rest:  # the value of each fact is the subject of the next
                later = by_id.get(f"{relation}/{chain[-1].value}") if chain else None
                chain = (*chain, later) if later else ()
            # Four facts are about four entities, and not about English: its country would be in half of them.
            entities = set(map(subject_of, chain))
            if chain and (len(chain) < 4 or (len(entities) == 4 and ("language", "en") not in entities)):
                chains.append(Chain(chain))
    splits = split_facts(facts, seed)
    splits |= split_chains([(chain.id, chain.facts) for chain in chains], splits, seed)
    homes = entity_homes(facts)
    holdings = draw_holdings(facts, homes, seed, complete)
    return World(seed=seed, facts=facts, chains=tuple(chains), splits=splits, homes=homes, holdings=holdings)


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


def draw_holdings(
    facts: Sequence[Fact], homes: Mapping[tuple[str, str], str], seed: int, complete: Sequence[str] = ()
) -> Holdings:
    """Draws what every collection says of every fact; a fact that no collection would hold is added to its home.

    Args:
      homes: Entity (kind, code) -> its home language.
      complete: Languages whose collections hold every fact right. The others hold what they would hold without them.
    """
    generator = np.random.default_rng([seed, 3])
    values = collections.defaultdict(list)
    for fact in facts:
        values[fact.relation].append(fact.value)
    holdings: dict[str, dict[str, Entry]] = {language: {} for language in LCRL_LANGUAGES}
    sections: dict[str, np.ndarray] = {}  # which languages have a section
    for fact in facts:
        home, section = homes[subject_of(fact)], section_of(fact)
        if section not in sections:
            shares = [ENGLISH_SHARE if language == "en" else FOREIGN_SHARE for language in LCRL_LANGUAGES]
            shares[LCRL_LANGUAGES.index(home)] = HOME_SHARE
            sections[section] = generator.random(len(shares)) < shares
        held = sections[section] & (generator.random(len(LCRL_LANGUAGES)) < STATED_SHARE)
        stale = None
        if generator.random() < STALE_SHARE:  # the former value, or another fact's value of the same relation
            others = [value for value in dict.fromkeys(values[fact.relation]) if value != fact.value]
            if fact.former is not None and fact.former != fact.value:
                stale = fact.former
            elif others:
                stale = others[int(generator.integers(len(others)))]
        for language, holds in zip(LCRL_LANGUAGES, held, strict=True):
            value = fact.value if stale is None or language == home or language in complete else stale
            dated = generator.random() < DATED_SHARE
            year = int(generator.integers(*(PRESENT_YEARS if value == fact.value else STALE_YEARS)))
            # Every draw is made whether or not the entry is held, so `complete` changes no other collection.
            if holds or language in complete or (language == home and not held.any()):
                holdings[language][fact.id] = Entry(value, year if dated or value != fact.value else None)
    return holdings


def entity_homes(facts: Sequence[Fact]) -> dict[tuple[str, str], str]:
    """Returns entity -> home: a currency's is that of its issuer, a language's its own or that of its main country."""
    by_country: Mapping[str, str] = shipped()["countries"]
    homes = {("country", country): home for country, home in by_country.items()}
    issuers = {fact.subject: fact.value for fact in facts if fact.relation == "country_of_currency"}
    users = {fact.value: fact.subject for fact in reversed(facts) if fact.relation == "currency"}
    mains = {fact.subject: fact.value for fact in facts if fact.relation == "country_of_language"}
    for fact in facts:
        code = fact.subject
        if fact.relation.endswith("_of_currency"):
            homes["currency", code] = by_country.get(issuers.get(code) or users.get(code, ""), "en")
        elif fact.relation.endswith("_of_language"):
            homes["language", code] = code if code in LCRL_LANGUAGES else by_country.get(mains.get(code, ""), "en")
    return homes


@gin.configurable
@typed
def atlas_world(seed: int = 0, complete: Sequence[str] = ()) -> World:
    """The embedded world; arguments as of `build_world`."""
    return build_world(seed, tuple(complete))


@gin.configurable
@typed
def atlas_questions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    hops: Sequence[Literal[1, 2, 3, 4]] = (1,),
    copyable: bool | None = None,
    limit: Count | None = None,
) -> list[Question]:
    """The atlas's questions of a split, every language version of a question together; see `World.questions`."""
    return atlas_world().questions(split, languages, hops, copyable, limit)


def spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Returns at most `limit` items, evenly spaced; None: all."""
    count = len(items) if limit is None else min(limit, len(items))
    return [items[index * len(items) // count] for index in range(count)]


@gin.configurable
@typed
def atlas_collections(folder: str | None = None, encoder: str = "atlas/encoder") -> Collections:
    """Opens the atlas's collections, one per language; they are built on first use and kept in the user's cache.

    Args:
      folder: Folder of the collections; None: a folder of the cache, named by the fingerprints of the world and the
        encoder.
      encoder: Folder of the encoder, or the name of one that ships with the package.
    """
    atlas, opened = atlas_world(), configured_encoder(resolved_folder(encoder))
    root = expanded(folder) if folder else cache_folder() / KEPT / f"{atlas.fingerprint}-{opened.fingerprint()}"
    return kept_collections(root, opened, LCRL_LANGUAGES, atlas.passages)


# --- Questions over several independent facts: comparisons of two dates, and conjunctions of three facts ---

# All facts of a question have one relation and different values; splits are as of chains.

EARLIER, EVERY = "earlier", "every"
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


@gin.configurable
@typed
def atlas_comparisons(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    limit: Count | None = None,
) -> list[Question]:
    """The atlas's comparison questions of a split, all language versions adjacent; the earlier date decides.

    `extra` has `type` ("comparison"), `kind` ("earlier+<relation>"), `subjects` and `entities` (codes and names of the
    two), `queries` (the short query for each), `native_holds`, `plan` and `sub_answers`. There are at most `limit`,
    each in all languages, spread over the split.
    """
    return _independent(atlas_world(), split, languages, limit, EARLIER, tuple(WORDING), size=2, per_fact=4, stream=4)


@gin.configurable
@typed
def atlas_conjunctions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    limit: Count | None = None,
) -> list[Question]:
    """The atlas's questions for the same relation of three entities; arguments as of `atlas_comparisons`.

    The answer is the list of the three values, separated by commas, or as the language writes lists; `extra` (`type`
    "conjunction", `kind` "every+<relation>") is as there.
    """
    return _independent(atlas_world(), split, languages, limit, EVERY, CONJOINED, size=3, per_fact=1, stream=7)


def _independent(
    world: World,
    split: str,
    languages: Iterable[str],
    limit: int | None,
    kind: str,
    relations: Sequence[str],
    *,
    size: int,
    per_fact: int,
    stream: int,
) -> list[Question]:
    """Returns questions over `size` independent facts; `per_fact` are drawn for each fact, from `stream`."""
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
    return list(itertools.chain(*spread(coupled(questions), limit)))

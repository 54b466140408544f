"""The atlas: a small real world of facts with questions and passages in thirteen languages."""

import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import gin
import numpy as np

from lcrag.atlas.facts import COMPOSITIONS, RELATIONS, Fact, Name, names_of, read_facts, section_of, subject_of, written
from lcrag.atlas.holdings import (
    DATED_SHARE,
    PRESENT_YEARS,
    STALE_YEARS,
    STATED_SHARE,
    Entry,
    Holdings,
    draw_holdings,
    entity_homes,
)
from lcrag.atlas.splits import known_split, split_chains, split_facts
from lcrag.atlas.wording import query_text, question_text, sentence_text
from lcrag.data.batches import coupled
from lcrag.data.languages import LCRL_LANGUAGES, known_languages
from lcrag.data.questions import Question
from lcrag.errors import UserError, typed
from lcrag.retrieval.passages import Passage

DATASET = "atlas"
COUNTERFACTUAL_SHARE = 0.7


@dataclasses.dataclass(frozen=True)
class Chain:
    """A question over facts of which each value is the next one's subject; a single fact is the shortest chain."""

    facts: tuple[Fact, ...]

    @property
    def id(self) -> str:
        return f"{'+'.join(self.relations)}/{self.facts[0].subject}"

    @property
    def relations(self) -> tuple[str, ...]:
        return tuple(fact.relation for fact in self.facts)

    @property
    def last(self) -> Fact:
        return self.facts[-1]


@dataclasses.dataclass(frozen=True)
class World:
    """Facts, their splits, and what each collection says of them. Created by `build_world`.

    Attributes:
      seed: Seed of the splits and holdings.
      facts: All facts.
      chains: All questions over two to four facts.
      splits: Id of a fact or chain -> split; see `lcrag.atlas.splits`.
      homes: Entity (kind, code) -> its home language; see `lcrag.atlas.holdings`.
      holdings: What each language's collection says of each fact that it holds.
    """

    seed: int
    facts: tuple[Fact, ...]
    chains: tuple[Chain, ...]
    splits: Mapping[str, str]
    homes: Mapping[tuple[str, str], str]
    holdings: Holdings

    @functools.cached_property
    def last_facts(self) -> Mapping[str, Fact]:
        """Question id -> the fact whose value is the answer."""
        return {fact.id: fact for fact in self.facts} | {chain.id: chain.last for chain in self.chains}

    @functools.cached_property
    def training_facts(self) -> list[Fact]:
        return [fact for fact in self.facts if self.splits[fact.id] == "train"]

    def questions(
        self,
        split: str,
        languages: Iterable[str] | None = None,
        hops: Sequence[int] = (1,),
        copyable: bool | None = None,
    ) -> list[Question]:
        """Returns the questions of a split with all language versions adjacent, in the order of `languages`.

        Args:
          split: train, validation, held_out or unseen.
          languages: Codes of the languages to ask in; None: all thirteen.
          hops: Numbers of facts, 1 to 4.
          copyable: Only answers that are the same in every language (True) or not (False).

        Raises:
          UserError: unknown split or language.
        """
        known_split(split)
        codes = known_languages(languages)
        return [
            self.question(chain, language)
            for chain in (*(Chain((fact,)) for fact in self.facts), *self.chains)
            if len(chain.facts) in hops
            and self.splits[chain.id] == split
            and copyable in (None, RELATIONS[chain.last.relation].copyable)
            for language in codes
        ]

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
        """Returns whether the language's collection holds the fact with its right value."""
        entry = self.holdings[language].get(fact.id)
        return entry is not None and entry.value == fact.value

    def name(self, entity: tuple[str, str], language: str) -> Name:
        """Returns the name of an entity (kind, code) in a language."""
        kind, code = entity
        return names_of(kind)[code][language]

    def values(self, fact: Fact, language: str) -> tuple[str, ...]:
        """Returns the fact's value as the language's passages write it, then its aliases."""
        return written(RELATIONS[fact.relation].value, fact.value, language)

    def passages(self, language: str) -> list[Passage]:
        """Returns the language's collection: a passage for every section about an entity.

        Raises:
          UserError: unknown language.
        """
        known_languages((language,))
        return [self.passage(number, language) for number in self._sections[language]]

    def passage(self, number: str, language: str, told: Fact | None = None) -> Passage:
        """Returns a passage by its id, without the language.

        Args:
          number: Id without the language.
          language: Its language.
          told: A fact with another value, which replaces the right one where the passage gives it.
        """
        statements = self._sections[language][number]
        if told is not None:
            statements = [
                (fact, Entry(told.value, entry.year))
                if told.id == fact.id and entry.value == fact.value
                else (fact, entry)
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

    def fingerprint(self) -> str:
        """Returns a short hash of all questions and passages."""
        digest = hashlib.sha256()
        for chain in (*(Chain((fact,)) for fact in self.facts), *self.chains):
            for language in LCRL_LANGUAGES:
                row = vars(self.question(chain, language)) | {"split": self.splits[chain.id]}
                digest.update(json.dumps(row, sort_keys=True).encode())
        for language in LCRL_LANGUAGES:
            for passage in self.passages(language):
                digest.update(f"{passage.id}\t{passage.title}\t{passage.text}\n".encode())
        return digest.hexdigest()[:16]


@functools.lru_cache(maxsize=4)
def build_world(seed: int = 0, complete: tuple[str, ...] = ()) -> World:
    """Builds the atlas; the same arguments and Babel version give the same world.

    Args:
      seed: Seed of the splits and of what the collections hold.
      complete: Languages whose collections hold every fact right, for methods that search one collection only.

    Raises:
      UserError: unknown language.
    """
    known_languages(complete)
    facts = tuple(read_facts())
    splits = split_facts(facts, seed)
    chains = tuple(map(Chain, compose(facts)))
    splits |= split_chains([(chain.id, chain.facts) for chain in chains], splits, seed)
    homes = entity_homes(facts)
    holdings = draw_holdings(facts, homes, seed, complete)
    return World(seed=seed, facts=facts, chains=chains, splits=splits, homes=homes, holdings=holdings)


def compose(facts: Sequence[Fact]) -> Iterator[tuple[Fact, ...]]:
    """Yields the facts of every chain: the value of each is the subject of the next.

    Chains of four facts are about four entities, and not about English: its country would be in half of them.
    """
    by_id = {fact.id: fact for fact in facts}
    for first, *rest in COMPOSITIONS:
        for fact in facts:
            chain = (fact,) if fact.relation == first else ()
            for relation in rest:
                later = by_id.get(f"{relation}/{chain[-1].value}") if chain else None
                chain = (*chain, later) if later else ()
            entities = {subject_of(each) for each in chain}
            if chain and (len(chain) < 4 or (len(entities) == 4 and ("language", "en") not in entities)):
                yield chain


def render_passage(passage: Passage) -> str:
    """Returns title and text in one line, as in the atlas's observations (which add a leading space)."""
    return f"{passage.title}: {passage.text}"


class FactSampler:
    """Samples training facts of a world, and passages about them, for demonstrations."""

    def __init__(self, world: World):
        self._world = world
        self._facts = world.training_facts
        self._by_section: dict[str, list[Fact]] = collections.defaultdict(list)
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

        It never states the fact `hidden`.
        """
        section = section_of(fact)
        told = [fact if other.id == fact.id else other for other in self._by_section[section]]
        told = [other for other in told if hidden is None or other.id != hidden.id]
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


def _one_of(generator: np.random.Generator, facts: Sequence[Fact]) -> Fact:
    return facts[int(generator.integers(len(facts)))]


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
    limit: int | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """The atlas's questions of a split, every language version of a question together.

    Args:
      split: train, validation, held_out or unseen.
      languages: Languages to ask in.
      hops: Numbers of facts that a question needs.
      copyable: Only answers used as they are in every language (True), only translated ones (False), or both.
      limit: At most this many questions, each in all languages, spread evenly over the split.
      world: Builds the atlas.
    """
    return spread(world().questions(split, languages, hops, copyable), limit)


def spread(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """Returns at most `limit` questions, each in all its languages, evenly spaced; None: all."""
    if limit is not None and limit < 1:
        raise UserError(f"a limit of {limit} leaves no questions: give 1 or more, or None for all")
    table = coupled(questions)
    count = min(len(table) if limit is None else limit, len(table))
    chosen = (table[index * len(table) // count] for index in range(count))
    return [question for versions in chosen for question in versions]

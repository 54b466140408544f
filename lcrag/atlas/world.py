"""The atlas: a small real world of facts with questions and passages in thirteen languages."""

import collections
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lcrag.atlas.facts import COMPOSITIONS, RELATIONS, Fact, Name, names_of, read_facts, section_of, subject_of, written
from lcrag.atlas.holdings import Entry, Holdings, draw_holdings, entity_homes
from lcrag.atlas.splits import known_split, split_chains, split_facts
from lcrag.atlas.wording import query_text, question_text, sentence_text
from lcrag.data.languages import LCRL_LANGUAGES, known_languages
from lcrag.data.questions import Question
from lcrag.retrieval.passages import Passage

DATASET = "atlas"


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
        chains = [*(Chain((fact,)) for fact in self.facts), *self.chains]
        return [
            self.question(chain, language)
            for chain in chains
            if len(chain.facts) in hops
            and self.splits[chain.id] == split
            and copyable in (None, RELATIONS[chain.last.relation].copyable)
            for language in codes
        ]

    def question(self, chain: Chain, language: str) -> Question:
        """Returns the question over a chain of facts in one language."""
        first, last = chain.facts[0], chain.last
        kind, _ = subject_of(first)
        name = self.name(subject_of(first), language).text
        extra = {
            "kind": "+".join(chain.relations),
            "copyable": RELATIONS[last.relation].copyable,
            "hops": len(chain.facts),
            "entity": name,
            "subject": list(subject_of(first)),
            "query": query_text(language, first.relation, name),
            "home": self.homes[subject_of(last)],
            "native_holds": all(self.holds(fact, language) for fact in chain.facts),
        }
        if len(chain.facts) > 1:
            extra |= self._plan(chain, name, language)
        return Question(
            id=chain.id,
            dataset=DATASET,
            language=language,
            text=question_text(language, chain.relations, kind, name),
            answers=self.values(last, language),
            extra=extra,
        )

    def holds(self, fact: Fact, language: str) -> bool:
        """Returns whether the language's collection holds the fact with its right value."""
        entry = self.holdings[language].get(fact.id)
        return entry is not None and entry.value == fact.value

    def _plan(self, chain: Chain, name: str, language: str) -> dict:
        """Returns the golden plan in R-Search's notation, and its sub-answers."""
        numbers = range(1, len(chain.facts) + 1)
        subjects = (name, *(f"#{number}" for number in numbers))
        plan = {
            f"Q{number}": [question_text(language, (fact.relation,), subject_of(fact)[0], subject), f"#{number}"]
            for number, fact, subject in zip(numbers, chain.facts, subjects, strict=False)
        }
        answers = {f"#{number}": list(self.values(fact, language)) for number, fact in enumerate(chain.facts, 1)}
        return {"plan": plan, "sub_answers": answers}

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
        return [self.passage(number, language) for number in self._sections(language)]

    def passage(self, number: str, language: str, told: Fact | None = None) -> Passage:
        """Returns a passage by its id in a language.

        Args:
          number: Id without the language.
          language: Its language.
          told: A fact with another value, which replaces the right one where the passage gives it.
        """
        statements = self._sections(language)[number]
        return self.written_passage(
            f"{language}/{number}",
            language,
            [
                (fact, dataclasses.replace(entry, value=told.value))
                if told is not None and told.id == fact.id and entry.value == fact.value
                else (fact, entry)
                for fact, entry in statements
            ],
        )

    def written_passage(self, id: str, language: str, statements: Sequence[tuple[Fact, Entry]]) -> Passage:
        """Returns a passage about one entity that makes some statements."""
        texts = (
            sentence_text(
                language, fact.relation, written(RELATIONS[fact.relation].value, entry.value, language)[0], entry.year
            )
            for fact, entry in statements
        )
        return Passage(id=id, title=self.name(subject_of(statements[0][0]), language).text, text="; ".join(texts))

    @functools.cached_property
    def _all_sections(self) -> Mapping[str, Mapping[str, Sequence[tuple[Fact, Entry]]]]:
        return {language: self._sections_of(language) for language in self.holdings}

    def _sections(self, language: str) -> Mapping[str, Sequence[tuple[Fact, Entry]]]:
        return self._all_sections[language]

    def _sections_of(self, language: str) -> Mapping[str, Sequence[tuple[Fact, Entry]]]:
        """Returns id of a passage -> its facts and what the collection says of them."""
        sections: dict[str, list[tuple[Fact, Entry]]] = collections.defaultdict(list)
        for fact in self.facts:
            if entry := self.holdings[language].get(fact.id):
                sections[section_of(fact)].append((fact, entry))
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
            chain: list[Fact | None] = [fact] if fact.relation == first else [None]
            for relation in rest:
                chain.append(chain[-1] and by_id.get(f"{relation}/{chain[-1].value}"))
            found = tuple(each for each in chain if each)
            if None not in chain and (len(found) < 4 or _leads_on(found)):
                yield found


def _leads_on(chain: Sequence[Fact]) -> bool:
    entities = {subject_of(fact) for fact in chain}
    return len(entities) == len(chain) and ("language", "en") not in entities


def render_passage(passage: Passage) -> str:
    """Returns title and text in one line, as in the atlas's observations (which add a leading space)."""
    return f"{passage.title}: {passage.text}"

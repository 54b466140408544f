"""A rule-based teacher that plays LcRL's episode honestly: it knows words and names, but no facts.

It reads the question's kind and subject, the labels and the names of all languages (a dictionary), and what the
searches have shown so far. It never sees the golden answers: an outdated passage makes it answer wrongly.
"""

import collections
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from lcrag.atlas.comparisons import KIND
from lcrag.atlas.facts import KINDS, RELATIONS, Fact, names_of
from lcrag.atlas.wording import UNKNOWN, label, query_text
from lcrag.atlas.world import World
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import Question

Memory = Mapping[tuple[str, str], str]  # (relation, subject) -> value
_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
ATLAS_LINE = r" ?(?P<title>[^:\n]+): (?P<text>[^\n]+)"
SEARCH_R1_LINE = r"Doc \d+\(Title: (?P<title>[^)\n]+)\) (?P<text>[^\n]+)"


@dataclasses.dataclass(frozen=True)
class Reading:
    """What one line of a passage says.

    Attributes:
      relation: Key of the relation.
      subject: Code of the entity.
      value: The value as written.
      languages: Languages in which the line can be read so.
    """

    relation: str
    subject: str
    value: str
    languages: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Oracle:
    """Plays an episode of `hierarchical_search`, one text at a time.

    Attributes:
      budget: Searches it may make; then it answers as well as it can.
      line: Regular expression with the groups `title` and `text` of one passage in an information block.
      translate: Whether a translated value that was read in another language is answered in the question's own
        (True) or as it was read (False).
    """

    budget: int = 3
    line: str = ATLAS_LINE
    translate: bool = True

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """What the policy should write next.

        Args:
          question: An atlas question.
          turns: (by, text) of the turns so far, the opening prompt included or not; by is "policy" or "environment".
        """
        readings = self.readings(text for by, text in turns if by == "environment")
        wanted = question.extra.get("answer_language", question.language)
        relation, *rest = question.extra["kind"].split("+")
        subject, name = question.extra["subject"][1], question.extra["entity"]
        value = self.most_read(readings, relation, subject, question.language if rest else wanted)
        if rest and value is not None:
            bridge = entity_called(RELATIONS[relation].value, value, (question.language, *LCRL_LANGUAGES))
            relation, subject, name = rest[0], bridge, value
            value = self.most_read(readings, relation, subject, wanted)
        if value is None and sum(by == "policy" and "</search>" in text for by, text in turns) < self.budget:
            return f"<search> {query_text(question.language, relation, name)}</search>"
        if value is None:
            value = self._guess(readings, rest[0] if rest else relation, wanted)
        return f"<answer> {value}</answer>"

    def readings(self, texts: Iterable[str]) -> list[Reading]:
        """Every line of the information blocks in `texts` that can be read as a fact, in order."""
        return [
            reading
            for text in texts
            for block in _INFORMATION.findall(text)
            for match in re.finditer(self.line, block)
            for reading in _read(match["title"].strip(), match["text"].strip())
        ]

    def most_read(self, readings: Sequence[Reading], relation: str, subject: str | None, language: str) -> str | None:
        """The value that most passages on the fact give, the earliest of those that tie; None if there is none."""
        about = (row for row in readings if row.relation == relation and row.subject == subject)
        counts = collections.Counter(self._in_language(row, language) for row in about)
        return max(counts, key=counts.__getitem__, default=None)

    def _guess(self, readings: Sequence[Reading], relation: str, language: str) -> str:
        """The first value of the right kind among the passages, though it is another entity's; else "unknown"."""
        found = (self._in_language(row, language) for row in readings if row.relation == relation)
        return next(found, UNKNOWN[language])

    def _in_language(self, reading: Reading, language: str) -> str:
        kind = RELATIONS[reading.relation].value
        if kind == "literal" or not self.translate or language in reading.languages:
            return reading.value
        code = entity_called(kind, reading.value, reading.languages)
        return names_of(kind)[code][language].text if code else reading.value


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A fact that the answer needs, and how its subject is called."""

    relation: str
    subject: str
    name: str


@dataclasses.dataclass(frozen=True)
class Known:
    """What can be said about a question after some searches."""

    question: Question
    reader: Oracle
    readings: Sequence[Reading]

    def value(self, wanted: Wanted) -> str | None:
        """The value of a fact as the passages give it, in the question's language; None if none does."""
        return self.reader.most_read(self.readings, wanted.relation, wanted.subject, self.question.language)

    @property
    def given(self) -> list[Wanted]:
        """The facts that the question itself names."""
        first, *rest = self.question.extra["kind"].split("+")
        if first == KIND:
            extra = self.question.extra
            return [
                Wanted(rest[0], code, name)
                for (_, code), name in zip(extra["subjects"], extra["entities"], strict=True)
            ]
        return [Wanted(first, self.question.extra["subject"][1], self.question.extra["entity"])]

    @property
    def second_relation(self) -> str | None:
        """The relation of a two-hop question's second fact."""
        first, *rest = self.question.extra["kind"].split("+")
        return rest[0] if rest and first != KIND else None

    def path(self, memory: Memory, *, guess: bool, asked: Iterable[str]) -> list[Wanted]:
        """The facts that the answer needs, as far as they can be named.

        Args:
          memory: What is remembered of the world.
          guess: Name the second fact by what is remembered of the first one before that is read.
          asked: Queries so far: a first fact that was searched for in vain is remembered in any case.
        """
        if self.second_relation is None:
            return self.given
        [first] = self.given
        vain = query_text(self.question.language, first.relation, first.name) in asked
        bridge = self._read_bridge(first)
        if bridge is None and (guess or vain):
            bridge = memory.get((first.relation, first.subject))
        return [first] if bridge is None else [first, self._second(first, bridge)]

    def thought(self) -> str:
        """What was read and bears on what follows: the years to compare, or the bridge to the second fact."""
        values = [value for wanted in self.given if (value := self.value(wanted)) is not None]
        leads_on = len(self.given) > 1 or self.second_relation is not None
        return ", ".join(values) if leads_on else ""

    def answer(self) -> str:
        """The answer as far as the passages give it: of a comparison at least one of the two, else "unknown"."""
        if len(self.given) > 1:
            return min(self.given, key=self._year).name
        return self._final_value() or UNKNOWN[self.question.language]

    def _final_value(self) -> str | None:
        if self.second_relation is None:
            return self.value(self.given[0])
        # Whichever bridge was searched for, the second fact that was read of it is the one that was confirmed last.
        bridge = self._read_bridge(self.given[0])
        if bridge is not None:
            return self.value(self._second(self.given[0], bridge))
        read = (row for row in self.readings if row.relation == self.second_relation)
        return next(
            (self.reader.most_read([row], row.relation, row.subject, self.question.language) for row in read), None
        )

    def _year(self, wanted: Wanted) -> float:
        year = self.value(wanted)
        return int(year) if year is not None and year.isdigit() else float("inf")

    def _read_bridge(self, first: Wanted) -> str | None:
        value = self.value(first)
        if value is None:
            return None
        return entity_called(RELATIONS[first.relation].value, value, (self.question.language, *LCRL_LANGUAGES))

    def _second(self, first: Wanted, bridge: str) -> Wanted:
        assert self.second_relation is not None
        name = names_of(RELATIONS[first.relation].value)[bridge][self.question.language].text
        return Wanted(self.second_relation, bridge, name)


@functools.cache
def _entities_by_name() -> dict[tuple[str, str], dict[str, str]]:
    """`{(kind, name): {language: entity code}}`."""
    table: dict[tuple[str, str], dict[str, str]] = collections.defaultdict(dict)
    for kind in KINDS:
        for code, names in names_of(kind).items():
            for language, name in names.items():
                table[kind, name.text][language] = code
    return dict(table)


@functools.cache
def _relations_by_label() -> dict[str, dict[str, list[str]]]:
    """`{label: {language: relations}}`; a label names one relation of each kind of subject."""
    table: dict[str, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for relation in RELATIONS:
        for language in LCRL_LANGUAGES:
            table[label(language, relation)][language].append(relation)
    return {words: dict(by_language) for words, by_language in table.items()}


def _read(title: str, text: str) -> Iterator[Reading]:
    """Readings of a passage; one for each fact that title and label can name (in any language they share)."""
    words, separator, value = text.partition(": ")
    if not separator or not value:
        return
    languages: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for language, relations in _relations_by_label().get(words, {}).items():
        for relation in relations:
            entities = _entities_by_name().get((RELATIONS[relation].subject, title), {})
            if language in entities:
                languages[relation, entities[language]].append(language)
    for (relation, subject), codes in languages.items():
        yield Reading(relation, subject, value.strip(), tuple(codes))


def entity_called(kind: str, name: str, languages: Sequence[str]) -> str | None:
    """Code of the entity that has this name in the first possible of the languages."""
    codes = _entities_by_name().get((kind, name), {})
    return next((codes[language] for language in languages if language in codes), None)


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

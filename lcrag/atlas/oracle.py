"""A rule-based teacher for LcRL's episodes that knows words and names, but no facts.

It uses the question's kind and subject, the labels and names of all languages, and the search results so far. It never
sees the golden answers, so an outdated passage leads to a wrong answer.
"""

import collections
import dataclasses
import functools
import re
import zlib
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
    """A line of a passage parsed as a fact.

    Attributes:
      relation: Key of the relation.
      subject: Code of the entity.
      value: The value as written.
      languages: Languages in which the line can be parsed this way.
    """

    relation: str
    subject: str
    value: str
    languages: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Oracle:
    """Plays an episode of `hierarchical_search`, one text at a time.

    Attributes:
      budget: Maximum number of searches before it answers.
      line: Regular expression with the groups `title` and `text` for one passage of an information block.
      translate: Whether a value read in another language is translated for the answer (True) or copied (False).
    """

    budget: int = 3
    line: str = ATLAS_LINE
    translate: bool = True

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text.

        Args:
          turns: (by, text) of the turns so far, with or without the opening prompt; by is "policy" or "environment".
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
        """Returns the readings of all lines of the information blocks in `texts`, in order."""
        return [
            reading
            for text in texts
            for block in _INFORMATION.findall(text)
            for match in re.finditer(self.line, block)
            for reading in _read(match["title"].strip(), match["text"].strip())
        ]

    def most_read(self, readings: Sequence[Reading], relation: str, subject: str | None, language: str) -> str | None:
        """Returns the most frequent value of a fact in the readings, the earliest if tied; None without readings."""
        about = (row for row in readings if row.relation == relation and row.subject == subject)
        counts = collections.Counter(self.in_language(row, language) for row in about)
        return max(counts, key=counts.__getitem__, default=None)

    def _guess(self, readings: Sequence[Reading], relation: str, language: str) -> str:
        """Returns the first value of the relation, which belongs to another entity, or "unknown"."""
        found = (self.in_language(row, language) for row in readings if row.relation == relation)
        return next(found, UNKNOWN[language])

    def in_language(self, reading: Reading, language: str) -> str:
        """Returns the value of a reading in a language, if its name there is known, else as written."""
        kind = RELATIONS[reading.relation].value
        if kind == "literal" or not self.translate or language in reading.languages:
            return reading.value
        code = entity_called(kind, reading.value, reading.languages)
        return names_of(kind)[code][language].text if code else reading.value


@dataclasses.dataclass(frozen=True)
class RandomSearcher:
    """Knows the format and reads passages, but searches at random and trusts passages at random.

    It plays one-hop questions. Learning from it leaves to reinforcement learning when to search again, which passage to
    trust, and when to stop. The choices are a function of the dialogue, so that one dialogue is always continued alike.

    Attributes:
      budget: Maximum number of searches; each number from 1 is equally likely.
      reader: Reads and translates what the passages say.
    """

    budget: int
    reader: Oracle = Oracle()

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; see `Oracle.next_text`."""
        generator = np.random.default_rng(zlib.crc32("\0".join(text for _, text in turns).encode()))
        relation, subject = question.extra["kind"], question.extra["subject"][1]
        searches = sum(by == "policy" and "</search>" in text for by, text in turns)
        left = self.budget - searches
        if searches == 0 or generator.random() < left / (left + 1):
            return f"<search> {query_text(question.language, relation, question.extra['entity'])}</search>"
        readings = self.reader.readings(text for by, text in turns if by == "environment")
        about = [row for row in readings if row.relation == relation and row.subject == subject]
        if not about:
            return f"<answer> {UNKNOWN[question.language]}</answer>"
        trusted = about[int(generator.integers(len(about)))]
        return f"<answer> {self.reader.in_language(trusted, question.language)}</answer>"


@dataclasses.dataclass(frozen=True)
class NeededFact:
    """A fact needed for the answer, and the name of its subject."""

    relation: str
    subject: str
    name: str


@dataclasses.dataclass(frozen=True)
class SearchState:
    """The information about a question after some searches."""

    question: Question
    reader: Oracle
    readings: Sequence[Reading]

    def value(self, wanted: NeededFact) -> str | None:
        """Returns a fact's value from the passages, in the question's language; None if no passage has it."""
        return self.reader.most_read(self.readings, wanted.relation, wanted.subject, self.question.language)

    @property
    def given(self) -> list[NeededFact]:
        """The facts whose subjects the question names."""
        first, *rest = self.question.extra["kind"].split("+")
        if first == KIND:
            extra = self.question.extra
            return [
                NeededFact(rest[0], code, name)
                for (_, code), name in zip(extra["subjects"], extra["entities"], strict=True)
            ]
        return [NeededFact(first, self.question.extra["subject"][1], self.question.extra["entity"])]

    @property
    def second_relation(self) -> str | None:
        """The relation of a two-hop question's second fact."""
        first, *rest = self.question.extra["kind"].split("+")
        return rest[0] if rest and first != KIND else None

    def path(self, memory: Memory, *, guess: bool, asked: Iterable[str]) -> list[NeededFact]:
        """Returns the facts needed for the answer, as far as they can be identified.

        Args:
          memory: The remembered facts.
          guess: Whether to identify the second fact by the remembered value of the first before that is read.
          asked: Queries so far; the memory always replaces a first fact that was searched for without success.
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
        """Returns the values read that matter for the next step: the years to compare, or the bridge to the second
        fact.
        """
        values = [value for wanted in self.given if (value := self.value(wanted)) is not None]
        leads_on = len(self.given) > 1 or self.second_relation is not None
        return ", ".join(values) if leads_on else ""

    def answer(self) -> str:
        """Returns the answer from the passages: one of the two for a comparison, else "unknown" if it is missing."""
        if len(self.given) > 1:
            return min(self.given, key=self._year).name
        return self._final_value() or UNKNOWN[self.question.language]

    def _final_value(self) -> str | None:
        if self.second_relation is None:
            return self.value(self.given[0])
        # The bridge itself was not read: take the second fact of whichever bridge was searched for.
        bridge = self._read_bridge(self.given[0])
        if bridge is not None:
            return self.value(self._second(self.given[0], bridge))
        read = (row for row in self.readings if row.relation == self.second_relation)
        return next(
            (self.reader.most_read([row], row.relation, row.subject, self.question.language) for row in read), None
        )

    def _year(self, wanted: NeededFact) -> float:
        year = self.value(wanted)
        return int(year) if year is not None and year.isdigit() else float("inf")

    def _read_bridge(self, first: NeededFact) -> str | None:
        value = self.value(first)
        if value is None:
            return None
        return entity_called(RELATIONS[first.relation].value, value, (self.question.language, *LCRL_LANGUAGES))

    def _second(self, first: NeededFact, bridge: str) -> NeededFact:
        assert self.second_relation is not None
        name = names_of(RELATIONS[first.relation].value)[bridge][self.question.language].text
        return NeededFact(self.second_relation, bridge, name)


@functools.cache
def _entities_by_name() -> dict[tuple[str, str], dict[str, str]]:
    """Returns `{(kind, name): {language: entity code}}`."""
    table: dict[tuple[str, str], dict[str, str]] = collections.defaultdict(dict)
    for kind in KINDS:
        for code, names in names_of(kind).items():
            for language, name in names.items():
                table[kind, name.text][language] = code
    return dict(table)


@functools.cache
def _relations_by_label() -> dict[str, dict[str, list[str]]]:
    """Returns `{label: {language: relations}}`; a label is unique among relations of one kind of subject."""
    table: dict[str, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for relation in RELATIONS:
        for language in LCRL_LANGUAGES:
            table[label(language, relation)][language].append(relation)
    return {words: dict(by_language) for words, by_language in table.items()}


def _read(title: str, text: str) -> Iterator[Reading]:
    """Yields a reading for each fact that title and label can denote in a common language."""
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
    """Returns the code of the entity with this name in the first possible of the languages."""
    codes = _entities_by_name().get((kind, name), {})
    return next((codes[language] for language in languages if language in codes), None)


COUNTERFACTUAL_SHARE = 0.7


class FactSampler:
    """Samples training facts of a world for demonstrations."""

    def __init__(self, world: World):
        self._facts = [fact for fact in world.facts if world.splits[fact.id] == "train"]
        self._by_relation: dict[str, list[Fact]] = collections.defaultdict(list)
        self._by_subject: dict[str, list[Fact]] = collections.defaultdict(list)
        for fact in self._facts:
            self._by_relation[fact.relation].append(fact)
            self._by_subject[fact.subject].append(fact)

    def any(self, generator: np.random.Generator) -> Fact:
        return _one_of(generator, self._facts)

    def often_counterfactual(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Returns the fact, with probability `COUNTERFACTUAL_SHARE` with a value that only reading reveals."""
        if generator.random() >= COUNTERFACTUAL_SHARE:
            return fact
        return dataclasses.replace(fact, value=_one_of(generator, self._by_relation[fact.relation]).value)

    def related(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Returns another fact of the same subject or relation as a plausible wrong search result."""
        pool = (self._by_subject[fact.subject], self._by_relation[fact.relation])[int(generator.random() < 0.6)]
        others = [other for other in pool if other.id != fact.id]
        return _one_of(generator, others or self._facts)


def _one_of(generator: np.random.Generator, items: list[Fact]) -> Fact:
    return items[int(generator.integers(len(items)))]

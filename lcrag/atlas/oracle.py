"""Rule-based players of LcRL's episodes that know words and names, but no facts.

They use the question's kind and subject, the labels and names of all languages, and the search results so far. They
never see the golden answers, so an outdated passage leads to a wrong answer. `Oracle` plays as well as that allows;
`RandomSearcher`, which initial policies imitate, knows the format and decides at random.
"""

import collections
import dataclasses
import functools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lcrag.atlas.facts import (
    KINDS,
    RELATIONS,
    UNREAD,
    label,
    names_of,
    query_text,
    read_facts,
    sentence_text,
    written,
)
from lcrag.atlas.world import EARLIER, EVERY
from lcrag.data.questions import LCRL_LANGUAGES, Question
from lcrag.episodes.programs import UNKNOWN
from lcrag.episodes.tags import SearchAction, parse_action

Memory = Mapping[tuple[str, str], str]  # (relation, subject) -> value
_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_LINE = re.compile(r" ?(?P<title>[^:\n]+): (?P<text>[^\n]+)")
_SENTENCE = re.compile(r"(?P<label>[^:]+?)(?: \((?P<year>\d{4})\))?: (?P<value>.+)")
LAST_STALE_YEAR = 2010
# Searches that miss a tag or both.
MALFORMED = (" {query}", "<search> {query}", " {query}</search>", "<answer> {query}</search>")


@dataclasses.dataclass(frozen=True)
class Reading:
    """A sentence of a passage parsed as a fact."""

    relation: str
    subject: str
    value: str  # as written
    text: str  # the title and the sentence as written
    languages: tuple[str, ...]  # in which the sentence can be parsed this way
    year: int | None = None  # of which it speaks; None: undated

    @property
    def stale(self) -> bool:
        return self.year is not None and self.year <= LAST_STALE_YEAR

    def in_language(self, language: str) -> str:
        """Returns the value in a language, if it can be read in its own, else as written."""
        kind = RELATIONS[self.relation].value
        if language in self.languages:
            return self.value
        code = entity_called(kind, self.value, self.languages)
        return written(kind, code, language)[0] if code else self.value


def read_texts(texts: Iterable[str]) -> list[Reading]:
    """Returns the readings of all sentences of the information blocks in some texts, in order.

    A sentence has a reading for each fact that its title and label can denote in a common language.
    """
    readings = []
    lines = (line for text in texts for block in _INFORMATION.findall(text) for line in _LINE.finditer(block))
    for title, sentence in (
        (line["title"].strip(), part.strip()) for line in lines for part in line["text"].split("; ")
    ):
        if not (parsed := _SENTENCE.fullmatch(sentence)):
            continue
        languages: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
        for language, relations in _relations_by_label().get(parsed["label"], {}).items():
            for relation in relations:
                entities = _codes_by_text().get((RELATIONS[relation].subject, title), {})
                if language in entities:
                    languages[relation, entities[language]].append(language)
        value, year = parsed["value"].strip(), int(parsed["year"]) if parsed["year"] else None
        for (relation, subject), codes in languages.items():
            readings.append(Reading(relation, subject, value, f"{title}: {sentence}", tuple(codes), year))
    return readings


def value_read(
    readings: Sequence[Reading], relation: str, subject: str | None, language: str, *, stale: bool = True
) -> str | None:
    """Returns the most frequent present value of a fact in the readings, the earliest if tied, in a language.

    Returns a stale value if no other was read and `stale` is True; None if no value was read.
    """
    about = [row for row in readings if row.relation == relation and row.subject == subject]
    present = [row for row in about if not row.stale]
    counts = collections.Counter(row.in_language(language) for row in present or (about if stale else ()))
    return max(counts, key=counts.__getitem__, default=None)


def searches_in(turns: Sequence[tuple[str, str]]) -> int:
    return sum(by == "policy" and isinstance(parse_action(text), SearchAction) for by, text in turns)


@dataclasses.dataclass(frozen=True)
class Oracle:
    """Plays an episode of `hierarchical_search`, one text at a time, as well as it can be played without facts.

    It answers with the value that passages of the present give, searches again while it has none, and falls back on a
    stale value once it may search no more.
    """

    budget: int = 3  # maximum number of searches before it answers

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text.

        Args:
          turns: (by, text) of the turns so far, with or without the opening prompt; by is "policy" or "environment".
        """
        readings = read_texts(text for by, text in turns if by == "environment")
        more = searches_in(turns) < self.budget
        if "subjects" in question.extra:  # independent facts: search for that which was searched for least
            known = SearchState(question, readings)
            queries = [
                query_text(question.language, wanted.relation, wanted.name)
                for wanted in known.given
                if value_read(readings, wanted.relation, wanted.subject, question.language, stale=False) is None
            ]
            said = "".join(text for by, text in turns if by == "policy")
            if queries and more:
                return f"<search> {min(queries, key=said.count)}</search>"
            return f"<answer> {known.answer()}</answer>"
        answer_language = question.extra.get("answer_language", question.language)
        *bridges, last = question.extra["kind"].split("+")
        subject, name = question.extra["subject"][1], question.extra["entity"]
        for relation in (*bridges, last):
            language = answer_language if relation == last else question.language
            value = value_read(readings, relation, subject, language, stale=not more)
            if value is None or relation == last:
                break
            subject, name = entity_called(RELATIONS[relation].value, value, (question.language, *LCRL_LANGUAGES)), value
        if value is None and more:
            return f"<search> {query_text(question.language, relation, name)}</search>"
        # Without a value, the first one of the relation, which belongs to another entity.
        others = (row.in_language(answer_language) for row in readings if row.relation == last)
        return f"<answer> {value or next(others, UNKNOWN[answer_language])}</answer>"


@dataclasses.dataclass(frozen=True)
class RandomSearcher:
    """Knows the format and reads passages, but searches at random and trusts passages at random.

    It plays questions over one fact. After every search it notes one or two of the sentences that it has read about the
    fact, as written, or that it has read none; then it searches again or answers with the value of its last note. What
    it leaves to reinforcement learning is when to search again, which passage to trust, and when to stop. Its choices
    are a function of the dialogue.
    """

    budget: int  # maximum number of searches; each number from 1 is equally likely
    slips: float = 0.0  # share of the dialogues whose first text is a malformed action, after which it tries again
    max_notes: int = 1  # maximum number of sentences noted after a search; each number from 1 is equally likely

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text; see `Oracle.next_text`."""
        generator = np.random.default_rng(zlib.crc32("\0".join(text for _, text in turns).encode()))
        query = query_text(question.language, question.extra["kind"], question.extra["entity"])
        searches = searches_in(turns)
        if searches == 0 and all(by == "environment" for by, _ in turns) and generator.random() < self.slips:
            return MALFORMED[int(generator.integers(len(MALFORMED)))].format(query=query)
        search = f"<search> {query}</search>"
        if searches == 0:
            return search
        readings = read_texts(text for by, text in turns if by == "environment")
        notes, value = self.notes(generator, readings, question)
        left = self.budget - searches
        again = generator.random() < left / (left + 1)
        return notes + (search if again else f"<answer> {value or UNKNOWN[question.language]}</answer>")

    def notes(
        self, generator: np.random.Generator, readings: Sequence[Reading], question: Question
    ) -> tuple[str, str | None]:
        """Returns lines of some of the sentences read about the question's fact, and the last one's value in the
        question's language; without any, a line with a question mark for the value, and None.
        """
        relation, subject = question.extra["kind"], question.extra["subject"][1]
        about = list({row.text: row for row in readings if (row.relation, row.subject) == (relation, subject)}.values())
        if not about:
            return f" {question.extra['entity']}: {sentence_text(question.language, relation, UNREAD)}\n", None
        count = int(generator.integers(1, min(self.max_notes, len(about)) + 1))
        trusted = [about[place] for place in generator.permutation(len(about))[:count]]
        return "".join(f" {row.text}\n" for row in trusted), trusted[-1].in_language(question.language)


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
    readings: Sequence[Reading]

    def value(self, wanted: NeededFact) -> str | None:
        """Returns a fact's value from the passages, in the question's language; None if no passage has it."""
        return value_read(self.readings, wanted.relation, wanted.subject, self.question.language)

    def note(self, wanted: NeededFact) -> str:
        """Returns the first sentence that states a fact, a present one if there is any; without any, one with "?"."""
        about = [row for row in self.readings if (row.relation, row.subject) == (wanted.relation, wanted.subject)]
        if not about:
            return f"{wanted.name}: {sentence_text(self.question.language, wanted.relation, UNREAD)}"
        return min(about, key=lambda row: row.stale).text

    @property
    def relations(self) -> list[str]:
        """The relations of the facts that the answer needs, in the order of the chain; one if they are independent."""
        first, *rest = self.question.extra["kind"].split("+")
        return rest if first in (EARLIER, EVERY) else [first, *rest]

    @property
    def given(self) -> list[NeededFact]:
        """The facts whose subjects the question names: one, or several independent ones."""
        extra, relation = self.question.extra, self.relations[0]
        if "subjects" in extra:
            named = zip(extra["subjects"], extra["entities"], strict=True)
            return [NeededFact(relation, code, name) for (_, code), name in named]
        return [NeededFact(relation, extra["subject"][1], extra["entity"])]

    def path(self, memory: Memory, *, guess: bool, asked: Iterable[str]) -> list[NeededFact]:
        """Returns the facts needed for the answer, as far as they can be identified.

        Args:
          memory: The remembered facts.
          guess: Whether to identify a fact by the remembered value of the one before, until that is read.
          asked: Queries so far; the memory always replaces a fact that was searched for without success.
        """
        path, language = self.given, self.question.language
        for relation in self.relations[1:]:
            before = path[-1]
            kind, value = RELATIONS[before.relation].value, self.value(before)
            bridge = None if value is None else entity_called(kind, value, (language, *LCRL_LANGUAGES))
            if bridge is None and (guess or query_text(language, before.relation, before.name) in asked):
                bridge = memory.get((before.relation, before.subject))
            if bridge is None:
                break
            path.append(NeededFact(relation, bridge, names_of(kind)[bridge][language].text))
        return path

    @property
    def complete(self) -> bool:
        """Whether the passages state every fact that the answer needs."""
        read = [wanted for wanted in self.path({}, guess=False, asked=()) if self.value(wanted) is not None]
        return len(read) == len(self.given) + len(self.relations) - 1

    def notes(self, texts: Iterable[str]) -> list[str]:
        """Returns a sentence for each fact on the way to the answer that `texts` state."""
        told = dataclasses.replace(self, readings=read_texts(texts))
        path = self.path({}, guess=False, asked=())
        return [self.note(wanted) for wanted in path if told.value(wanted) is not None]

    def answer(self) -> str:
        """Returns the answer from the passages; what they lack is "unknown", or the first of two that are compared."""
        language = self.question.language
        if self.question.extra["kind"].startswith(f"{EARLIER}+"):

            def date(wanted: NeededFact) -> str:
                """Returns a date in ISO 8601, which sorts by time; unread dates come last."""
                value = self.value(wanted)
                return (value and entity_called("date", value, (language, *LCRL_LANGUAGES))) or "9999"

            return min(self.given, key=date).name
        if len(self.given) > 1:
            return ", ".join(self.value(wanted) or UNKNOWN[language] for wanted in self.given)
        path, last = self.path({}, guess=False, asked=()), self.relations[-1]
        if len(path) == len(self.relations):
            return self.value(path[-1]) or UNKNOWN[language]
        # A bridge was not read: take the last fact of whichever bridge was searched for.
        read = (row.in_language(language) for row in self.readings if row.relation == last)
        return next(read, UNKNOWN[language])


@functools.cache
def _codes_by_text() -> dict[tuple[str, str], dict[str, str]]:
    """Returns `{(kind, text): {language: code}}` for the names of entities and for every value that a fact has had."""
    codes = {(kind, code) for kind in KINDS for code in names_of(kind)}
    for fact in read_facts():
        codes |= {(RELATIONS[fact.relation].value, value) for value in (fact.value, fact.former) if value}
    table: dict[tuple[str, str], dict[str, str]] = collections.defaultdict(dict)
    for kind, code in sorted(codes):
        for language in LCRL_LANGUAGES:
            table[kind, written(kind, code, language)[0]][language] = code
    return dict(table)


@functools.cache
def _relations_by_label() -> dict[str, dict[str, list[str]]]:
    """Returns `{label: {language: relations}}`; a label is unique among relations of one kind of subject."""
    table: dict[str, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for relation in RELATIONS:
        for language in LCRL_LANGUAGES:
            table[label(language, relation)][language].append(relation)
    return table


def entity_called(kind: str, name: str, languages: Sequence[str]) -> str | None:
    """Returns the code of the entity with this name, or of the value so written, in the first possible language."""
    codes = _codes_by_text().get((kind, name), {})
    return next((codes[language] for language in languages if language in codes), None)

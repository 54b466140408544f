"""A rule-based teacher of RAG-R1's program: it searches for all it can name at once, and may remember what it learned.

It reads the question's kind and subjects, the names of all entities, and what the searches have shown. With what it
remembers (training facts, as a pretrained model would) it never answers unread: it only searches for what would follow,
side by side with what it wants to see confirmed.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from lcrag.atlas.comparisons import KIND
from lcrag.atlas.facts import RELATIONS
from lcrag.atlas.names import names_of
from lcrag.atlas.oracle import ATLAS_LINE, Oracle, Reading, entity_called
from lcrag.atlas.wording import UNKNOWN, query_text
from lcrag.atlas.world import World
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import Question
from lcrag.methods.rag_r1.parallel_queries import parallel_queries, quoted

Memory = Mapping[tuple[str, str], str]  # (relation, subject) -> value
_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A fact that the answer needs, and how its subject is called."""

    relation: str
    subject: str
    name: str


@dataclasses.dataclass(frozen=True)
class ParallelOracle:
    """Plays an episode of `rag_r1`, one text at a time.

    Attributes:
      queries: Queries of one search at most.
      budget: Searches it may make; then it answers as well as it can.
      memory: What it remembers of the world.
      line: Regular expression with the groups `title` and `text` of one passage.
    """

    queries: int = 3
    budget: int = 4
    memory: Memory = dataclasses.field(default_factory=dict)
    line: str = ATLAS_LINE

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """What the policy should write next.

        Args:
          question: A question of the atlas: one hop, two hops, or a comparison.
          turns: (by, text) of the turns so far, the opening prompt included or not; by is "policy" or "environment".
        """
        reader = Oracle(line=self.line)
        shown = [with_plain_documents(text) for by, text in turns if by == "environment"]
        known = Known(question, reader, reader.readings(shown))
        searches = [content for by, text in turns if by == "policy" for content in _SEARCH.findall(text)]
        asked = {query for content in searches for query in parallel_queries(content, self.queries).asked}
        missing = self._missing(known, asked) if len(searches) < self.budget else []
        thought = f"<think> {seen}</think>" if (seen := known.thought()) else ""
        if missing:
            return f"{thought}<search> {', '.join(missing)}</search>"
        return f"{thought}<answer> {known.answer()}</answer>"

    def _missing(self, known: "Known", asked: set[str]) -> list[str]:
        """The queries to ask now: for facts that are unread, and were not searched for before."""
        queries = []
        for wanted in known.path(self.memory, guess=self.queries > 1, asked=asked):
            query = query_text(known.question.language, wanted.relation, wanted.name)
            if known.value(wanted) is None and query not in asked:
                queries.append(quoted(query) if self.queries > 1 else query)
        return queries[: self.queries]


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


def training_memory(
    world: World, share: float = 1.0, mistaken: float = 0.0, seed: int = 0
) -> dict[tuple[str, str], str]:
    """What somebody who has learned the training facts remembers of them.

    Args:
      world: The atlas.
      share: Of the facts that are remembered.
      mistaken: Share of the facts that are remembered wrongly, with the value of another fact of the same relation.
      seed: Of which facts these are.
    """
    generator = np.random.default_rng([world.seed, seed])
    facts = [fact for fact in world.facts if world.splits[fact.id] == "train"]
    values: dict[str, list[str]] = collections.defaultdict(list)
    for fact in facts:
        values[fact.relation].append(fact.value)
    memory = {}
    for fact, draw, other in zip(facts, generator.random(len(facts)), generator.random(len(facts)), strict=True):
        known = values[fact.relation]
        if draw < share + mistaken:
            memory[fact.relation, fact.subject] = fact.value if draw < share else known[int(other * len(known))]
    return memory


def with_plain_documents(text: str) -> str:
    """The text, the JSON of its information blocks replaced by the lines of its documents."""
    return _INFORMATION.sub(lambda block: f"<information>\n{_plain(block[1])}\n</information>", text)


def _plain(content: str) -> str:
    return "\n".join(_documents(content.strip())) if content.lstrip().startswith("{") else content


def _documents(content: str) -> Iterator[str]:
    yield from json.loads(content)["documents"]

"""A rule-based teacher of RAG-R1's program: it searches for all it can name at once, and may remember what it learned.

It reads the question's kind and subjects, the names of all entities, and what the searches have shown. With what it
remembers (training facts, as a pretrained model would) it never answers unread: it only searches for what would follow,
side by side with what it wants to see confirmed.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence

import numpy as np

from lcrag.atlas.oracle import ATLAS_LINE, Known, Memory, Oracle
from lcrag.atlas.wording import query_text
from lcrag.atlas.world import World
from lcrag.data.questions import Question
from lcrag.methods.rag_r1.parallel_queries import parallel_queries, quoted

_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)


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

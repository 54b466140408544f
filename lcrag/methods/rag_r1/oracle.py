"""The atlas's oracle for RAG-R1's program: it searches in parallel for every fact that it can name.

It reads the question's kind and subjects, the names of all entities, and the results of the searches. With a memory of
training facts it also searches for the next fact after a remembered one, before a search confirms it, but it never
answers from memory.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Callable, Sequence

import gin
import numpy as np

from lcrag.atlas.facts import query_text
from lcrag.atlas.oracle import Memory, SearchState, read_texts
from lcrag.atlas.world import World, atlas_world
from lcrag.curation.playing import WritingTeacher, rule_based_teacher
from lcrag.data.questions import Question, in_share
from lcrag.episodes import Chat
from lcrag.errors import typed
from lcrag.methods.rag_r1.program import parallel_queries, quoted

_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ParallelOracle:
    """Writes the policy's texts in `rag_r1`, as `lcrag.atlas.oracle.Oracle` does in LcRL's program.

    Attributes:
      queries: Queries allowed in one search.
      budget: Searches allowed; after them it answers with what it has read.
      memory: Facts that it remembers.
      hurried: Share of the questions that it answers after one search, whatever that has found.
      seed: Seed that selects these questions.
    """

    queries: int = 3
    budget: int = 4
    memory: Memory = dataclasses.field(default_factory=dict)
    hurried: float = 0.0
    seed: int = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text, as `Oracle.next_text`; the question may also be a comparison."""
        shown = [with_plain_documents(text) for by, text in turns if by == "environment"]
        known = SearchState(question, read_texts(shown))
        searches = [content for by, text in turns if by == "policy" for content in _SEARCH.findall(text)]
        asked = {query for content in searches for query in parallel_queries(content, self.queries).asked}
        budget = 1 if in_share(question.key, self.hurried, self.seed) else self.budget
        missing = []  # queries for facts that were neither read nor searched for
        if len(searches) < budget:
            for wanted in known.path(self.memory, guess=self.queries > 1, asked=asked):
                query = query_text(known.question.language, wanted.relation, wanted.name)
                if known.value(wanted) is None and query not in asked:
                    missing.append(quoted(query) if self.queries > 1 else query)
        notes = "".join(f" {line}\n" for line in known.notes(shown[-1:]))
        thought = f"<think>\n{notes}</think>" if notes else ""
        if missing:
            return f"{thought}<search> {', '.join(missing[: self.queries])}</search>"
        return f"{thought}<answer> {known.answer()}</answer>"


def training_memory(
    world: World, share: float = 1.0, mistaken: float = 0.0, seed: int = 0
) -> dict[tuple[str, str], str]:
    """Returns a memory of some training facts, as from pretraining.

    Args:
      share: Share of the facts that are remembered.
      mistaken: Share of the facts that are remembered with the value of another fact of the same relation.
      seed: Selects these facts.
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
    """Replaces the JSON of a text's information blocks with the lines of its documents."""

    def plain(block: re.Match[str]) -> str:
        content = block[1]
        if content.lstrip().startswith("{"):
            content = "\n".join(json.loads(content)["documents"])
        return f"<information>\n{content}\n</information>"

    return _INFORMATION.sub(plain, text)


@gin.configurable
@typed
def oracle_teacher(
    tokenizer: str,
    chat: Chat,
    context: int,
    queries: int = 3,
    budget: int = 4,
    remembered: float = 0.4,
    mistaken: float = 0.3,
    hurried: float = 0.0,
    seed: int = 0,
    world: Callable[[], World] = atlas_world,
) -> WritingTeacher:
    """Returns the rule-based oracle of the atlas as the teacher.

    Args:
      tokenizer, chat, context: As of `endpoint_teacher`.
      queries, budget: As in the program.
      remembered: Share of the training facts that the oracle knows; it uses them in searches before it has read them.
      mistaken: Share of the facts that it remembers wrongly, which costs it another search.
      hurried: Share of the questions that it answers after one search, whatever the result.
      seed: Seed that selects these facts and questions.
    """
    atlas = world()
    memory = training_memory(atlas, remembered, mistaken, seed)
    oracle = ParallelOracle(queries=queries, budget=budget, memory=memory, hurried=hurried, seed=seed)
    return rule_based_teacher(oracle, tokenizer, chat, context, atlas.fingerprint())

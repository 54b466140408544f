"""Training data of RAG-R1's stages: segmented trajectories for SFT (section 3.1.2), questions for RL (3.2.1).

And the atlas's oracle that demonstrates the program.
"""

import collections
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gin
import numpy as np

from lcrag.atlas.facts import query_text
from lcrag.atlas.oracle import Memory, SearchState, read_texts
from lcrag.atlas.world import World, atlas_world
from lcrag.curation.playing import WritingTeacher, oracle_writer, rule_based_teacher
from lcrag.data.questions import Question, in_share, seeded_order
from lcrag.episodes import Chat, Invalid, SearchAction, parse_action
from lcrag.episodes.tags import quoted
from lcrag.errors import UserError, typed
from lcrag.methods.rag_r1.program import parallel_queries

# What a row's history ends with, and its target.
KINDS = (
    *("question_to_answer", "question_to_search", "information_to_search", "information_to_answer"),
    *("completion", "episode"),
)
WRONG_AT_FIRST, RIGHT_AT_FIRST = "wrong at first", "right at first"
_OPENING = ("dataset", "question_id", "language", "question", "golds", "prompt", "system", "opening")


def segments(episode: Mapping[str, Any], whole: bool = False) -> list[dict[str, Any]]:
    """Cuts an episode (as JSON) at every retrieval into rows that `lcrag.data.demonstrations` reads, one for each step.

    The target of a row is a search or the answer; everything before it, retrieved text included, is its history and is
    not a target. Turns that are neither search nor answer are only part of histories. Completions outside the dialogue,
    in programs such as D-RAG's, are one row each. The `kind` of a row is one of `KINDS`. A `whole` dialogue is one row.
    """
    opening = {name: episode[name] for name in _OPENING if name in episode}
    rows = [{**opening, "kind": "episode", "turns": episode["turns"]}] if whole else []
    history = list[dict[str, Any]]()
    for turn in () if whole else episode["turns"]:
        if turn["by"] != "policy":
            history.append(dict(turn))
            continue
        action = parse_action(turn["text"])
        if not isinstance(action, Invalid):
            target = "search" if isinstance(action, SearchAction) else "answer"
            kind = f"{'information' if history else 'question'}_to_{target}"
            rows.append({**opening, "kind": kind, "turns": [*history, {"by": "policy", "text": turn["text"]}]})
        history.append({**turn, "learn": False})
    for completion in episode.get("completions", ()):
        if completion["model"] is None:  # the policy's; without the system message of the dialogue
            prompt = completion["prompt"]
            asked = {"prompt": prompt, "opening": [completion["opening"] or prompt], "system": None}
            turns = [{"by": "policy", "text": completion["text"]}]
            rows.append({**opening, **asked, "kind": "completion", "turns": turns})
    return rows


def select(
    questions: Iterable[Question],
    first_right: Mapping[str, bool],
    rollouts_to_right: Mapping[str, int],
    *,
    easy_share: float,
    seed: int,
) -> list[Question]:
    """Selects hard questions that can be answered, and a random share of the easy ones, in the order given.

    Their `extra` gets `selected_because`, `WRONG_AT_FIRST` or `RIGHT_AT_FIRST`, and `rollouts_to_right`, the stochastic
    rollouts up to the first right one (0 if none was needed or none was right).

    Args:
      first_right: Whether the demonstration of each (by `Question.key`) was right.
      rollouts_to_right: For questions wrong at first and answered later, how many stochastic rollouts that took.
      easy_share: Share of the questions right at first to keep.
    """
    if not 0 <= easy_share <= 1:
        raise UserError(f"selection.easy_share is {easy_share:g}: give a share between 0 and 1")
    right = [key for key, correct in first_right.items() if correct]
    easy = set(seeded_order(right, seed)[: round(easy_share * len(right))])
    selected = []
    for question in questions:
        if question.key in easy or question.key in rollouts_to_right:
            wrong = WRONG_AT_FIRST, rollouts_to_right.get(question.key, 0)
            because, rollouts = (RIGHT_AT_FIRST, 0) if question.key in easy else wrong
            why = {"selected_because": because, "rollouts_to_right": rollouts}
            selected.append(dataclasses.replace(question, extra=question.extra | why))
    return selected


def split(selected: Sequence[Question], validation_share: float, seed: int) -> tuple[list[Question], list[Question]]:
    """Splits questions into (training, validation), all language versions of a question on one side."""
    if not 0 < validation_share < 1:
        raise UserError(f"selection.validation_share is {validation_share:g}: give a share between 0 and 1")
    topics = seeded_order({question.coupling for question in selected}, seed)
    held_out = set(topics[: max(1, round(validation_share * len(topics)))])
    if len(held_out) >= len(topics):
        raise UserError(f"{len(topics)} questions were selected, too few to keep some for validation: give it more")
    sides: tuple[list[Question], list[Question]] = ([], [])
    for question in selected:
        sides[question.coupling in held_out].append(question)
    return sides


def unfiltered(
    questions: Iterable[Question],
    first_right: Mapping[str, bool],
    rollouts_to_right: Mapping[str, int],
    held_out: Iterable[Question],
    *,
    easy_share: float,
    seed: int,
) -> list[Question]:
    """Selects for the ablation "w/o Filter" (table 4): all questions wrong at first, answerable or not.

    The easy questions are those of `select`. Questions in `held_out`, the validation side, are left out.
    """
    wrong = dict.fromkeys((key for key, correct in first_right.items() if not correct), 0)
    everything = select(questions, first_right, wrong | dict(rollouts_to_right), easy_share=easy_share, seed=seed)
    kept_apart = {question.coupling for question in held_out}
    return [question for question in everything if question.coupling not in kept_apart]


# --- The atlas's oracle ---

_INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)
_SEARCH = re.compile(r"<search>(.*?)</search>", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class ParallelOracle:
    """Plays `rag_r1` in the atlas wording: it searches in parallel for every fact that it can name.

    It reads the question's kind and subjects, the names of all entities, and the results of the searches. With a memory
    of training facts it also searches for the next fact after a remembered one, before a search confirms it, but it
    never answers from memory.
    """

    queries: int = 3  # allowed in one search
    budget: int = 4  # searches allowed; after them it answers with what it has read
    memory: Memory = dataclasses.field(default_factory=dict)
    hurried: float = 0.0  # share of the questions that it answers after one search, whatever that has found
    seed: int = 0  # selects these questions

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

    A share of them is remembered, and another one with the value of another fact of the same relation (`mistaken`).
    """
    generator = np.random.default_rng([world.seed, seed])
    facts, values = world.training_facts, collections.defaultdict[str, list[str]](list)
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
      queries, budget, hurried: As in `ParallelOracle`.
      remembered: Share of the training facts that the oracle knows; it uses them in searches before it has read them.
      mistaken: Share of the facts that it remembers wrongly, which costs it another search.
    """
    atlas = world()
    memory = training_memory(atlas, remembered, mistaken, seed)
    oracle = ParallelOracle(queries=queries, budget=budget, memory=memory, hurried=hurried, seed=seed)
    return rule_based_teacher(oracle_writer(oracle), tokenizer, chat, context, {"world": atlas.fingerprint})

"""Search-R1: LcRL's dialogue with one collection, the English one."""

from collections.abc import Sequence
from contextlib import suppress

import gin

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.prompts import opening_prompt
from lcrag.episodes.requests import ContextFull, Observe, Outcome, Program, Retrieve
from lcrag.episodes.search_loop import SearchTurns


@gin.configurable(denylist=["question", "collections"])
def search_r1(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 3,
    passages: int = 3,
    invalid_limit: int = 3,
    prompt: str = "search_r1",
    style: str = "search_r1",
    observation_tokens: int = 600,
) -> Program:
    """Search-R1 (Jin et al., 2025, algorithm 1) as LcRL compares with it: every search goes to the English collection.

    Args:
      question, collections, passages, observation_tokens: See `lcrag.methods.baselines`.
      budget: Valid searches allowed.
      invalid_limit: Invalid actions allowed; they do not count as searches.
      prompt: Name of the opening prompt.
      style: Name of the passage style.
    """
    turns = SearchTurns(budget, invalid_limit)
    with suppress(ContextFull):
        yield Observe(opening_prompt(prompt, question))
        while search := (yield from turns.next_action()):
            found = yield Retrieve((search.query,), ("en",), passages)
            yield Observe(information(found, style, observation_tokens))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)

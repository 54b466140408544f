"""Search-R1: LcRL's dialogue with one collection, the English one."""

from collections.abc import Sequence

import gin

from lcrag.data.questions import Question
from lcrag.episodes.requests import Program
from lcrag.episodes.routing import english_only
from lcrag.methods.lcrl.program import hierarchical_search


@gin.configurable
def search_r1(question: Question, collections: Sequence[str], *, prompt: str = "search_r1") -> Program:
    """Search-R1 (Jin et al., 2025, section 3) as LcRL compares with it: every search goes to the English collection.

    All else is configured as `hierarchical_search`, whatever the question's language.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      prompt: Name of the opening prompt.
    """
    return hierarchical_search(question, collections, prompt=prompt, route=english_only)

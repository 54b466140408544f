"""Search-R1: LcRL's dialogue with one collection, the English one."""

from collections.abc import Callable, Sequence

from lcrag.data.questions import Question
from lcrag.episodes.requests import Program
from lcrag.episodes.routing import english_only


def search_r1(
    question: Question, collections: Sequence[str], *, search: Callable[..., Program], prompt: str = "search_r1"
) -> Program:
    """Search-R1 (Jin et al., 2025, section 3) as LcRL compares with it: every search goes to the English collection.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      search: The dialogue with its other settings.
      prompt: Name of the opening prompt.
    """
    return search(question, collections, prompt=prompt, route=english_only)

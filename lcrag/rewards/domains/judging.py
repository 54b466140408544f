"""Asking a judge, who may say anything: what does not fit is asked again, and then has a defined outcome."""

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")
# (prompts, number of the attempt from 0) -> what the judge says to each. It raises where it cannot answer at all.
Judge: TypeAlias = Callable[[Sequence[str], int], Sequence[str]]

RETRIES = 3
_SCORE = re.compile(r"<score>\s*(\d+(?:\.\d+)?)\s*</score>", re.IGNORECASE)
HIGHEST_SCORE = 10


def judged(
    judge: Judge, prompts: Sequence[str], parse: Callable[[str], T | None], retries: int = RETRIES
) -> list[T | None]:
    """What a judge says to each prompt; None where nothing that `parse` knows is said in `retries` more attempts.

    Args:
      judge: Whom to ask.
      prompts: Asked together; in a later attempt only those without a parsed answer.
      parse: Reads an answer; None: it says nothing that fits.
      retries: Attempts after the first.
    """
    found: list[T | None] = [None] * len(prompts)
    for attempt in range(retries + 1):
        places = [place for place, value in enumerate(found) if value is None]
        if not places:
            break
        said = judge([prompts[place] for place in places], attempt)
        for place, text in zip(places, said, strict=True):
            found[place] = parse(text)
    return found


def score_in(text: str) -> float | None:
    """The last `<score>` from 0 to 10 in a judge's answer, in [0, 1]; None if there is none."""
    scores = _SCORE.findall(text)
    return None if not scores or float(scores[-1]) > HIGHEST_SCORE else float(scores[-1]) / HIGHEST_SCORE

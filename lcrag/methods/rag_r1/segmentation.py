"""A trajectory cut at every retrieval into pairs of history and next step (RAG-R1, section 3.1.2).

What the policy wrote up to a search, and up to the answer, is a target; its history is everything before it, retrieved
text included, and is not learned. So no target holds retrieved text.
"""

from collections.abc import Mapping
from typing import Any

from lcrag.episodes import Answer, SearchAction, parse_action

QUESTION_ANSWER, QUESTION_SEARCH = "question_to_answer", "question_to_search"
INFORMATION_ANSWER, INFORMATION_SEARCH = "information_to_answer", "information_to_search"
KINDS = (QUESTION_ANSWER, QUESTION_SEARCH, INFORMATION_SEARCH, INFORMATION_ANSWER)
_OPENING = ("dataset", "question_id", "language", "prompt", "system", "opening")


def segments(episode: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The training rows of an episode, a row for every step, as `lcrag.data.demonstrations` reads them.

    Args:
      episode: As a run writes it (`lcrag.episodes.episode_json`), without invalid actions.

    Returns:
      Rows with their `kind`: the question alone, or a history that ends in information, and behind it a search or the
      answer. Steps that are neither search nor answer belong to the histories only.
    """
    opening = {name: episode[name] for name in _OPENING if name in episode}
    rows, history = [], list[dict[str, Any]]()
    for turn in episode["turns"]:
        by_policy = turn["by"] == "policy"
        if by_policy and (kind := _kind(turn["text"], searched=bool(history))):
            rows.append({**opening, "kind": kind, "turns": [*history, {"by": "policy", "text": turn["text"]}]})
        history.append({**turn, "learn": False} if by_policy else dict(turn))
    return rows


def _kind(text: str, *, searched: bool) -> str | None:
    match parse_action(text):
        case SearchAction():
            return INFORMATION_SEARCH if searched else QUESTION_SEARCH
        case Answer():
            return INFORMATION_ANSWER if searched else QUESTION_ANSWER
    return None

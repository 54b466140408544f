"""Converts rows of `episodes/*.jsonl` for the page: each text once, and the part of the text of each policy token."""

import codecs
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lcrag.rewards import c3_recall_bergen

_PROMPT = -1


class TokenTexts:
    """Divides the policy's texts into its tokens.

    Args:
      decode_bytes: The method of the policy's tokenizer.
    """

    def __init__(self, decode_bytes: Callable[[Sequence[int]], bytes]):
        self._decode_bytes = decode_bytes

    def lengths(self, text: str, ids: Sequence[int]) -> list[int] | None:
        """Returns the length of each token's part of a text, in UTF-16 units; None if the tokens do not spell it.

        A character spread over several tokens belongs to the last. Bytes beyond the text (end of sequence, bytes after
        a stop string) have length 0.
        """
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        pieces = [decoder.decode(self._decode_bytes([token])) for token in ids]
        if not ("".join(pieces) + decoder.decode(b"", final=True)).startswith(text):
            return None
        ends = np.minimum(list(itertools.accumulate(map(len, pieces))), len(text))
        units = list(itertools.accumulate((1 + (ord(character) > 0xFFFF) for character in text), initial=0))
        return np.diff([units[end] for end in ends], prepend=0).tolist()


class PartRows:
    """The episodes of one file; each environment text is stored once and referred to by its index.

    Attributes:
      texts: The environment's texts.
      episodes: The episodes in their order.

    Args:
      tokens: Divides the policy's texts; None: they are not divided.
    """

    def __init__(self, tokens: TokenTexts | None):
        self.texts: list[str] = []
        self.episodes: list[dict[str, Any]] = []
        self._tokens = tokens
        self._numbers: dict[str, int] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds the episode of a row; keys that rows of older runs lack are left out."""
        lengths, sampled = _pieces(row)
        turns = [self._turn(turn, lengths.get(number), sampled.get(number)) for number, turn in enumerate(row["turns"])]
        outcome = row["outcome"]
        self.episodes.append(
            {
                "key": f"{row.get('dataset', '')}/{row['question_id']}",
                "language": row.get("language") or "",
                "group": str(row.get("group")),
                "number": row.get("episode", len(self.episodes)),
                "question": _text(row.get("question") or _last_line(row["prompt"])),
                "golds": [_text(gold) for gold in row.get("golds") or ()],
                "prompt": {"text": self._place(row["prompt"]), "count": lengths.get(_PROMPT)},
                "turns": turns,
                "answer": None if row.get("answer") is None else _text(row["answer"]),
                "failure": row.get("failure"),
                "finished": outcome.get("finished", True),
                "counts": {name: int(count) for name, count in outcome.get("counts", {}).items() if count},
                "rewards": {name: _number(value) for name, value in row["rewards"].items()},
                "advantage": _number(row.get("advantage")),
                "version": row.get("policy_version"),
                "waits": [
                    {**wait, "start": float(wait["start"]), "end": float(wait["end"])}
                    for wait in row.get("seconds", {}).get("waits", [])
                ],
                "completions": [
                    {"model": each.get("model"), "prompt": _text(each["prompt"]), "text": _text(each["text"])}
                    for each in row.get("completions", ())
                ],
            }
        )

    def add_recalls(self) -> None:
        """Adds the c3 recall of each answer where no episode has a reward, as in evaluations without one."""
        if not any(episode["rewards"] for episode in self.episodes):
            judged = [episode for episode in self.episodes if episode["golds"]]
            recalls = c3_recall_bergen([each["answer"] for each in judged], [each["golds"] for each in judged])
            for episode, recall in zip(judged, recalls.tolist(), strict=True):
                episode["recall"] = round(recall, 4)

    def _turn(self, turn: Mapping[str, str], count: int | None, sampled: "_Sampled | None") -> dict[str, Any]:
        if turn["by"] != "policy":
            return {"by": turn["by"], "text": self._place(turn["text"]), "count": count}
        shown: dict[str, Any] = {"by": "policy", "text": _text(turn["text"]), "count": count}
        if sampled is None:
            return shown
        ids, scores = sampled
        lengths = self._tokens.lengths(turn["text"], ids) if self._tokens else None
        return shown | {"ids": ids, "lengths": lengths, "scores": [None if s is None else round(s, 3) for s in scores]}

    def _place(self, text: str) -> int:
        if _text(text) not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


_Sampled = tuple[list[int], list[float | None]]


def _pieces(row: Mapping[str, Any]) -> tuple[dict[int, int], dict[int, _Sampled]]:
    """Returns the number of tokens of each turn, and of the policy's turns their ids and log-probabilities."""
    lengths: dict[int, int] = {}
    sampled: dict[int, _Sampled] = {}
    if not (tokens := row.get("tokens")):
        return lengths, sampled
    ids, scores = iter(tokens["ids"]), iter(tokens["log_probabilities"])
    for turn, length in tokens["pieces"]:
        lengths[turn], own = length, list(itertools.islice(ids, length))
        if turn != _PROMPT and row["turns"][turn]["by"] == "policy":
            sampled[turn] = own, list(itertools.islice(scores, length))
    return lengths, sampled


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a text should")
    return value


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _last_line(prompt: str) -> str:
    """Returns the last line of a prompt, shown as the question of a row without one."""
    return prompt.strip().rpartition("\n")[2][-300:]

"""Serialises finished episodes for the exchange between processes: texts as JSON, arrays as bytes."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes.record import EpisodeRecord, SideCompletion, Turn, Wait, pieces_of, tokens_of_pieces
from lcrag.episodes.requests import Outcome

SEPARATE = ("question", "tokens", "by_policy", "log_probabilities", "turn")  # not in the JSON


def packed(records: Sequence[EpisodeRecord], more: Any) -> bytes:
    """Serialises episodes: about 4 bytes per token, 4 more per policy token, and the texts.

    Args:
      records: The episodes.
      more: Any further JSON value, with NaN and infinities; tuples become lists.
    """
    header = json.dumps({"records": [_plain(each) for each in records], "more": more}, ensure_ascii=False)
    encoded = header.encode(errors="surrogatepass")
    parts = [np.int64(len(encoded)).tobytes(), encoded]
    parts += [each.tokens.astype(np.int32, copy=False).tobytes() for each in records]
    parts += [each.log_probabilities[each.by_policy].astype(np.float32, copy=False).tobytes() for each in records]
    return b"".join(parts)


def _plain(record: EpisodeRecord) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(record) if field.name not in SEPARATE]
    plain = {name: getattr(record, name) for name in names}
    parts = {name: [list(vars(each).values()) for each in plain[name]] for name in ("turns", "completions", "waits")}
    outcome = vars(record.outcome)
    return plain | parts | {"outcome": outcome, "pieces": pieces_of(record).tolist()}


def unpacked(content: bytes, questions: Mapping[int, Question]) -> tuple[list[EpisodeRecord], Any]:
    """Deserialises the result of `packed`; the records are equal bit for bit.

    Args:
      content: The result of `packed`.
      questions: The question of each episode, by the episode's number.
    """
    start = 8 + int(np.frombuffer(content, np.int64, 1)[0])
    header = json.loads(content[8:start].decode(errors="surrogatepass"))
    rows = header["records"]
    turns = [tokens_of_pieces(row["pieces"], [by for by, _ in row["turns"]]) for row in rows]
    lengths, sampled = [len(turn) for turn, _ in turns], [int(by_policy.sum()) for _, by_policy in turns]
    tokens = np.split(np.frombuffer(content, np.int32, sum(lengths), start), np.cumsum(lengths)[:-1])
    scores = np.split(
        np.frombuffer(content, np.float32, sum(sampled), start + 4 * sum(lengths)), np.cumsum(sampled)[:-1]
    )
    records = [
        _record(questions[row["episode"]], row, turn, ids, scored)
        for row, turn, ids, scored in zip(rows, turns, tokens, scores, strict=False)  # no row: split returns one part
    ]
    return records, header["more"]


def _record(
    question: Question, row: dict[str, Any], turn: tuple[np.ndarray, np.ndarray], tokens: np.ndarray, scores: np.ndarray
) -> EpisodeRecord:
    row = {name: value for name, value in row.items() if name != "pieces"}
    log_probabilities = np.zeros(len(tokens), np.float32)
    log_probabilities[turn[1]] = scores
    return EpisodeRecord(
        **row
        | {
            "turns": tuple(Turn(*each) for each in row["turns"]),
            "completions": tuple(SideCompletion(*each) for each in row["completions"]),
            "waits": tuple(Wait(*each) for each in row["waits"]),
            "outcome": Outcome(**row["outcome"]),
            "opening": tuple(row["opening"]),
            "policy_changes": tuple(tuple(each) for each in row["policy_changes"]),
        },
        question=question,
        tokens=tokens,
        by_policy=turn[1],
        log_probabilities=log_probabilities,
        turn=turn[0],
    )

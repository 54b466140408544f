"""The record of a finished episode, and the record as a line of JSON."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat

import numpy as np
from jaxtyping import Bool, Float32, Int32

from lcrag.data.questions import Question
from lcrag.episodes.requests import Outcome

PROMPT_TURN = -1


@dataclasses.dataclass(frozen=True)
class Turn:
    """A part of the dialogue by one author."""

    by: Literal["policy", "environment"]
    text: str


@dataclasses.dataclass(frozen=True)
class SideCompletion:
    """A completion outside the dialogue.

    Attributes:
      model: Name of the model that completed; None: the policy.
      prompt: The prompt, in the chat template if one was used.
      text: The completion.
      tokens: Number of sampled tokens.
      opening: The prompt without the chat template if one was used; empty otherwise.
      prompt_tokens: Number of the prompt's tokens; 0 for another model, which has its own tokenizer.
    """

    model: str | None
    prompt: str
    text: str
    tokens: int
    opening: str = ""
    prompt_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Wait:
    """An interval in which an episode waited for an answer, in seconds since its rollout began.

    Attributes:
      turn: Index of the next turn in the record's `turns`.
      service: "generation", "search", "translation" or "completion".
      start: Time of the request.
      end: Time of the answer.
    """

    turn: int
    service: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """One finished episode; its arrays have one element per token of the context.

    Attributes:
      question: The question.
      prompt: The environment's text before the policy's first token, in the chat template if one was used.
      turns: The turns after the prompt.
      tokens: Ids of the context; sampled ids were never decoded and encoded again.
      by_policy: Whether the policy sampled the token (includes end-of-sequence, and the last token even if its text
        extends beyond the stop string).
      log_probabilities: Of the untruncated distribution at the sampling temperature; 0 where the environment wrote.
      turn: Index into `turns`; -1 in the prompt.
      policy_version: Version of the parameters that sampled it: how many updates they had received.
      outcome: What the program returned.
      counts: Searches (queries), retrieval_rounds (times that the program waited for searches), retrieval_failures
        (requests that failed after every retry), generations, policy_tokens, length_stops (generations that ended
        without a stop), context_full (1 if the context had no room for the next observation or generation),
        completions and completion_tokens (outside the dialogue, by any model; not among generations and
        policy_tokens), and what the program counted.
      finished: Whether the program ended by itself; False: the context was full.
      episode: Number that names the episode's random stream.
      failure: Why a search failed, or why a translator or another model failed, which ends the episode; None: no
        failure. An episode with a failure has no reward, and counts in no baseline and in no mean of an evaluation.
      completions: Completions outside the dialogue, in the order requested; never trained on.
      opening: The texts of the prompt, without a chat template.
      system: The program's instructions, which are also part of the prompt.
      waits: Its waits, in the order of the answers; wall-clock times, which differ from run to run.
    """

    question: Question
    prompt: str
    turns: tuple[Turn, ...]
    tokens: Int32[np.ndarray, "length"]
    by_policy: Bool[np.ndarray, "length"]
    log_probabilities: Float32[np.ndarray, "length"]
    turn: Int32[np.ndarray, "length"]
    policy_version: int
    outcome: Outcome
    counts: dict[str, int]
    finished: bool
    episode: int
    failure: str | None = None
    completions: tuple[SideCompletion, ...] = ()
    opening: tuple[str, ...] = ()
    system: str | None = None
    waits: tuple[Wait, ...] = dataclasses.field(default=(), compare=False)

    def __post_init__(self):
        lengths = {len(each) for each in (self.tokens, self.by_policy, self.log_probabilities, self.turn)}
        if len(lengths) != 1:
            raise ValueError(f"the arrays of an episode must have equal lengths, not {sorted(lengths)}")


def episode_json(
    record: EpisodeRecord,
    *,
    group: Any = None,
    rewards: Mapping[str, SupportsFloat] | None = None,
    advantage: SupportsFloat | None = None,
    times: bool = True,
) -> dict[str, Any]:
    """Returns the episode as one object of `episodes/step_<n>.jsonl`.

    Args:
      record: The episode.
      group: Name of the group whose baseline it shares; by default the question across languages.
      rewards: Its reward by term; NaN (null in JSON) where it could not be scored.
      advantage: Its advantage in the update; None if it had no single one.
      times: Whether the row includes "seconds", in which otherwise equal episodes differ.
    """

    def number(value: SupportsFloat) -> float | None:
        return None if np.isnan(float(value)) else float(value)

    question, outcome = record.question, dataclasses.asdict(record.outcome)
    row = {
        "question_id": question.id,
        "dataset": question.dataset,
        "language": question.language,
        "question": question.text,
        "golds": list(question.answers),
        "group": question.coupling if group is None else group,
        "episode": record.episode,
        "prompt": record.prompt,
    }
    if record.system:
        row["system"] = record.system
    if "".join(record.opening) not in ("", record.prompt):
        row["opening"] = list(record.opening)
    row["turns"] = [dataclasses.asdict(turn) for turn in record.turns]
    if record.completions:
        row["completions"] = [dataclasses.asdict(each) for each in record.completions]
    row["answer"] = record.outcome.answer
    if record.failure:
        row["failure"] = record.failure
    row |= {
        "outcome": outcome | {"finished": record.finished, "counts": dict(record.counts)},
        "rewards": {name: number(value) for name, value in (rewards or {}).items()},
        "advantage": None if advantage is None else number(advantage),
        "policy_version": record.policy_version,
    }
    # The policy's log-probabilities are written as the shortest decimals that read back as the same float32.
    scores = record.log_probabilities[record.by_policy]
    firsts = np.flatnonzero(np.diff(record.turn, prepend=PROMPT_TURN - 1))
    pieces = np.stack([record.turn[firsts], np.diff(firsts, append=len(record.turn))], axis=1)
    row["tokens"] = {
        "ids": record.tokens.tolist(),
        "log_probabilities": [float(str(score)) if np.isfinite(score) else None for score in scores],
        "pieces": pieces.tolist(),  # (turn, number of tokens) of each run of tokens of one turn
    }
    if times:
        waits = [
            {"turn": each.turn, "for": each.service, "start": round(each.start, 4), "end": round(each.end, 4)}
            for each in record.waits
        ]
        row["seconds"] = {"waits": waits}
    return row


def token_arrays(row: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the `tokens`, `by_policy`, `log_probabilities` and `turn` of the record that `episode_json` wrote.

    They are equal to the record's bit for bit.

    Args:
      row: A row with "tokens"; those of runs before 2026-11-22 have none.

    Raises:
      ValueError: the lengths of its parts do not agree.
    """
    written = row["tokens"]
    turns, lengths = np.asarray(written["pieces"], np.int32).reshape(-1, 2).T
    turn = np.repeat(turns, lengths)
    by_policy = np.array([False, *(each["by"] == "policy" for each in row["turns"])], np.bool_)[turn + 1]
    ids, scores = np.asarray(written["ids"], np.int32), np.zeros(len(turn), np.float32)
    if len(ids) != len(turn) or len(written["log_probabilities"]) != by_policy.sum():
        raise ValueError("the pieces of an episode's tokens do not add up to its ids and log-probabilities")
    scores[by_policy] = np.array(written["log_probabilities"], np.float64)  # null becomes NaN
    return {"tokens": ids, "by_policy": by_policy, "log_probabilities": scores, "turn": turn}

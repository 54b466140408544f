"""The record of a finished episode, and the record as a line of JSON."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat

import numpy as np
from jaxtyping import Bool, Float32, Int32

from lcrag.data.questions import Question
from lcrag.episodes.programs import Outcome
from lcrag.learning import Trajectory

PROMPT_TURN = -1


@dataclasses.dataclass(frozen=True)
class Turn:
    """A part of the dialogue by one author."""

    by: Literal["policy", "environment"]
    text: str


@dataclasses.dataclass(frozen=True)
class SideCompletion:
    """A completion outside the dialogue."""

    model: str | None  # name of the model that completed; None: the policy
    prompt: str  # in the chat template if one was used
    text: str
    tokens: int  # sampled ones
    opening: str = ""  # the prompt without the chat template if one was used; empty otherwise
    prompt_tokens: int = 0  # 0 for another model, which has its own tokenizer


@dataclasses.dataclass(frozen=True)
class Wait:
    """An interval in which an episode waited for an answer, in seconds since its rollout began."""

    turn: int  # index of the next turn in the record's `turns`
    service: str  # "generation", "search", "translation" or "completion"
    start: float  # time of the request
    end: float  # time of the answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """One finished episode; its arrays have one element per token of the context.

    Sampled ids were never decoded and encoded again. `counts` are searches (queries), retrieval_rounds (times that the
    program waited for searches), retrieval_failures (requests that failed after every retry), generations,
    policy_tokens, length_stops (generations that ended without a stop), context_full (1 if the context had no room for
    the next observation or generation), empty_turns (generations without text), completions and completion_tokens
    (outside the dialogue, by any model; not among generations and policy_tokens), answer_retrieved (1 if a search
    returned a passage that holds a gold answer) and answer_shown (1 if, moreover, a gold answer is in what the policy
    or another model was given to read, after cuts), and what the program counted.
    """

    question: Question
    prompt: str  # the environment's text before the policy's first token, in the chat template if one was used
    turns: tuple[Turn, ...]  # after the prompt
    tokens: Int32[np.ndarray, "length"]
    # Whether the policy sampled it: true of end-of-sequence, and of the last token even if it extends beyond the stop.
    by_policy: Bool[np.ndarray, "length"]
    # Of the untruncated distribution at the sampling temperature; 0 where the environment wrote.
    log_probabilities: Float32[np.ndarray, "length"]
    turn: Int32[np.ndarray, "length"]  # index into `turns`; -1 in the prompt
    policy_version: int  # how many rollouts the parameters that sampled it had learned from
    outcome: Outcome  # what the program returned
    counts: dict[str, int]
    finished: bool  # whether the program ended by itself; False: the context was full, or a model it needs failed
    episode: int  # names the episode's random stream
    # Why a search failed, or why a translator or another model failed, which ends the episode. An episode with a
    # failure has no reward, and counts in no baseline and in no mean of an evaluation.
    failure: str | None = None
    completions: tuple[SideCompletion, ...] = ()  # in the order requested; never trained on
    opening: tuple[str, ...] = ()  # the texts of the prompt, without a chat template
    system: str | None = None  # the program's instructions, which are also part of the prompt
    waits: tuple[Wait, ...] = dataclasses.field(default=(), compare=False)  # in the order of the answers
    temperatures: tuple[float, ...] = ()  # at which the policy sampled; empty: unknown, as in a record that was read

    def trajectory(self, advantage: SupportsFloat = 0.0, **others: Any) -> Trajectory:
        """Returns the episode as `Learner.learn` takes it; `others` are a critic's fields of a `Trajectory`."""
        others |= {"policy_version": self.policy_version, "temperatures": self.temperatures}
        return Trajectory(self.tokens, self.by_policy, self.log_probabilities, float(advantage), **others)


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
        row["completions"] = [dataclasses.asdict(completion) for completion in record.completions]
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
            {"turn": wait.turn, "for": wait.service, "start": round(wait.start, 4), "end": round(wait.end, 4)}
            for wait in record.waits
        ]
        row["seconds"] = {"waits": waits}
    return row


def token_arrays(row: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the `tokens`, `by_policy`, `log_probabilities` and `turn` of the record that `episode_json` wrote.

    They are equal to the record's bit for bit. Rows of runs before 2026-11-22 have no "tokens".
    """
    written = row["tokens"]
    turns, lengths = np.asarray(written["pieces"], np.int32).reshape(-1, 2).T
    turn = np.repeat(turns, lengths)
    by_policy = np.array([False, *(said["by"] == "policy" for said in row["turns"])], np.bool_)[turn + 1]
    ids, scores = np.asarray(written["ids"], np.int32), np.zeros(len(turn), np.float32)
    if len(ids) != len(turn) or len(written["log_probabilities"]) != by_policy.sum():
        raise ValueError("the pieces of an episode's tokens do not add up to its ids and log-probabilities")
    scores[by_policy] = np.array(written["log_probabilities"], np.float64)  # null becomes NaN
    return {"tokens": ids, "by_policy": by_policy, "log_probabilities": scores, "turn": turn}


def record_of(row: Mapping[str, Any], question: Question) -> EpisodeRecord:
    """Returns the record that `episode_json` wrote, whose question is given.

    Times are rounded, tuples in `outcome.extra` are lists, and the program's counts are only among all `counts`.
    """
    outcome = dict(row["outcome"])
    counts, finished = outcome.pop("counts"), outcome.pop("finished")
    waits = (Wait(wait["turn"], wait["for"], wait["start"], wait["end"]) for wait in row["seconds"]["waits"])
    return EpisodeRecord(
        question=question,
        prompt=row["prompt"],
        turns=tuple(Turn(**turn) for turn in row["turns"]),
        **token_arrays(row),
        policy_version=row["policy_version"],
        temperatures=(),  # which rows do not have
        outcome=Outcome(**outcome),
        counts=counts,
        finished=finished,
        episode=row["episode"],
        failure=row.get("failure"),
        completions=tuple(SideCompletion(**completion) for completion in row.get("completions", ())),
        opening=tuple(row.get("opening", ())),
        system=row.get("system"),
        waits=tuple(waits),
    )

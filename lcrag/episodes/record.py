"""What an episode leaves behind: one truth per token, and its form as a line of JSON."""

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
    """A stretch of the dialogue by one side."""

    by: Literal["policy", "environment"]
    text: str


@dataclasses.dataclass(frozen=True)
class SideCompletion:
    """What was completed beside the dialogue.

    Attributes:
      model: Who completed it; None: the policy.
      prompt: What it was asked, in the chat template if one was used.
      text: What it wrote.
      tokens: How many it sampled.
    """

    model: str | None
    prompt: str
    text: str
    tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """One finished episode; its arrays are equally long, a place for each token of the context.

    Attributes:
      question: What was asked.
      prompt: The environment's opening text, before the policy's first token, in the chat template if one was used.
      turns: What followed it.
      tokens: Ids as they stood in the context; sampled ids were never decoded and encoded again.
      by_policy: Whether the policy sampled the token (end-of-sequence and what its last token holds
        beyond the stop string included).
      log_probabilities: Of the untruncated distribution at the sampling temperature; 0 where the environment wrote.
      turn: Index into `turns`; -1 in the prompt.
      policy_version: Version of the parameters that sampled it.
      outcome: What the program came to.
      counts: searches (queries asked), retrieval_rounds (times that the program waited for some), retrieval_failures
        (requests that failed after every retry), generations, policy_tokens, length_stops (generations that ended
        without a stop), context_full (1 if the context had no room for the next observation or generation),
        completions and completion_tokens (beside the dialogue, by the policy or another model; not among the
        generations and the policy_tokens), and what the program counted.
      finished: Whether the program ran to its own end; False: the context was full.
      episode: The number that names its random stream.
      completions: What was completed beside the dialogue, in the order asked; never trained on.
      opening: The texts of the prompt as the program wrote them, without a chat template.
      system: The program's instructions, which stand in the prompt too.
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
    completions: tuple[SideCompletion, ...] = ()
    opening: tuple[str, ...] = ()
    system: str | None = None

    def __post_init__(self):
        lengths = {len(each) for each in (self.tokens, self.by_policy, self.log_probabilities, self.turn)}
        if len(lengths) != 1:
            raise ValueError(f"the arrays of an episode must be equally long, not {sorted(lengths)}")


def episode_json(
    record: EpisodeRecord, *, group: str | int | None = None, rewards: Mapping[str, SupportsFloat] | None = None
) -> dict[str, Any]:
    """The episode as one object of `episodes/step_<n>.jsonl`.

    Args:
      record: The episode.
      group: Names the group whose baseline it shares; by default the question across languages.
      rewards: Its reward by term.
    """
    outcome = dataclasses.asdict(record.outcome)
    opening = {"opening": list(record.opening)} if "".join(record.opening) not in ("", record.prompt) else {}
    system = {"system": record.system} if record.system else {}
    beside = {"completions": [dataclasses.asdict(each) for each in record.completions]} if record.completions else {}
    return {
        "question_id": record.question.id,
        "dataset": record.question.dataset,
        "language": record.question.language,
        "group": record.question.coupling if group is None else group,
        "episode": record.episode,
        "prompt": record.prompt,
        **system,
        **opening,
        "turns": [dataclasses.asdict(turn) for turn in record.turns],
        **beside,
        "answer": record.outcome.answer,
        "outcome": outcome | {"finished": record.finished, "counts": dict(record.counts)},
        "rewards": {name: float(value) for name, value in (rewards or {}).items()},
        "policy_version": record.policy_version,
    }

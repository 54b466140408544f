"""What one slot is asked to sample, and what came of it."""

import dataclasses
from typing import Literal

import numpy as np

FinishReason = Literal["stop", "eos", "length"]
FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "eos", "length")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """How to continue one context.

    Attributes:
      stop: Strings that end the generation, wherever token boundaries fall.
      max_tokens: At most this many tokens; fewer if the context is full before.
      temperature: Divides the logits; 0 is greedy.
      top_p: Nucleus mass (Holtzman et al., 2020); 1 samples the whole distribution.
      seed: With `episode`, names the random stream; the random number of a token is a
        function of (seed, episode, position) only.
      episode: See `seed`.
    """

    stop: tuple[str, ...] = ()
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    episode: int = 0


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A finished generation.

    Attributes:
      tokens: int32[n], as sampled; these are what is trained on.
      log_probabilities: float32[n], of the untruncated distribution at the sampling
        temperature (at temperature 1 where the choice was greedy).
      text: Up to and including the stop string; what follows it inside the last token is left out.
      finish_reason: "stop", "eos" or "length" (max_tokens reached or context full).
    """

    tokens: np.ndarray
    log_probabilities: np.ndarray
    text: str
    finish_reason: FinishReason

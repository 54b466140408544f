"""Lossless drafts: tokens copied from a slot's own context, and verified several at a time.

A token is a function of its logits and of a random number that depends only on (seed, episode, position). A drafted
token is therefore accepted if and only if it equals the token that is sampled in its place, and one forward pass
verifies all drafted tokens. This is speculative decoding (Leviathan et al., 2023) without rejection sampling; it
changes no token. Drafts are the continuation of the latest earlier occurrence of the last tokens (prompt look-up,
Saxena, 2023), because queries, quotes and answers are largely copied from the question and the passages.
"""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Int

GRAM = 3  # tokens at the end of a context that are looked up; fewer if they occur nowhere else
TRIAL_PASSES = 256  # forward passes of a slot over which acceptance is judged
PAUSE_BLOCKS = 16  # blocks without drafts before they are tried again


def drafted(
    history: Int[Array, "slots positions"], lengths: Int[Array, "slots"], count: int
) -> Int[Array, "slots count"]:
    """Returns the tokens that followed the latest earlier occurrence of each context's last tokens.

    An occurrence of `GRAM` tokens is preferred to one of fewer. If not even the last token occurs
    earlier, the tokens are arbitrary.

    Args:
      history: The tokens of each context, arbitrary from its length on.
      lengths: Tokens in each context.
      count: Number of tokens to draft.
    """
    places = jnp.arange(history.shape[1])
    last = lengths[:, None] - 1
    agreeing, longest = places < last, jnp.zeros(history.shape, jnp.int32)
    for back in range(GRAM):
        own = jnp.take_along_axis(history, jnp.maximum(last - back, 0), axis=1)
        earlier = jnp.pad(history, ((0, 0), (back, 0)), constant_values=-1)[:, : history.shape[1]]
        agreeing = agreeing & (earlier == own)
        longest = longest + agreeing
    best = jnp.argmax(longest * history.shape[1] + places, axis=1)[:, None]
    following = best + 1 + jnp.arange(count) % jnp.maximum(last - best, 1)  # what repeats itself goes on to do so
    return jnp.take_along_axis(history, jnp.minimum(following, history.shape[1] - 1), axis=1)


@dataclasses.dataclass
class DraftSwitch:
    """Decides, block by block, whether the accepted drafts outweigh their cost.

    It counts tokens instead of time, so a repeated run makes the same decisions.

    Attributes:
      count: Tokens drafted at each step; 0: no drafts.
      least_tokens: Average number of tokens per forward pass below which drafts pause.
    """

    count: int
    least_tokens: float
    _passes: int = 0
    _tokens: int = 0
    _paused: int = 0

    def next(self) -> int:
        """Returns the number of tokens to draft at each step of the next block."""
        if self._paused:
            self._paused -= 1
            return 0
        return self.count

    def record(self, passes: int, tokens: int) -> None:
        """Counts the forward passes and the sampled tokens of a block with drafts."""
        self._passes, self._tokens = self._passes + passes, self._tokens + tokens
        if self._passes >= TRIAL_PASSES:
            self._paused = 0 if self._tokens >= self.least_tokens * self._passes else PAUSE_BLOCKS
            self._passes = self._tokens = 0

    def reset(self) -> None:
        """Resets the counts."""
        self._passes = self._tokens = self._paused = 0


def with_tokens(
    history: Int[Array, "slots positions"], positions: Int[Array, "slots time"], tokens: Int[Array, "slots time"]
) -> Int[Array, "slots positions"]:
    """Writes tokens into their positions; positions beyond the end are dropped."""
    rows = jnp.arange(history.shape[0])[:, None]
    return history.at[rows, positions].set(tokens, mode="drop")

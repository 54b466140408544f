"""What calls of a tool cost: rewards adjusted within groups, and when the confidence gate opens.

Paper: Translate-R1, section 4.3 and appendix G. All kernels see rewards as [groups, size]: a row holds the samples of
one prompt. With c the number of calls, and C the correct samples of a group:

    flat            r_i - strength c_i
    otc             r_i times the optimal-tool-call factor (Wang et al. 2025, arXiv:2504.14870), see `_otc_factors`
    group_relative  r_i + strength (w_i - mean_C w) for i in C, w_i = (max_C c - c_i) / (max_C c - min_C c)
    gated           as group_relative, but only in groups where enough of C made no call, and some of C made one

The last two add nothing to a group as a whole: within C the adjustments sum to zero.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int
from scipy.stats import binom

from lcrag.errors import UserError

Groups = Float[Array, "groups size"]
METHODS = ("none", "flat", "otc", "group_relative", "gated")


def cost_adjusted_rewards(
    rewards: Float[ArrayLike, "groups size"],
    calls: Int[ArrayLike, "groups size"],
    correct: Bool[ArrayLike, "groups size"],
    method: str,
    strength: float = 0.1,
    minimum_native_correct: int = 6,
) -> Groups:
    """Makes samples that call a tool worth less than equally good ones that do not.

    Args:
      rewards: Of each sample.
      calls: How often it called the tool, refused calls included.
      correct: Whether it counts as correct.
      method: One of `METHODS`; "none" changes nothing.
      strength: alpha of "flat", lambda of "group_relative" and "gated"; "otc" has no strength.
      minimum_native_correct: k of "gated": correct samples without a call that open the gate.

    Returns:
      The adjusted rewards, float32.

    Raises:
      UserError: there is no such method.
    """
    if method not in METHODS:
        raise UserError(f"no cost of calls is called {method!r}: choose one of {', '.join(METHODS)}")
    columns = (np.asarray(rewards, np.float32), np.asarray(calls, np.float32), np.asarray(correct, bool))
    return _adjusted(*columns, strength, minimum_native_correct, method=method)


def gate_firing_probability(p: float, size: int = 8, minimum: int = 6) -> float:
    """How often the gate opens in groups whose samples make no call and are correct with probability `p`.

    P(Binomial(size, p) >= minimum): Translate-R1, appendix G, equation 4. With 8 samples and a minimum of 6 it is 0.80
    at p = 0.8 and 0.004 at p = 0.25.

    Args:
      p: Probability that a sample is correct without a call.
      size: Samples of a group.
      minimum: Correct samples without a call that open the gate.

    Raises:
      UserError: `p` is no probability.
    """
    if not 0.0 <= p <= 1.0:
        raise UserError(f"the probability of a correct sample is {p}: give it a value from 0 to 1")
    return float(binom.sf(minimum - 1, size, p))


@functools.partial(jax.jit, static_argnames="method")
def _adjusted(rewards: Groups, calls: Groups, correct: Bool[Array, "groups size"], strength, minimum, *, method: str):
    if method == "flat":
        return rewards - strength * calls
    if method == "otc":
        return rewards * _otc_factors(calls, correct)
    if method == "group_relative":
        return rewards + strength * _efficiency(calls, correct)
    if method == "gated":
        return rewards + strength * jnp.where(_open(calls, correct, minimum), _efficiency(calls, correct), 0.0)
    return rewards


def _efficiency(calls: Groups, correct: Bool[Array, "groups size"]) -> Groups:
    """w_i - mean_C w within C: positive for fewer calls than others need, and 0 where all of C call equally often."""
    fewest = jnp.min(calls, axis=-1, keepdims=True, where=correct, initial=jnp.inf)
    most = jnp.max(calls, axis=-1, keepdims=True, where=correct, initial=-jnp.inf)
    spread = most - fewest
    weights = jnp.where(correct & (spread > 0), (most - calls) / jnp.where(spread > 0, spread, 1.0), 0.0)
    members = jnp.maximum(jnp.sum(correct, axis=-1, keepdims=True), 1)
    return jnp.where(correct, weights - jnp.sum(weights, axis=-1, keepdims=True) / members, 0.0)


def _open(calls: Groups, correct: Bool[Array, "groups size"], minimum) -> Bool[Array, "groups 1"]:
    """The gate: at least `minimum` correct samples made no call, and some correct one did."""
    native = jnp.sum(correct & (calls == 0), axis=-1, keepdims=True)
    return (native >= minimum) & jnp.any(correct & (calls > 0), axis=-1, keepdims=True)


def _otc_factors(calls: Groups, correct: Bool[Array, "groups size"]) -> Groups:
    """sin(f pi / 2n) with f = 2nm / (m + n): 1 for m = n calls, the fewest among C, and less for any other number.

    Where the fewest are n = 0: cos(m pi / (2m + c)), c the most calls of the group. A group with nothing correct has no
    n, and keeps its rewards.
    """
    fewest = jnp.min(calls, axis=-1, keepdims=True, where=correct, initial=jnp.inf)
    most = jnp.max(calls, axis=-1, keepdims=True, initial=0.0)
    without = jnp.cos(jnp.pi * calls / jnp.maximum(2 * calls + most, 1.0))
    least = jnp.where(jnp.isfinite(fewest), jnp.maximum(fewest, 1.0), 1.0)
    harmonic = jnp.sin(jnp.pi * calls / (calls + least))
    return jnp.where(jnp.isfinite(fewest), jnp.where(fewest == 0, without, harmonic), 1.0)

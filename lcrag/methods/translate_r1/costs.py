"""The cost of tool calls: rewards adjusted within groups, and the confidence gate (Translate-R1, 4.3 and appendix G).

All kernels take rewards as [groups, size], a row for the samples of one prompt. With c the number of calls and C the
correct samples of a group:

    flat            r_i - strength c_i
    otc             r_i times the optimal-tool-call factor (Wang et al. 2025, arXiv:2504.14870)
    group_relative  r_i + strength (w_i - mean_C w) for i in C, w_i = (max_C c - c_i) / (max_C c - min_C c)
    gated           as group_relative, but only in groups where enough of C made no call, and some of C made one

The adjustments of the last two sum to zero within C.
"""

import dataclasses
import functools
from typing import Literal

import gin
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from lcrag.errors import Count, NotNegative, UserError, lookup, typed
from lcrag.rewards.terms import Episodes, TermSum, Values

Groups = Float[Array, "groups size"]
METHODS = dict.fromkeys(("none", "flat", "otc", "group_relative", "gated"))


def cost_adjusted_rewards(
    rewards: Float[ArrayLike, "groups size"],
    calls: Int[ArrayLike, "groups size"],
    correct: Bool[ArrayLike, "groups size"],
    method: str,
    strength: float = 0.1,
    minimum_native_correct: int = 6,
) -> Groups:
    """Lowers the rewards of samples that call a tool relative to equally good ones that do not.

    Args:
      calls: Number of tool calls, refused ones included.
      method: One of `METHODS`; "none" changes nothing.
      strength: alpha of "flat", lambda of "group_relative" and "gated"; unused by "otc".
      minimum_native_correct: k of "gated", the number of correct samples without a call that opens the gate.
    """
    lookup(METHODS, method, "cost.method")
    columns = (np.asarray(rewards, np.float32), np.asarray(calls, np.float32), np.asarray(correct, bool))
    return _adjusted(*columns, strength, minimum_native_correct, method=method)


@functools.partial(jax.jit, static_argnames="method")
def _adjusted(rewards: Groups, calls: Groups, correct: Bool[Array, "groups size"], strength, minimum, *, method: str):
    if method == "none":
        return rewards
    if method == "flat":
        return rewards - strength * calls
    fewest = jnp.min(calls, axis=-1, keepdims=True, where=correct, initial=jnp.inf)
    if method == "otc":
        # sin(f pi / 2n) with f = 2nm / (m + n): 1 for m = n calls, the fewest among C, less for any other number. Where
        # the fewest are n = 0: cos(m pi / (2m + c)), c the most calls of the group. Without C there is no n: factor 1.
        most = jnp.max(calls, axis=-1, keepdims=True, initial=0.0)
        without = jnp.cos(jnp.pi * calls / jnp.maximum(2 * calls + most, 1.0))
        least = jnp.where(jnp.isfinite(fewest), jnp.maximum(fewest, 1.0), 1.0)
        harmonic = jnp.sin(jnp.pi * calls / (calls + least))
        return rewards * jnp.where(jnp.isfinite(fewest), jnp.where(fewest == 0, without, harmonic), 1.0)
    # w_i - mean_C w within C: positive for fewer calls than others, 0 where all of C call equally often.
    most = jnp.max(calls, axis=-1, keepdims=True, where=correct, initial=-jnp.inf)
    spread = most - fewest
    weights = jnp.where(correct & (spread > 0), (most - calls) / jnp.where(spread > 0, spread, 1.0), 0.0)
    members = jnp.maximum(jnp.sum(correct, axis=-1, keepdims=True), 1)
    efficiency = jnp.where(correct, weights - jnp.sum(weights, axis=-1, keepdims=True) / members, 0.0)
    if method == "gated":  # open if at least `minimum` of C made no call, and some of C did
        native = jnp.sum(correct & (calls == 0), axis=-1, keepdims=True)
        is_open = (native >= minimum) & jnp.any(correct & (calls > 0), axis=-1, keepdims=True)
        efficiency = jnp.where(is_open, efficiency, 0.0)
    return rewards + strength * efficiency


def gate_firing_probability(p: float, size: int = 8, minimum: int = 6) -> float:
    """Returns the probability that the gate opens if no sample calls and each is correct with probability `p`.

    P(Binomial(size, p) >= minimum): Translate-R1, appendix G, equation 4. With 8 samples and a minimum of 6 it is 0.80
    at p = 0.8 and 0.004 at p = 0.25.
    """
    if not 0.0 <= p <= 1.0:
        raise UserError(f"the probability of a correct sample is {p}: give it a value from 0 to 1")
    from scipy.stats import binom  # here, since every command imports this module, and scipy.stats takes a second

    return float(binom.sf(minimum - 1, size, p))


@gin.configurable
@typed
def cost(
    reward: TermSum,
    method: Literal["none", "flat", "otc", "group_relative", "gated"] = "gated",
    strength: NotNegative = 0.1,
    minimum_native_correct: Count = 6,
    correct_threshold: float = 0.5,
) -> TermSum:
    """Adds the cost of tool calls to a task reward (Translate-R1, section 4.3).

    Args:
      method, strength, minimum_native_correct: As in `cost_adjusted_rewards` (the paper: 6 of 8).
      correct_threshold: Minimum task reward of a correct sample (0.5 for graded rewards).

    Returns:
      The reward with the cost as its last adjustment, which adds "task", the total before, "cost", the adjustment, and
      "cost_fired", whether the episode's group has a nonzero one: its mean is the share of groups with a cost, for
      "gated" the share in which the gate was open.
    """

    def check_group(samples: int) -> None:
        if method == "gated" and samples < minimum_native_correct:
            raise UserError(
                f"cost.minimum_native_correct is {minimum_native_correct}, but groups have {samples} samples, so the"
                " gate would never open: lower it, or raise Method.samples"
            )

    def adjust(episodes: Episodes, total: Values) -> tuple[Values, dict[str, Values]]:
        calls = np.array(episodes.reported("tool_calls", "translate_r1"), int)
        # One row a group, whose episodes may be anywhere in the batch. Groups may differ in size; the rest is zero.
        _, row, sizes = np.unique(np.asarray(episodes.group_ids), return_inverse=True, return_counts=True)
        column = np.empty(len(row), int)
        column[np.argsort(row, kind="stable")] = np.concatenate([np.arange(0), *map(np.arange, sizes)])
        shape = (len(sizes), sizes.max(initial=0))
        rewards, counted, correct = np.zeros(shape), np.zeros(shape, int), np.zeros(shape, bool)
        rewards[row, column], counted[row, column] = total, calls
        correct[row, column] = total >= correct_threshold
        adjusted = cost_adjusted_rewards(rewards, counted, correct, method, strength, minimum_native_correct)
        costs = np.asarray(adjusted, np.float64) - rewards.astype(np.float32)
        added, fired = costs[row, column], (costs != 0).any(axis=-1)
        return total + added, {"task": total, "cost": added, "cost_fired": fired[row].astype(float)}

    return dataclasses.replace(
        reward, adjustments=(*reward.adjustments, adjust), group_checks=(*reward.group_checks, check_group)
    )

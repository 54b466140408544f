"""Advantages from rewards: group baselines and generalized advantage estimation.

Episodes with the same group id share a baseline: the samples of one prompt in plain GRPO, or those of all language
versions of a question in LcRL.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Integer


def group_advantages(
    rewards: Float[ArrayLike, " n"],
    group_ids: Integer[ArrayLike, " n"],
    normalise_std: bool = True,
    ddof: int = 1,
    epsilon: float = 1e-6,
    min_std: float = 0.0,
) -> Float[Array, " n"]:
    """Computes group-relative advantages, (r - mean_group) / (max(std_group, min_std) + epsilon).

    GRPO: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2. Without the division it is the advantage of Dr. GRPO,
    Liu et al. 2025 (arXiv:2503.20783), section 3.2.

    Args:
      rewards: Reward of each episode; NaN for an episode that could not be scored, which no baseline includes.
      group_ids: Any integer for each episode; episodes with equal ids share a baseline, in any order.
      normalise_std: Whether to divide by the group's standard deviation.
      ddof: The standard deviation divides by (group size - ddof).
      epsilon: Added to the standard deviation.
      min_std: Minimum of the standard deviation. With 0, as in the papers, rewards that differ by .01 in a group have
        the same advantages as rewards that differ by 1.

    Returns:
      One advantage per episode; 0 for a group of one and for NaN.
    """
    if not isinstance(group_ids, jax.Array):  # 64-bit ids would lose their upper half on the device
        group_ids = np.unique(np.asarray(group_ids), return_inverse=True)[1]
    return _group_advantages(rewards, group_ids, normalise_std, ddof, epsilon, min_std)


@functools.partial(jax.jit, static_argnames="normalise_std")
def _group_advantages(rewards, group_ids, normalise_std, ddof, epsilon, min_std):
    count = len(group_ids)
    segments = jnp.unique(group_ids, size=count, return_inverse=True)[1].reshape(-1)

    def total(values):
        return jax.ops.segment_sum(values, segments, count)[segments]

    rewards = jnp.asarray(rewards, jnp.float32)
    scored = ~jnp.isnan(rewards)
    # Subtracting the group's lowest reward first gives a group of equal rewards deviations of exactly 0. Otherwise
    # rounding would leave 1e-8, which division by a standard deviation of 1e-6 would enlarge.
    lowest = jax.ops.segment_min(jnp.where(scored, rewards, jnp.inf), segments, count)[segments]
    above_lowest = jnp.where(scored, rewards - lowest, 0.0)
    sizes = total(scored.astype(jnp.float32))
    deviations = jnp.where(scored, above_lowest - total(above_lowest) / sizes, 0.0)
    if normalise_std:
        std = jnp.sqrt(total(deviations**2) / jnp.maximum(sizes - ddof, 1))
        deviations = deviations / (jnp.maximum(std, min_std) + epsilon)
    return jnp.where(sizes > 1, deviations, 0.0)


def generalized_advantages(
    rewards: Float[ArrayLike, "batch time"],
    values: Float[ArrayLike, "batch time"],
    mask: Bool[ArrayLike, "batch time"],
    discount: float,
    trace: float,
) -> tuple[Float[Array, "batch time"], Float[Array, "batch time"]]:
    """Estimates advantages of the policy's own tokens (GAE, Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    Let t+ be the next token of the *policy* after t; retrieved text in between is skipped. Then
    delta_t = r_t + discount * V_t+ - V_t and A_t = delta_t + discount * trace * A_t+. After the last policy token V
    and A are 0, because the episode has ended and is not truncated. Values outside the mask are not used.

    Args:
      rewards: Reward of each token.
      values: The critic's value before each token is sampled.
      mask: True on the policy's own tokens.
      discount: gamma, per policy token.
      trace: lambda.

    Returns:
      (advantages, returns = advantages + values), both 0 outside the mask.
    """
    mask = jnp.asarray(mask, bool)
    rewards, values = (jnp.where(mask, jnp.asarray(a, jnp.float32), 0.0) for a in (rewards, values))

    def backwards(later, now):
        value_next, advantage_next = later
        r_t, v_t, chosen = now
        advantage = r_t + discount * value_next - v_t + discount * trace * advantage_next
        later = jnp.where(chosen, v_t, value_next), jnp.where(chosen, advantage, advantage_next)
        return later, jnp.where(chosen, advantage, 0.0)

    nothing = jnp.zeros(rewards.shape[0], jnp.float32)
    _, advantages = jax.lax.scan(backwards, (nothing, nothing), (rewards.T, values.T, mask.T), reverse=True)
    return advantages.T, advantages.T + values

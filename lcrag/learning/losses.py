"""Building blocks of losses: pure functions of arrays [batch, time] and the mask of the policy's own tokens.

Ratios, surrogate and KL estimates are per token; they expect arrays that are 0 outside the mask. An aggregation reduces
per-token values to a scalar and never reads outside the mask. It is a sum divided by a normaliser: with the normaliser
of a larger batch, the losses and gradients of its micro-batches add up to exactly those of the whole batch.
`lcrag.learning.objectives` combines these functions.
"""

from typing import TypeAlias

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

Values: TypeAlias = Float[ArrayLike, "batch time"]
Tokens: TypeAlias = Float[Array, "batch time"]
Mask: TypeAlias = Bool[ArrayLike, "batch time"]
Scalar: TypeAlias = Float[Array, ""]
Metrics: TypeAlias = dict[str, Float[Array, ""]]

MOST_LOG_RATIO = 20.0  # such ratios are clipped anyway, and an infinite one would turn the zero gradient into NaN


def token_ratio(log_policy: Values, log_old: Values, mask: Mask) -> Tokens:
    """Compute w_t = policy(o_t) / old policy(o_t).

    PPO: Schulman et al. 2017 (arXiv:1707.06347), section 3. GRPO: Shao et al. 2024 (arXiv:2402.03300), equation 3.
    """
    return jnp.exp(jnp.clip(log_policy - log_old, -MOST_LOG_RATIO, MOST_LOG_RATIO))


def sequence_ratio(log_policy: Values, log_old: Values, mask: Mask) -> Tokens:
    """Compute the geometric mean of a sequence's token ratios, repeated for each of its tokens.

    GSPO: Zheng et al. 2025 (arXiv:2507.18071), equation 7.
    """
    log_ratio, tokens = log_policy - log_old, jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    log_ratio = jnp.broadcast_to(jnp.sum(log_ratio, axis=-1, keepdims=True) / tokens, mask.shape)
    return jnp.exp(jnp.clip(log_ratio, -MOST_LOG_RATIO, MOST_LOG_RATIO))


def clipped_surrogate(ratio: Values, advantages: Values, clip_low: float, clip_high: float) -> Tokens:
    """Compute the clipped surrogate min(w A, clip(w, 1 - clip_low, 1 + clip_high) A), to be maximised.

    PPO: arXiv:1707.06347, equation 7. Unequal limits: DAPO, Yu et al. 2025 (arXiv:2503.14476), equation 10.
    """
    clipped = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    return jnp.minimum(ratio * advantages, clipped * advantages)


def truncated_importance_weights(
    log_old: Values, log_sampling: Values, mask: Mask, cap: float
) -> tuple[Tokens, Bool[Array, "batch time"]]:
    """Compute the weight min(old policy / sampling policy, cap) of each token, and whether the cap lowered it.

    Truncated importance sampling: Ionides 2008; per token as in Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training", and in TRL. Both probabilities are constants of the loss.
    """
    weights = token_ratio(log_old, log_sampling, mask)
    return jnp.minimum(weights, cap), weights > cap


def kl_k1(log_ratio: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Estimate KL(policy || reference) per token by -log_ratio: unbiased, of either sign.

    The estimators k1, k2 and k3 are Schulman's (2020, "Approximating KL divergence"), with
    log_ratio = log reference - log policy of tokens that the policy sampled.
    """
    return -log_ratio


def kl_k2(log_ratio: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Estimate KL(policy || reference) per token by log_ratio^2 / 2: biased, never negative."""
    return log_ratio**2 / 2


def kl_k3(log_ratio: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Estimate KL(policy || reference) per token by exp(log_ratio) - 1 - log_ratio: unbiased, never negative.

    GRPO: arXiv:2402.03300, equation 4.
    """
    return jnp.expm1(log_ratio) - log_ratio


def clipped_value_error(values: Values, old_values: Values, returns: Values, clip: float) -> Tokens:
    """Compute (clip(V, V_old - c, V_old + c) - R)^2, which is constant in V beyond the clip.

    PPO's first implementation (Dhariwal et al. 2017, OpenAI Baselines) and TRL.
    """
    return (jnp.clip(values, old_values - clip, old_values + clip) - returns) ** 2


def sequence_mean(values: Values, mask: Mask, normaliser: Float[ArrayLike, ""] | None = None) -> Scalar:
    """Compute 1/N sum_i 1/|o_i| sum_t values_it (GRPO, arXiv:2402.03300, equation 3; GSPO).

    o_i are the tokens of sequence i in the mask, N the sequences that have any; `normaliser` replaces N.
    """
    if normaliser is None:
        normaliser = sequence_count(mask)
    values = jnp.where(mask, values, 0.0)
    return jnp.sum(values / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)) / normaliser


def token_mean(values: Values, mask: Mask, normaliser: Float[ArrayLike, ""] | None = None) -> Scalar:
    """Compute 1/(sum_i |o_i|) sum_i sum_t values_it (DAPO, arXiv:2503.14476, equation 12).

    `normaliser` replaces the number of tokens in the mask.
    """
    return jnp.sum(jnp.where(mask, values, 0.0)) / (token_count(mask) if normaliser is None else normaliser)


def constant_mean(values: Values, mask: Mask, normaliser: Float[ArrayLike, ""] | None = None) -> Scalar:
    """Compute 1/(batch x time) sum_i sum_t values_it (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, section 3.2).

    `normaliser` replaces the constant batch x time.
    """
    return jnp.sum(jnp.where(mask, values, 0.0)) / (mask.size if normaliser is None else normaliser)


AGGREGATIONS = {"sequence_mean": sequence_mean, "token_mean": token_mean, "constant": constant_mean}


def sequence_count(mask: Bool[ArrayLike, "... time"]) -> Scalar:
    """Count the sequences with at least one token in the mask; at least 1."""
    return jnp.maximum(jnp.sum(jnp.any(mask, axis=-1)), 1).astype(jnp.float32)


def token_count(mask: Bool[ArrayLike, "... time"]) -> Scalar:
    """Count the tokens in the mask; at least 1."""
    return jnp.maximum(jnp.sum(mask), 1).astype(jnp.float32)


def loss_normaliser(mask: Bool[ArrayLike, "... time"], aggregation: str, length: int | None = None) -> Scalar:
    """Compute the normaliser of an aggregation over the mask.

    For "constant" it is sequences x `length`, with the sequences that have a token in the mask.
    """
    if aggregation == "constant":
        return jnp.maximum(jnp.sum(jnp.any(mask, axis=-1)) * length, 1).astype(jnp.float32)
    return sequence_count(mask) if aggregation == "sequence_mean" else token_count(mask)

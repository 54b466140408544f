"""Advantages and losses: pure functions of arrays [batch, time] and the mask of the policy's tokens.

Ratios, surrogate and KL estimates are per token; they expect arrays that are 0 outside the mask. An aggregation reduces
per-token values to a scalar and never reads outside the mask. It is a sum divided by a normaliser: with the normaliser
of a larger batch, the losses and gradients of its micro-batches add up to exactly those of the whole batch.

In the metrics, names under "loss/" are parts of the loss and add up like it, those in `MAXIMA` are maxima, and all
others are means over the tokens of the mask.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Integer

from lcrag.errors import Count, NotNegative, Positive, Share, UserError, lookup, typed
from lcrag.learning.sequence_packing import Batch

# --- Advantages ---


def group_advantages(
    rewards: Float[ArrayLike, " n"],
    group_ids: Integer[ArrayLike, " n"] | Sequence[int],
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
      min_std: Minimum of the standard deviation. With 0, as in the papers, rewards that differ by 0.01 in a group have
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


# --- Parts of losses ---

Values: TypeAlias = Float[ArrayLike, "batch time"]
Tokens: TypeAlias = Float[Array, "batch time"]
Mask: TypeAlias = Bool[ArrayLike, "batch time"]
Scalar: TypeAlias = Float[Array, ""]
Metrics: TypeAlias = dict[str, Float[Array, ""]]

MAXIMA = ("sampling_training_gap",)
TAIL = 2.0  # "ratio/tail" counts ratios beyond this factor
MAX_LOG_RATIO = 20.0  # such ratios are clipped anyway, and an infinite one would turn the zero gradient into NaN

MAX_KL = 10.0  # of a token, by k3: where the policy is 14 times less likely than the reference


def _bounded(log_ratio: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Clips log ratios to +-`MAX_LOG_RATIO`, as verl's trainer does; one token beyond it has no gradient."""
    return jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def token_ratio(log_policy: Values, log_old: Values, mask: Mask) -> Tokens:
    """Compute w_t = policy(o_t) / old policy(o_t).

    PPO: Schulman et al. 2017 (arXiv:1707.06347), section 3. GRPO: Shao et al. 2024 (arXiv:2402.03300), equation 3.
    """
    return jnp.exp(_bounded(log_policy - log_old))


def sequence_ratio(log_policy: Values, log_old: Values, mask: Mask) -> Tokens:
    """Compute the geometric mean of a sequence's token ratios, repeated for each of its tokens.

    GSPO: Zheng et al. 2025 (arXiv:2507.18071), equation 7.
    """
    log_ratio, tokens = log_policy - log_old, jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    log_ratio = jnp.broadcast_to(jnp.sum(log_ratio, axis=-1, keepdims=True) / tokens, mask.shape)
    return jnp.exp(_bounded(log_ratio))


def kl_k1(log_ratio: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Estimate KL(policy || reference) per token by -log_ratio: unbiased, of either sign.

    The estimators k1, k2 and k3 are Schulman's (2020, "Approximating KL divergence"), with
    log_ratio = log reference - log policy of tokens that the policy sampled, clipped like that of a ratio.
    """
    return -_bounded(log_ratio)


def kl_k2(log_ratio: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Estimate KL(policy || reference) per token by log_ratio^2 / 2: biased, never negative."""
    return _bounded(log_ratio) ** 2 / 2


def kl_k3(log_ratio: Float[ArrayLike, "..."]) -> Float[Array, "..."]:
    """Estimate KL(policy || reference) per token by exp(log_ratio) - 1 - log_ratio: unbiased, never negative.

    GRPO: arXiv:2402.03300, equation 4. At most `MAX_KL`, as in verl's trainer, and constant beyond: the gradient of a
    token that the policy finds far less likely than the reference would outweigh all others of a batch.
    """
    log_ratio = _bounded(log_ratio)
    return jnp.minimum(jnp.expm1(log_ratio) - log_ratio, MAX_KL)


def loss_normaliser(mask: Bool[ArrayLike, "... time"], aggregation: str, length: int | None = None) -> Scalar:
    """Compute the normaliser of an aggregation over a mask, at least 1.

    "token_mean": the tokens in the mask; "sequence_mean": the sequences that have any; "constant": these x `length`.
    """
    count = jnp.sum(mask if aggregation == "token_mean" else jnp.any(mask, axis=-1))
    if aggregation == "constant":
        count *= length
    return jnp.maximum(count, 1).astype(jnp.float32)


def sequence_mean(values: Values, mask: Mask, normaliser: Float[ArrayLike, ""] | None = None) -> Scalar:
    """Compute 1/N sum_i 1/|o_i| sum_t values_it (GRPO, arXiv:2402.03300, equation 3; GSPO).

    o_i are the tokens of sequence i in the mask, N the sequences that have any; `normaliser` replaces N.
    """
    values = jnp.where(mask, values, 0.0) / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    return jnp.sum(values) / (loss_normaliser(mask, "sequence_mean") if normaliser is None else normaliser)


def token_mean(values: Values, mask: Mask, normaliser: Float[ArrayLike, ""] | None = None) -> Scalar:
    """Compute 1/(sum_i |o_i|) sum_i sum_t values_it (DAPO, arXiv:2503.14476, equation 12).

    `normaliser` replaces the number of tokens in the mask.
    """
    total = jnp.sum(jnp.where(mask, values, 0.0))
    return total / (loss_normaliser(mask, "token_mean") if normaliser is None else normaliser)


def constant_mean(values: Values, mask: Mask, normaliser: Float[ArrayLike, ""] | None = None) -> Scalar:
    """Compute 1/(batch x time) sum_i sum_t values_it (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, section 3.2).

    `normaliser` replaces the constant batch x time.
    """
    return jnp.sum(jnp.where(mask, values, 0.0)) / (mask.size if normaliser is None else normaliser)


def token_means(values: dict[str, Array], mask: Mask) -> Metrics:
    """Compute the mean of each metric over the tokens of the mask."""
    return {name: token_mean(value.astype(jnp.float32), mask) for name, value in values.items()}


RATIOS = {"token": token_ratio, "sequence": sequence_ratio}
KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
AGGREGATIONS = {"sequence_mean": sequence_mean, "token_mean": token_mean, "constant": constant_mean}


def policy_gradient_loss(
    log_probabilities: Values,
    sampling_log_probabilities: Values,
    advantages: Values | Float[ArrayLike, " batch"],
    mask: Mask,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregation: str = "sequence_mean",
    ratio: str = "token",
    reference_log_probabilities: Values | None = None,
    kl_coefficient: float = 0.0,
    kl_estimator: str = "k3",
    *,
    old_log_probabilities: Values | None = None,
    importance_cap: float | None = None,
    normaliser: Float[ArrayLike, ""] | None = None,
) -> tuple[Scalar, Metrics]:
    """Compute aggregate(-surrogate x importance weight) + kl_coefficient x aggregate(KL to the reference).

    Args:
      log_probabilities: Of the policy being trained; gradients flow only through these.
      sampling_log_probabilities: Of the policy that sampled, recorded when sampling.
      advantages: Per token, or per sequence.
      mask: True on the policy's own tokens.
      clip_low, clip_high: The ratio is clipped to 1 - clip_low and 1 + clip_high.
      aggregation: "sequence_mean", "token_mean" or "constant"; the normalisers are the number of sequences, the number
        of tokens and batch x time.
      ratio: "token" or "sequence": see `token_ratio` and `sequence_ratio`.
      reference_log_probabilities: Of the reference policy, for the KL term.
      kl_coefficient, kl_estimator: Weight and estimator ("k1", "k2", "k3") of the KL term.
      old_log_probabilities: The denominator of the ratio; None: the sampling policy.
      importance_cap: Truncates the weights old policy / sampling policy of the surrogate; None: no weights.
      normaliser: Replaces the aggregation's own.

    Returns:
      The loss and its metrics: "loss/policy" and "loss/kl" (the two parts, weighted), "ratio/mean", "ratio/clipped"
      (share of tokens whose gradient the clip removes) and its parts "ratio/clipped_low" and "ratio/clipped_high",
      "ratio/tail" (share of tokens whose ratio is beyond `TAIL` or below 1 / `TAIL`), "approximate_kl" (k3 of sampling
      policy || policy), "sampling_training_gap" (largest |log-probability - sampling log-probability|); with a
      reference, "reference_kl"; with a cap, "importance/mean" (of the truncated weights) and "importance/truncated"
      (share of tokens whose weight the cap lowers).
    """
    if kl_coefficient and reference_log_probabilities is None:
        raise UserError(
            f"kl_coefficient is {kl_coefficient} but there are no reference log-probabilities: score the batch with the"
            " reference policy, or set kl_coefficient to 0."
        )
    aggregate = lookup(AGGREGATIONS, aggregation, "aggregation of a loss")
    mask = jnp.asarray(mask, bool)
    advantages = jnp.asarray(advantages, jnp.float32)
    advantages = jnp.where(mask, advantages[:, None] if advantages.ndim == 1 else advantages, 0.0)
    log_policy = jnp.where(mask, log_probabilities, 0.0)

    def constant(values: Values) -> Tokens:  # no gradient flows through it
        return jax.lax.stop_gradient(jnp.where(mask, values, 0.0))

    log_sampling = constant(sampling_log_probabilities)
    log_old = log_sampling if old_log_probabilities is None else constant(old_log_probabilities)

    # The clipped surrogate min(w A, clip(w, 1 - clip_low, 1 + clip_high) A), to be maximised: PPO, arXiv:1707.06347,
    # equation 7. Unequal limits: DAPO, Yu et al. 2025 (arXiv:2503.14476), equation 10.
    ratios = lookup(RATIOS, ratio, "ratio of a loss")(log_policy, log_old, mask)
    gains = jnp.minimum(ratios * advantages, jnp.clip(ratios, 1 - clip_low, 1 + clip_high) * advantages)
    low = (ratios < 1 - clip_low) & (advantages < 0)
    high = (ratios > 1 + clip_high) & (advantages > 0)
    means = {
        "ratio/mean": ratios,
        "ratio/clipped": low | high,
        "ratio/clipped_low": low,
        "ratio/clipped_high": high,
        "ratio/tail": (ratios > TAIL) | (ratios < 1 / TAIL),
        "approximate_kl": kl_k3(log_policy - log_sampling),
    }
    if importance_cap is not None:
        # Truncated importance sampling (Ionides 2008); per token as in Yao et al. 2025, "Your efficient RL framework
        # secretly brings you off-policy RL training", and in TRL. Both probabilities are constants of the loss.
        weights = token_ratio(log_old, log_sampling, mask)
        truncated = jnp.minimum(weights, importance_cap)
        gains = gains * truncated
        means |= {"importance/mean": truncated, "importance/truncated": weights > importance_cap}
    loss = aggregate(-gains, mask, normaliser)

    # the KL to the reference
    penalty = jnp.zeros(())
    if reference_log_probabilities is not None:
        log_ratio = constant(reference_log_probabilities) - log_policy
        divergence = lookup(KL_ESTIMATORS, kl_estimator, "estimator of a KL")(log_ratio)
        penalty = kl_coefficient * aggregate(divergence, mask, normaliser)
        means |= {"reference_kl": divergence}
    gap = jnp.max(jnp.abs(log_policy - log_sampling), initial=0.0)
    metrics = {"loss/policy": loss, "loss/kl": penalty, "sampling_training_gap": gap}
    return loss + penalty, metrics | token_means(means, mask)


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient:
    """Settings of `policy_gradient_loss`, an `Objective`; the defaults are LcRL's without the KL penalty.

    The sampler's probabilities may differ from the trainer's (lower precision, another kernel). With a sequence ratio
    (GSPO, whose clip is narrower than that difference) or an `importance_cap`, the ratio is policy / old policy, both
    as the trainer computes them. With an `importance_cap`, each token's surrogate is also multiplied by the truncated
    ratio old policy / sampling policy.
    """

    clip_low: Share = 0.2
    clip_high: NotNegative = 0.2
    # "sequence_mean": GRPO, GSPO, LcRL; "token_mean": DAPO; "constant": Dr. GRPO
    aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean"
    ratio: Literal["token", "sequence"] = "token"  # PPO, GRPO; "sequence": GSPO
    kl_coefficient: NotNegative = 0.0  # weight of the KL to the reference, the policy that the run started from
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    # Weight of a bonus for the entropy, aggregated like the loss (0.001 in verl).
    entropy_coefficient: NotNegative = 0.0
    constant_length: Count | None = None  # with "constant", the loss is divided by sequences x this number of tokens
    # The largest importance weight; None: a token's ratio is policy / sampling policy.
    importance_cap: Positive | None = None

    def __post_init__(self):
        if self.aggregation == "constant" and self.constant_length is None:
            raise UserError('PolicyGradient.aggregation = "constant" needs a PolicyGradient.constant_length: set both')

    @property
    def rescores_old_policy(self) -> bool:
        """Whether the ratio is to the old policy as the trainer computes it, not to the recorded probabilities."""
        return self.importance_cap is not None or self.ratio == "sequence"

    def normaliser(self, mask: Bool[Array, "..."]) -> Scalar:
        return loss_normaliser(mask, self.aggregation, self.constant_length)

    def __call__(
        self, log_probabilities: Values, batch: Batch, normaliser: Scalar, entropy: Values | None = None
    ) -> tuple[Scalar, Metrics]:
        old = None
        if self.rescores_old_policy:  # in the first update on a rollout, the old policy is the current one
            old = batch.old_log_probabilities
            old = jax.lax.stop_gradient(log_probabilities) if old is None else old
        not_of_loss = ("constant_length", "entropy_coefficient")
        loss, metrics = policy_gradient_loss(
            log_probabilities,
            batch.sampling_log_probabilities,
            batch.advantages,
            batch.mask,
            **{name: value for name, value in vars(self).items() if name not in not_of_loss},
            reference_log_probabilities=batch.reference_log_probabilities,
            old_log_probabilities=old,
            normaliser=normaliser,
        )
        if self.entropy_coefficient:
            assert entropy is not None, "the model of a policy gives entropies"
            bonus = -self.entropy_coefficient * AGGREGATIONS[self.aggregation](entropy, batch.mask, normaliser)
            loss, metrics = loss + bonus, metrics | {"loss/entropy": bonus}
        return loss, metrics


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised:
    """Cross-entropy of the target tokens, in nats, an `Objective`; prompts and retrieved text are not targets."""

    # "token_mean" divides by the targets in the batch; "sequence_mean" weighs sequences equally
    aggregation: Literal["token_mean", "sequence_mean"] = "token_mean"

    def normaliser(self, mask: Bool[Array, "..."]) -> Scalar:
        return loss_normaliser(mask, self.aggregation)

    def __call__(
        self, log_probabilities: Values, batch: Batch, normaliser: Scalar, entropy: Values | None = None
    ) -> tuple[Scalar, Metrics]:
        loss = AGGREGATIONS[self.aggregation](-log_probabilities, batch.mask, normaliser)
        return loss, {"loss/supervised": loss}


@dataclasses.dataclass(frozen=True)
class ValueRegression:
    """The objective of a critic: 1/2 mean over tokens of max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2).

    V_old are the values at the rollout; without a clip c it is half the mean of (V - R)^2. PPO's first implementation
    (Dhariwal et al. 2017, OpenAI Baselines) and TRL. Metrics: "loss/value", "value/mean", and "value/clipped" (share of
    tokens where the clipped error is the larger one).
    """

    clip: float | None

    def normaliser(self, mask: Bool[Array, "..."]) -> Scalar:
        return loss_normaliser(mask, "token_mean")

    def __call__(
        self, values: Values, batch: Batch, normaliser: Scalar, entropy: Values | None = None
    ) -> tuple[Scalar, Metrics]:
        mask = jnp.asarray(batch.mask, bool)
        values, old_values, returns = (jnp.where(mask, array, 0.0) for array in (values, batch.values, batch.returns))
        errors = bounded = (values - returns) ** 2
        if self.clip is not None:  # constant in V beyond the clip
            bounded = (jnp.clip(values, old_values - self.clip, old_values + self.clip) - returns) ** 2
        loss = 0.5 * token_mean(jnp.maximum(errors, bounded), mask, normaliser)
        means = {"value/mean": values, "value/clipped": bounded > errors}
        return loss, {"loss/value": loss} | token_means(means, mask)

"""The losses: clipped policy gradient (GRPO, GSPO and their normalisers) and supervised cross-entropy.

Pure functions of [batch, time] arrays and a mask. Values outside the mask are never read, so padding
may hold anything, even NaN. Every loss is a sum divided by one `normaliser`; handing in the
normaliser of a larger batch makes the losses and gradients of its parts add up to exactly those of the whole.

In the metrics, names under "loss/" are parts of the loss and add up like it, those in `MAXIMA` are
maxima, and all others are means over the tokens of the mask.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from lcrag.errors import UserError

Metrics = dict[str, Float[Array, ""]]
AGGREGATIONS = ("sequence_mean", "token_mean", "constant")
RATIOS = ("token", "sequence")
KL_ESTIMATORS = ("k1", "k2", "k3")
MAXIMA = ("sampling_training_gap",)
TAIL = 2.0  # "ratio/tail" counts ratios beyond this factor


def _require(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"{name} {value!r} of the loss does not exist: choose one of {', '.join(choices)}.")


def loss_normaliser(mask: Bool[ArrayLike, "... time"], aggregation: str, length: int | None = None) -> Float[Array, ""]:
    """Return what an aggregation divides its sum by; never 0.

    "sequence_mean": sequences with at least one token in the mask; "token_mean": tokens in the mask;
    "constant": those sequences x `length`, or where no length is given every row x time.
    """
    sequences = jnp.sum(jnp.any(mask, axis=-1))
    if aggregation == "constant":
        total = mask.size if length is None else sequences * length
    else:
        total = sequences if aggregation == "sequence_mean" else jnp.sum(mask)
    return jnp.maximum(total, 1).astype(jnp.float32)


def aggregate(
    values: Float[ArrayLike, "batch time"],
    mask: Bool[ArrayLike, "batch time"],
    aggregation: str,
    normaliser: Float[ArrayLike, ""] | None = None,
) -> Float[Array, ""]:
    """Reduce per-token values to one number; which papers use which is told in `policy_gradient_loss`.

    "sequence_mean" is sum_i (sum_t values_it / tokens_i) / normaliser; "token_mean" and "constant" are
    sum_it values_it / normaliser. Without a normaliser it is `loss_normaliser` of this mask.
    """
    if normaliser is None:
        normaliser = loss_normaliser(mask, aggregation)
    values = jnp.where(mask, values, 0.0)
    if aggregation == "sequence_mean":
        values = values / jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
    return jnp.sum(values) / normaliser


def _token_mean(values, mask) -> Float[Array, ""]:
    return aggregate(values.astype(jnp.float32), mask, "token_mean")


def kl_estimate(log_ratio: Float[ArrayLike, "..."], estimator: str) -> Float[Array, "..."]:
    """Estimate KL(policy || reference) per token from log_ratio = log reference - log policy.

    Schulman 2020, "Approximating KL divergence": k1 = -log_ratio, k2 = log_ratio^2 / 2,
    k3 = exp(log_ratio) - 1 - log_ratio (the one in GRPO, arXiv:2402.03300, equation 4).
    """
    _require("kl_estimator", estimator, KL_ESTIMATORS)
    if estimator == "k1":
        return -log_ratio
    return log_ratio**2 / 2 if estimator == "k2" else jnp.expm1(log_ratio) - log_ratio


def _importance_ratio(log_ratio, mask, ratio: str) -> Float[Array, "batch time"]:
    if ratio == "sequence":
        tokens = jnp.maximum(jnp.sum(mask, axis=-1, keepdims=True), 1)
        log_ratio = jnp.broadcast_to(jnp.sum(log_ratio, axis=-1, keepdims=True) / tokens, mask.shape)
    # Beyond e^20 the clip has long decided; an infinite ratio would turn its zero gradient into NaN.
    return jnp.exp(jnp.clip(log_ratio, -20.0, 20.0))


def _corrected(gains, log_ratio, mask, cap: float) -> tuple[Float[Array, "batch time"], Metrics]:
    """Weigh each token's gain with old policy / sampling policy, at most `cap`."""
    weights = _importance_ratio(log_ratio, mask, "token")
    truncated = jnp.minimum(weights, cap)
    metrics = {"importance/mean": truncated, "importance/truncated": weights > cap}
    return gains * truncated, {name: _token_mean(values, mask) for name, values in metrics.items()}


def policy_gradient_loss(
    log_probabilities: Float[ArrayLike, "batch time"],
    sampling_log_probabilities: Float[ArrayLike, "batch time"],
    advantages: Float[ArrayLike, "batch time"] | Float[ArrayLike, " batch"],
    mask: Bool[ArrayLike, "batch time"],
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregation: str = "sequence_mean",
    ratio: str = "token",
    reference_log_probabilities: Float[ArrayLike, "batch time"] | None = None,
    kl_coefficient: float = 0.0,
    kl_estimator: str = "k3",
    normaliser: Float[ArrayLike, ""] | None = None,
    importance_cap: float | None = None,
    old_log_probabilities: Float[ArrayLike, "batch time"] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Compute -min(w A, clip(w, 1 - clip_low, 1 + clip_high) A) + kl_coefficient KL, aggregated over the mask.

    The ratio w is, with ratio="token", policy / sampling policy of each token (PPO, arXiv:1707.06347, eq. 7;
    GRPO, arXiv:2402.03300, eq. 3), with ratio="sequence" the geometric mean of those over the sequence
    (GSPO, arXiv:2507.18071, eq. 7). Different clip_low and clip_high are DAPO's (arXiv:2503.14476, eq. 10).

    Where the sampler computes other probabilities than training does (lower precision, another kernel), the ratio to
    the sampling policy moves by that difference, too. With an importance_cap C the two are taken apart: w is policy /
    old policy, both as training computes them, and every token's min(...) is multiplied with
    min(old policy / sampling policy, C), a constant (truncated importance sampling, Ionides 2008; per token as in
    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training", and in TRL).

    Aggregation, exactly (o_i: the policy's tokens of sequence i, N: sequences with any):
      "sequence_mean": 1/N sum_i 1/|o_i| sum_t (GRPO, GSPO and LcRL);
      "token_mean": 1/(sum_i |o_i|) sum_i sum_t (DAPO);
      "constant": 1/(batch x time) sum_i sum_t (Dr. GRPO, arXiv:2503.20783; the shape is the constant).

    Args:
      log_probabilities: Of the policy being trained; gradients flow through these only.
      sampling_log_probabilities: Of the policy that sampled, recorded then.
      advantages: Per token, or per sequence.
      mask: True on the policy's own tokens.
      clip_low: The ratio is clipped below 1 - clip_low.
      clip_high: The ratio is clipped above 1 + clip_high.
      aggregation: "sequence_mean", "token_mean" or "constant".
      ratio: "token" or "sequence".
      reference_log_probabilities: Of the reference policy, for the KL term.
      kl_coefficient: Weight of the KL to the reference.
      kl_estimator: "k1", "k2" or "k3", see `kl_estimate`.
      normaliser: Divisor in place of N, of the number of tokens or of batch x time.
      importance_cap: C; None: no correction, and w is policy / sampling policy.
      old_log_probabilities: With a cap: of the policy before the first update on these samples. None: this is it.

    Returns:
      The loss and its metrics: "loss/policy" and "loss/kl" (the two parts, weighted), "ratio/mean",
      "ratio/clipped_low" and "ratio/clipped_high" (shares of tokens whose gradient the clip removes),
      "ratio/tail" (share of tokens whose ratio is beyond `TAIL` or below 1 / `TAIL`), "approximate_kl" (k3 of
      sampling policy || policy), "sampling_training_gap" (largest |log-probability - sampling log-probability|);
      with a reference, "reference_kl"; with a cap, "importance/mean" (of the truncated weights) and
      "importance/truncated" (share of tokens whose weight the cap lowers).

    Raises:
      UserError: Unknown aggregation, ratio or estimator, or a KL coefficient without a reference.
    """
    _require("aggregation", aggregation, AGGREGATIONS)
    _require("ratio", ratio, RATIOS)
    _require("kl_estimator", kl_estimator, KL_ESTIMATORS)
    if kl_coefficient and reference_log_probabilities is None:
        raise UserError(
            f"kl_coefficient is {kl_coefficient} but there are no reference log-probabilities: "
            "score the batch with the reference policy, or set kl_coefficient to 0."
        )
    mask = jnp.asarray(mask, bool)
    advantages = jnp.asarray(advantages, jnp.float32)
    advantages = jnp.where(mask, advantages[:, None] if advantages.ndim == 1 else advantages, 0.0)
    log_probabilities = jnp.where(mask, log_probabilities, 0.0)
    sampling = jax.lax.stop_gradient(jnp.where(mask, sampling_log_probabilities, 0.0))
    log_ratio, old = log_probabilities - sampling, sampling
    if importance_cap is not None:
        old = log_probabilities if old_log_probabilities is None else jnp.where(mask, old_log_probabilities, 0.0)
        old = jax.lax.stop_gradient(old)
    weights = _importance_ratio(log_probabilities - old, mask, ratio)
    clipped = jnp.clip(weights, 1 - clip_low, 1 + clip_high)
    gains = jnp.minimum(weights * advantages, clipped * advantages)
    corrections: Metrics = {}
    if importance_cap is not None:
        gains, corrections = _corrected(gains, old - sampling, mask, importance_cap)
    loss = aggregate(-gains, mask, aggregation, normaliser)
    metrics = corrections | {
        "loss/policy": loss,
        "loss/kl": jnp.zeros(()),
        "ratio/mean": _token_mean(weights, mask),
        "ratio/clipped_low": _token_mean((weights < 1 - clip_low) & (advantages < 0), mask),
        "ratio/clipped_high": _token_mean((weights > 1 + clip_high) & (advantages > 0), mask),
        "ratio/tail": _token_mean((weights > TAIL) | (weights < 1 / TAIL), mask),
        "approximate_kl": _token_mean(kl_estimate(log_ratio, "k3"), mask),
        "sampling_training_gap": jnp.max(jnp.abs(log_ratio), initial=0.0),
    }
    if reference_log_probabilities is not None:
        reference = jax.lax.stop_gradient(jnp.where(mask, reference_log_probabilities, 0.0))
        divergence = kl_estimate(reference - log_probabilities, kl_estimator)
        metrics["loss/kl"] = kl_coefficient * aggregate(divergence, mask, aggregation, normaliser)
        metrics["reference_kl"] = _token_mean(divergence, mask)
    return loss + metrics["loss/kl"], metrics


def supervised_loss(
    log_probabilities: Float[ArrayLike, "batch time"],
    mask: Bool[ArrayLike, "batch time"],
    aggregation: str = "token_mean",
    normaliser: Float[ArrayLike, ""] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Compute the cross-entropy of the target tokens, -log p aggregated over the mask, in nats.

    Args:
      log_probabilities: Of the targets.
      mask: True on targets; prompts and retrieved text are not learned.
      aggregation: "token_mean" divides by the targets in the batch (the usual SFT loss), "sequence_mean"
        weighs sequences equally, "constant" divides by batch x time.
      normaliser: Divisor in its place.

    Returns:
      The loss and {"loss/supervised": the same}.
    """
    _require("aggregation", aggregation, AGGREGATIONS)
    loss = aggregate(-log_probabilities, jnp.asarray(mask, bool), aggregation, normaliser)
    return loss, {"loss/supervised": loss}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient:
    """Settings of `policy_gradient_loss`; the defaults are LcRL's without its KL term.

    Attributes:
      constant_length: With aggregation="constant", the tokens that N sequences are divided by: N x this.
      importance_cap: C of the correction between sampler and trainer; None: no correction.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    aggregation: str = "sequence_mean"
    ratio: str = "token"
    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"
    constant_length: int | None = None
    importance_cap: float | None = None

    def __post_init__(self):
        _require("aggregation", self.aggregation, AGGREGATIONS)
        _require("ratio", self.ratio, RATIOS)
        _require("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        if (self.aggregation == "constant") != (self.constant_length is not None):
            raise UserError('PolicyGradient.constant_length belongs to aggregation="constant": set both, or neither.')
        if self.constant_length is not None and self.constant_length < 1:
            raise UserError(f"PolicyGradient.constant_length is {self.constant_length}: give it a value of 1 or more.")
        if min(self.clip_low, self.clip_high, self.kl_coefficient) < 0:
            raise UserError(
                f"PolicyGradient has clip_low {self.clip_low}, clip_high {self.clip_high} and kl_coefficient "
                f"{self.kl_coefficient}: none can be negative."
            )
        if self.importance_cap is not None and self.importance_cap <= 0:
            raise UserError(f"PolicyGradient.importance_cap is {self.importance_cap}: make it positive (2), or None.")

    def normaliser(self, mask: Bool[ArrayLike, "... time"]) -> Float[Array, ""]:
        """Return the divisor for everything in the mask."""
        return loss_normaliser(mask, self.aggregation, self.constant_length)

    def __call__(self, log_probabilities, batch, normaliser) -> tuple[Float[Array, ""], Metrics]:
        """Apply the loss to one micro-batch of `lcrag.learning.packing.Batch`."""
        return policy_gradient_loss(
            log_probabilities,
            batch.sampling_log_probabilities,
            batch.advantages,
            batch.mask,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            aggregation=self.aggregation,
            ratio=self.ratio,
            reference_log_probabilities=batch.reference_log_probabilities,
            kl_coefficient=self.kl_coefficient,
            kl_estimator=self.kl_estimator,
            normaliser=normaliser,
            importance_cap=self.importance_cap,
            old_log_probabilities=batch.old_log_probabilities,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised:
    """Settings of `supervised_loss`."""

    aggregation: str = "token_mean"

    def __post_init__(self):
        _require("aggregation", self.aggregation, ("token_mean", "sequence_mean"))

    def normaliser(self, mask: Bool[ArrayLike, "... time"]) -> Float[Array, ""]:
        """Return the divisor for everything in the mask."""
        return loss_normaliser(mask, self.aggregation)

    def __call__(self, log_probabilities, batch, normaliser) -> tuple[Float[Array, ""], Metrics]:
        """Apply the loss to one micro-batch of `lcrag.learning.packing.Batch`."""
        return supervised_loss(log_probabilities, batch.mask, self.aggregation, normaliser)

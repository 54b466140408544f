"""Objectives, which an update minimises: their settings and their loss on a batch, combined from `losses`.

In the metrics, names under "loss/" are parts of the loss and add up like it, those in `MAXIMA` are maxima, and all
others are means over the tokens of the mask.
"""

import dataclasses
from collections.abc import Collection

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from lcrag.errors import UserError
from lcrag.learning.losses import (
    AGGREGATIONS,
    Mask,
    Metrics,
    Scalar,
    Values,
    clipped_surrogate,
    clipped_value_error,
    kl_k1,
    kl_k2,
    kl_k3,
    loss_normaliser,
    sequence_ratio,
    token_mean,
    token_ratio,
    truncated_importance_weights,
)
from lcrag.learning.sequence_packing import Batch
from lcrag.limits import Count, NonNegative, Positive, Share, check_fields

RATIOS = {"token": token_ratio, "sequence": sequence_ratio}
KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
MAXIMA = ("sampling_training_gap",)
TAIL = 2.0  # "ratio/tail" counts ratios beyond this factor


def _require(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise UserError(f"{name} {value!r} of the loss does not exist: choose one of {', '.join(choices)}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient:
    """The clipped policy gradient with a KL penalty; the defaults are LcRL's without the penalty.

    The sampler's probabilities may differ from the trainer's (lower precision, another kernel). With a sequence ratio
    (GSPO, whose clip is narrower than that difference) or an `importance_cap`, the ratio is policy / old policy, both
    as the trainer computes them. With an `importance_cap`, each token's surrogate is also multiplied by the truncated
    ratio old policy / sampling policy.

    Attributes:
      clip_low: The ratio is clipped below 1 - clip_low.
      clip_high: The ratio is clipped above 1 + clip_high.
      aggregation: "sequence_mean" (GRPO, GSPO, LcRL), "token_mean" (DAPO) or "constant" (Dr. GRPO).
      ratio: "token" (PPO, GRPO) or "sequence" (GSPO).
      kl_coefficient: Weight of the KL to the reference.
      kl_estimator: "k1", "k2" or "k3" of `lcrag.learning.losses`.
      constant_length: With "constant", the loss is divided by sequences x this number of tokens.
      importance_cap: Largest importance weight; None: no correction, and a token's ratio is policy / sampling policy.

    Raises:
      UserError: An unknown name, or a number out of range.
    """

    clip_low: Share = 0.2
    clip_high: NonNegative = 0.2
    aggregation: str = "sequence_mean"
    ratio: str = "token"
    kl_coefficient: NonNegative = 0.0
    kl_estimator: str = "k3"
    constant_length: Count | None = None
    importance_cap: Positive | None = None

    def __post_init__(self):
        check_fields(self)
        _require("aggregation", self.aggregation, AGGREGATIONS)
        _require("ratio", self.ratio, RATIOS)
        _require("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        if self.aggregation == "constant" and self.constant_length is None:
            raise UserError('PolicyGradient.aggregation="constant" needs a constant_length: set both.')

    @property
    def rescores_old_policy(self) -> bool:
        """Whether the ratio is to the old policy as the trainer computes it, not to the recorded probabilities."""
        return self.importance_cap is not None or self.ratio == "sequence"

    def normaliser(self, mask: Bool[ArrayLike, "... time"]) -> Scalar:
        """Return the divisor of the loss for the tokens in the mask."""
        return loss_normaliser(mask, self.aggregation, self.constant_length)

    def __call__(self, log_probabilities: Values, batch: Batch, normaliser: Scalar) -> tuple[Scalar, Metrics]:
        """Apply `loss` to one micro-batch."""
        return self.loss(
            log_probabilities,
            batch.sampling_log_probabilities,
            batch.advantages,
            batch.mask,
            batch.reference_log_probabilities,
            batch.old_log_probabilities,
            normaliser,
        )

    def loss(
        self,
        log_probabilities: Values,
        sampling_log_probabilities: Values,
        advantages: Values | Float[ArrayLike, " batch"],
        mask: Mask,
        reference_log_probabilities: Values | None = None,
        old_log_probabilities: Values | None = None,
        normaliser: Float[ArrayLike, ""] | None = None,
    ) -> tuple[Scalar, Metrics]:
        """Compute aggregate(-surrogate x importance weight) + kl_coefficient x aggregate(KL to the reference).

        Args:
          log_probabilities: Of the policy being trained; gradients flow only through these.
          sampling_log_probabilities: Of the policy that sampled, recorded when sampling.
          advantages: Per token, or per sequence.
          mask: True on the policy's own tokens.
          reference_log_probabilities: Of the reference policy, for the KL term.
          old_log_probabilities: Of the policy before the first update on these samples, for a sequence ratio or an
            importance cap. None: those of the current policy, as in the first update.
          normaliser: Replaces the aggregation's own, see `lcrag.learning.losses`.

        Returns:
          The loss and its metrics: "loss/policy" and "loss/kl" (the two parts, weighted), "ratio/mean",
          "ratio/clipped" (share of tokens whose gradient the clip removes) and its parts "ratio/clipped_low" and
          "ratio/clipped_high", "ratio/tail" (share of tokens whose ratio is beyond `TAIL` or below 1 / `TAIL`),
          "approximate_kl" (k3 of sampling policy || policy),
          "sampling_training_gap" (largest |log-probability - sampling log-probability|);
          with a reference, "reference_kl"; with a cap, "importance/mean" (of the truncated weights) and
          "importance/truncated" (share of tokens whose weight the cap lowers).

        Raises:
          UserError: There is a KL coefficient, but no reference.
        """
        if self.kl_coefficient and reference_log_probabilities is None:
            raise UserError(
                f"kl_coefficient is {self.kl_coefficient} but there are no reference log-probabilities: "
                "score the batch with the reference policy, or set kl_coefficient to 0."
            )
        aggregate = AGGREGATIONS[self.aggregation]
        mask = jnp.asarray(mask, bool)
        advantages = jnp.asarray(advantages, jnp.float32)
        advantages = jnp.where(mask, advantages[:, None] if advantages.ndim == 1 else advantages, 0.0)
        log_policy = jnp.where(mask, log_probabilities, 0.0)
        log_old = log_sampling = _constant(sampling_log_probabilities, mask)
        if self.rescores_old_policy:
            given = old_log_probabilities
            log_old = jax.lax.stop_gradient(log_policy) if given is None else _constant(given, mask)

        ratio = RATIOS[self.ratio](log_policy, log_old, mask)
        gains = clipped_surrogate(ratio, advantages, self.clip_low, self.clip_high)
        means = self._ratio_metrics(ratio, advantages) | {"approximate_kl": kl_k3(log_policy - log_sampling)}
        if self.importance_cap is not None:
            weights, truncated = truncated_importance_weights(log_old, log_sampling, mask, self.importance_cap)
            gains = gains * weights
            means |= {"importance/mean": weights, "importance/truncated": truncated}
        loss = aggregate(-gains, mask, normaliser)
        penalty = jnp.zeros(())
        if reference_log_probabilities is not None:
            log_reference = _constant(reference_log_probabilities, mask)
            divergence = KL_ESTIMATORS[self.kl_estimator](log_reference - log_policy)
            penalty = self.kl_coefficient * aggregate(divergence, mask, normaliser)
            means |= {"reference_kl": divergence}
        gap = jnp.max(jnp.abs(log_policy - log_sampling), initial=0.0)
        metrics = {"loss/policy": loss, "loss/kl": penalty, "sampling_training_gap": gap}
        return loss + penalty, metrics | _token_means(means, mask)

    def _ratio_metrics(self, ratio: Array, advantages: Array) -> dict[str, Array]:
        """Return the per-token values whose means show how far the policy has moved."""
        low = (ratio < 1 - self.clip_low) & (advantages < 0)
        high = (ratio > 1 + self.clip_high) & (advantages > 0)
        return {
            "ratio/mean": ratio,
            "ratio/clipped": low | high,
            "ratio/clipped_low": low,
            "ratio/clipped_high": high,
            "ratio/tail": (ratio > TAIL) | (ratio < 1 / TAIL),
        }


def _constant(values: Values, mask: Mask) -> Float[Array, "batch time"]:
    """Return values that no gradient flows through, 0 outside the mask."""
    return jax.lax.stop_gradient(jnp.where(mask, values, 0.0))


def _token_means(values: dict[str, Array], mask: Mask) -> Metrics:
    return {name: token_mean(each.astype(jnp.float32), mask) for name, each in values.items()}


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
) -> tuple[Scalar, Metrics]:
    """Compute `PolicyGradient.loss` with the given settings; ratios are to the sampling policy.

    The aggregation "constant" divides by batch x time.

    Raises:
      UserError: See `PolicyGradient` and `PolicyGradient.loss`.
    """
    objective = PolicyGradient(
        clip_low=clip_low,
        clip_high=clip_high,
        aggregation=aggregation,
        ratio=ratio,
        kl_coefficient=kl_coefficient,
        kl_estimator=kl_estimator,
        constant_length=mask.shape[-1] if aggregation == "constant" else None,
    )
    sampling = sampling_log_probabilities
    return objective.loss(log_probabilities, sampling, advantages, mask, reference_log_probabilities, sampling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised:
    """Cross-entropy of the target tokens, in nats.

    Attributes:
      aggregation: "token_mean" divides by the targets in the batch (the usual SFT loss), "sequence_mean" weighs
        sequences equally.
    """

    aggregation: str = "token_mean"

    def __post_init__(self):
        _require("aggregation", self.aggregation, ("token_mean", "sequence_mean"))

    def normaliser(self, mask: Bool[ArrayLike, "... time"]) -> Scalar:
        """Return the divisor of the loss for the tokens in the mask."""
        return loss_normaliser(mask, self.aggregation)

    def __call__(self, log_probabilities: Values, batch: Batch, normaliser: Scalar) -> tuple[Scalar, Metrics]:
        """Compute -log p of a micro-batch's targets; prompts and retrieved text are outside its mask."""
        loss = AGGREGATIONS[self.aggregation](-log_probabilities, batch.mask, normaliser)
        return loss, {"loss/supervised": loss}


@dataclasses.dataclass(frozen=True)
class ValueRegression:
    """Squared error of a critic's values, 1/2 mean over tokens of max((V - R)^2, `clipped_value_error`).

    Attributes:
      clip: Of `clipped_value_error`; None: no clip.
    """

    clip: float | None

    def normaliser(self, mask: Bool[ArrayLike, "... time"]) -> Scalar:
        """Return the divisor of the loss for the tokens in the mask."""
        return loss_normaliser(mask, "token_mean")

    def __call__(self, values: Values, batch: Batch, normaliser: Scalar) -> tuple[Scalar, Metrics]:
        """Apply `loss` to one micro-batch."""
        return self.loss(values, batch.values, batch.returns, batch.mask, normaliser)

    def loss(
        self,
        values: Values,
        old_values: Values,
        returns: Values,
        mask: Mask,
        normaliser: Float[ArrayLike, ""] | None = None,
    ) -> tuple[Scalar, Metrics]:
        """Compute the loss of values by the critic being trained; `old_values` are those at the rollout.

        Returns:
          The loss and its metrics: "loss/value" (the same), "value/mean", "value/clipped" (share of tokens where the
          clipped error is the larger one).
        """
        mask = jnp.asarray(mask, bool)
        values, old_values, returns = (jnp.where(mask, each, 0.0) for each in (values, old_values, returns))
        errors = bounded = (values - returns) ** 2
        if self.clip is not None:
            bounded = clipped_value_error(values, old_values, returns, self.clip)
        loss = 0.5 * token_mean(jnp.maximum(errors, bounded), mask, normaliser)
        means = {"value/mean": values, "value/clipped": bounded > errors}
        return loss, {"loss/value": loss} | _token_means(means, mask)

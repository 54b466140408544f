"""Objectives: the settings of a loss, and the loss of a micro-batch. An update minimises any `Objective`."""

import dataclasses
from typing import Protocol, runtime_checkable

import jax
from jaxtyping import Array

from lcrag.errors import UserError, lookup, typed
from lcrag.learning.losses import (
    AGGREGATIONS,
    KL_ESTIMATORS,
    RATIOS,
    Metrics,
    loss_normaliser,
    policy_gradient_loss,
    value_loss,
)
from lcrag.learning.sequence_packing import Batch


@runtime_checkable
class Objective(Protocol):
    """A loss over micro-batches."""

    def normaliser(self, mask: Array) -> Array:
        """Return the divisor of the loss for the tokens in the mask of a whole batch, bool[..., time]."""

    def __call__(self, scores: Array, batch: Batch, normaliser: Array, /) -> tuple[Array, Metrics]:
        """Return the loss of one micro-batch and its metrics, from the model's scores [episodes, own]."""


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyGradient:
    """Settings of `policy_gradient_loss`; the defaults are LcRL's without the KL penalty.

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

    clip_low: float = 0.2
    clip_high: float = 0.2
    aggregation: str = "sequence_mean"
    ratio: str = "token"
    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"
    constant_length: int | None = None
    importance_cap: float | None = None

    def __post_init__(self):
        lookup(AGGREGATIONS, self.aggregation, "PolicyGradient.aggregation")
        lookup(RATIOS, self.ratio, "PolicyGradient.ratio")
        lookup(KL_ESTIMATORS, self.kl_estimator, "PolicyGradient.kl_estimator")
        if not (0 <= self.clip_low <= 1 and self.clip_high >= 0):
            raise UserError(
                f"PolicyGradient.clip_low is {self.clip_low} and clip_high {self.clip_high}: give the first a value"
                " from 0 to 1, and the second one of 0 or more"
            )
        if self.kl_coefficient < 0:
            raise UserError(f"PolicyGradient.kl_coefficient is {self.kl_coefficient}: give it a value of 0 or more")
        if self.importance_cap is not None and self.importance_cap <= 0:
            raise UserError(f"PolicyGradient.importance_cap is {self.importance_cap}: give it a value above 0")
        if self.aggregation == "constant" and (self.constant_length is None or self.constant_length < 1):
            raise UserError(
                f'PolicyGradient.aggregation="constant" needs a constant_length of 1 or more, not'
                f" {self.constant_length}: set both"
            )

    @property
    def rescores_old_policy(self) -> bool:
        """Whether the ratio is to the old policy as the trainer computes it, not to the recorded probabilities."""
        return self.importance_cap is not None or self.ratio == "sequence"

    def normaliser(self, mask: Array) -> Array:
        return loss_normaliser(mask, self.aggregation, self.constant_length)

    def __call__(self, log_probabilities: Array, batch: Batch, normaliser: Array) -> tuple[Array, Metrics]:
        old = None
        if self.rescores_old_policy:  # in the first update on a rollout, the old policy is the current one
            old = batch.old_log_probabilities
            old = jax.lax.stop_gradient(log_probabilities) if old is None else old
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
            old_log_probabilities=old,
            importance_cap=self.importance_cap,
            normaliser=normaliser,
        )


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Supervised:
    """Cross-entropy of the target tokens, in nats; prompts and retrieved text are not targets.

    Attributes:
      aggregation: "token_mean" divides by the targets in the batch (the usual SFT loss), "sequence_mean" weighs
        sequences equally.
    """

    aggregation: str = "token_mean"

    def __post_init__(self):
        if self.aggregation not in ("token_mean", "sequence_mean"):
            raise UserError(
                f"Supervised.aggregation {self.aggregation!r} does not exist: choose token_mean or sequence_mean"
            )

    def normaliser(self, mask: Array) -> Array:
        return loss_normaliser(mask, self.aggregation)

    def __call__(self, log_probabilities: Array, batch: Batch, normaliser: Array) -> tuple[Array, Metrics]:
        loss = AGGREGATIONS[self.aggregation](-log_probabilities, batch.mask, normaliser)
        return loss, {"loss/supervised": loss}


@dataclasses.dataclass(frozen=True)
class ValueRegression:
    """The objective of a critic: `value_loss` with this clip."""

    clip: float | None

    def normaliser(self, mask: Array) -> Array:
        return loss_normaliser(mask, "token_mean")

    def __call__(self, values: Array, batch: Batch, normaliser: Array) -> tuple[Array, Metrics]:
        return value_loss(values, batch.values, batch.returns, batch.mask, self.clip, normaliser)

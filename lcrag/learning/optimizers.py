"""AdamW with warm-up, as reinforcement learning and SFT of language models use it."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import jax
import optax
from jaxtyping import PyTree

from lcrag.errors import UserError, typed

UNDECAYED = re.compile("norm|bias|scale", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A gradient transformation for a run of a known number of updates.

    Attributes:
      transformation: The gradient transformation.
      learning_rate: Number of the update -> learning rate.
      with_updates: Number of updates in each step -> the optimizer whose schedule spans all of them.
    """

    transformation: optax.GradientTransformation
    learning_rate: optax.Schedule
    with_updates: Callable[[int], "Optimizer"]


@functools.lru_cache(maxsize=32)
@typed
def adamw(
    *,
    learning_rate: float,
    steps: int,
    warmup_share: float = 0.0,
    decay: str = "constant",
    weight_decay: float = 0.01,
    gradient_clip: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Optimizer:
    """Build AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with clipping of the global gradient norm.

    Args:
      learning_rate: The rate after warm-up.
      steps: Steps of the whole run, with one update each unless `Optimizer.with_updates` changes it.
      warmup_share: Share of the updates in which the rate rises linearly (LcRL: 0.285); that of the first is not 0.
      decay: After warm-up: "constant", or "cosine" (to 0 at the last update).
      weight_decay: Per unit of learning rate; not applied to norms and biases.
      gradient_clip: Largest global norm of a gradient.
      beta1, beta2: Decays of the mean and of the mean square.
      epsilon: Added to the root mean square.
    """
    positive = {"learning_rate": learning_rate, "steps": steps, "gradient_clip": gradient_clip, "epsilon": epsilon}
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise UserError(f"adamw.{name} is {value}: give it a finite value above 0")
    if not (0 <= warmup_share <= 1 and weight_decay >= 0 and 0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise UserError(
            f"adamw has warmup_share {warmup_share}, weight_decay {weight_decay}, beta1 {beta1} and beta2 {beta2}: give"
            " the first a share, the second 0 or more, and the others 0 or more and less than 1"
        )
    if decay not in ("constant", "cosine"):
        raise UserError(f'adamw.decay {decay!r} does not exist: choose "constant" or "cosine".')

    def decayed(params: PyTree) -> PyTree:
        # names decide, not ranks: layers are stacked, which makes the scale of a norm a matrix, too
        return jax.tree.map_with_path(lambda path, _: not UNDECAYED.search(jax.tree_util.keystr(path)), params)

    @functools.cache
    def with_updates(updates_per_step: int) -> Optimizer:
        updates = steps * updates_per_step
        warmup = round(updates * warmup_share)
        schedule = optax.constant_schedule(learning_rate)
        if decay == "cosine":
            schedule = optax.cosine_decay_schedule(learning_rate, max(updates - warmup, 1))
        if warmup:
            rise = optax.linear_schedule(learning_rate / warmup, learning_rate, warmup - 1 or 1)
            schedule = optax.join_schedules([rise, schedule], [warmup])
        adam = optax.adamw(schedule, beta1, beta2, epsilon, weight_decay=weight_decay, mask=decayed)
        return Optimizer(optax.chain(optax.clip_by_global_norm(gradient_clip), adam), schedule, with_updates)

    return with_updates(1)

"""AdamW with warm-up, as reinforcement learning and SFT of language models use it."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import optax
from jaxtyping import PyTree

from lcrag.errors import UserError
from lcrag.limits import Count, Decay, NonNegative, Positive, Share, limited

UNDECAYED = ("norm", "bias", "scale")


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A gradient transformation for a run of a known number of updates.

    Attributes:
      transformation: The gradient transformation.
      learning_rate: Number of the update -> learning rate.
      stretched: Number of updates in each step -> the optimizer for it; None: the schedule does not depend on it.
    """

    transformation: optax.GradientTransformation
    learning_rate: optax.Schedule
    stretched: Callable[[int], "Optimizer"] | None = None

    def with_updates(self, updates: int) -> "Optimizer":
        """Returns the optimizer for a run with `updates` updates per step: its schedule spans all of them."""
        return self if self.stretched is None else self.stretched(updates)


@functools.lru_cache(maxsize=32)
@limited
def adamw(
    *,
    learning_rate: Positive,
    steps: Count,
    warmup_share: Share = 0.0,
    decay: str = "constant",
    weight_decay: NonNegative = 0.01,
    gradient_clip: Positive = 1.0,
    beta1: Decay = 0.9,
    beta2: Decay = 0.999,
    epsilon: Positive = 1e-8,
) -> Optimizer:
    """Build AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with clipping of the global gradient norm.

    Args:
      learning_rate: The rate after warm-up.
      steps: Steps of the whole run, with one update each unless `Optimizer.with_updates` changes it.
      warmup_share: Share of the updates in which the rate rises linearly (LcRL: 0.285); that of the first is not 0.
      decay: After warm-up: "constant", or "cosine" (to 0 at the last update).
      weight_decay: Per unit of learning rate; not applied to norms and biases.
      gradient_clip: Largest global norm of a gradient.
      beta1: Decay of the mean.
      beta2: Decay of the mean square.
      epsilon: Added to the root mean square.

    Raises:
      UserError: Unknown decay, or a number out of range.
    """

    @functools.cache
    def made(updates_per_step: int) -> Optimizer:
        schedule = _schedule(learning_rate, steps * updates_per_step, warmup_share, decay)
        steps_of_adam = optax.adamw(schedule, beta1, beta2, epsilon, weight_decay=weight_decay, mask=_decayed)
        return Optimizer(optax.chain(optax.clip_by_global_norm(gradient_clip), steps_of_adam), schedule, made)

    return made(1)


def _schedule(peak: float, steps: int, warmup_share: float, decay: str) -> optax.Schedule:
    warmup_steps = round(steps * warmup_share)
    if decay == "constant":
        after = optax.constant_schedule(peak)
    elif decay == "cosine":
        after = optax.cosine_decay_schedule(peak, max(steps - warmup_steps, 1))
    else:
        raise UserError(f'adamw.decay {decay!r} does not exist: choose "constant" or "cosine".')
    if not warmup_steps:
        return after
    rise = optax.linear_schedule(peak / warmup_steps, peak, warmup_steps - 1 or 1)
    return optax.join_schedules([rise, after], [warmup_steps])


def _decayed(params: PyTree) -> PyTree:
    """Mark the parameters that weight decay applies to: all except norms and biases.

    Names decide, not ranks: layers are stacked, which makes the scale of a norm a matrix, too.
    """

    def decays(path, _):
        names = [str(getattr(key, "key", getattr(key, "name", ""))).lower() for key in path]
        return not any(word in name for word in UNDECAYED for name in names)

    return jax.tree_util.tree_map_with_path(decays, params)

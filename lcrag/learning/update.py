"""One update: accumulates gradients over micro-batches, and applies them if they are finite.

Two functions define the model; this module does not depend on its architecture:
  hidden(params, tokens, positions, segments) -> Float[rows, time, width]
  unembed(params, hidden[..., width], targets[...], temperature) -> (log-probabilities, entropies)
A critic's second function returns (values, None), predicted before each target, which its objective fits.

Parameters that are read but not trained (the base of adapters) are a separate argument, `frozen`: a nested dictionary
without gradient or optimizer state, which is joined with the trained parameters before the two functions are called.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, PyTree

from lcrag.errors import Count, NotNegative, Positive, Share, UserError, typed
from lcrag.learning.losses import MAXIMA, Metrics, Scalar, token_mean
from lcrag.learning.sequence_packing import ROWS, Batch
from lcrag.policy import AnyMesh, join, replicated
from lcrag.policy.config import update_options

# --- The optimizer ---

UNDECAYED = re.compile("norm|bias|scale", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """A gradient transformation for a run of a known number of updates."""

    transformation: optax.GradientTransformation
    learning_rate: optax.Schedule  # number of the update -> learning rate
    # (updates in each step, steps of the run) -> the optimizer whose schedule spans all updates; `adamw.steps` prevails
    with_updates: Callable[..., "Optimizer"]


@functools.lru_cache(maxsize=32)
@typed
def adamw(
    *,
    learning_rate: Positive,
    steps: Count | None,
    warmup_share: Share = 0.0,
    decay: Literal["constant", "cosine"] = "constant",
    weight_decay: NotNegative = 0.01,
    gradient_clip: Positive = 1.0,
    beta1: Share = 0.9,
    beta2: Share = 0.999,
    epsilon: Positive = 1e-8,
) -> Optimizer:
    """Build AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with clipping of the global gradient norm.

    Args:
      steps: Steps of the whole run, with one update each unless `Optimizer.with_updates` changes it; None: as many as
        the run has.
      warmup_share: Share of the updates in which the rate rises linearly (LcRL: 0.285); that of the first is not 0.
      decay: After warm-up: "constant", or "cosine" (to 0 after the last update).
      weight_decay: Per unit of learning rate; not applied to norms and biases.
    """
    if max(beta1, beta2) == 1:
        raise UserError(f"adamw.beta1 is {beta1} and adamw.beta2 {beta2}: give them values below 1")

    def decayed(params: PyTree) -> PyTree:
        # names decide, not ranks: layers are stacked, which makes the scale of a norm a matrix, too
        return jax.tree.map_with_path(lambda path, _: not UNDECAYED.search(jax.tree_util.keystr(path)), params)

    def with_updates(updates_per_step: int, run_steps: int = 1) -> Optimizer:
        return spanning((run_steps if steps is None else steps) * updates_per_step)

    @functools.cache
    def spanning(updates: int) -> Optimizer:
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


# --- The update ---

BATCH_AXES = ("data", "fsdp")
IN_ROWS = (*ROWS, "sources", "targets", "short")  # fields of a batch that devices share
Hidden = Callable[[PyTree, Array, Array, Array], Array]
Unembed = Callable[[PyTree, Array, Array, float], tuple[Array, Array | None]]


@runtime_checkable
class Objective(Protocol):
    """A loss over micro-batches: `PolicyGradient`, `Supervised`, `ValueRegression`."""

    def normaliser(self, mask: Bool[Array, "... time"]) -> Scalar:
        """Return the divisor of the loss for the tokens in the mask of a whole batch."""

    def __call__(
        self, scores: Float[Array, "episodes own"], batch: Batch, normaliser: Scalar, entropy: Array | None = None, /
    ) -> tuple[Scalar, Metrics]:
        """Return the loss of one micro-batch and its metrics, from the model's scores and entropies."""


class TrainState(flax.struct.PyTreeNode):
    """The state that updates change and checkpoints contain; also its shardings or shapes, in the same structure."""

    step: Any  # int32: updates requested, skipped ones included
    params: PyTree  # float32 master copy of the trained parameters
    optimizer_state: PyTree
    non_finite_in_a_row: Any  # int32: skipped updates since the last one that was applied
    skipped: Any  # int32: skipped updates in total


def state_shardings(optimizer: Optimizer, params: PyTree, param_shardings: PyTree, mesh: AnyMesh) -> TrainState:
    """Return the shardings of a train state: moments as their parameter, counters replicated."""
    everywhere = replicated(mesh)
    moments = optax.tree_map_params(
        optimizer.transformation,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.transformation.init, params),
        param_shardings,
        transform_non_params=lambda _: everywhere,
    )
    return TrainState(everywhere, param_shardings, moments, everywhere, everywhere)


def batch_shardings(batch: Batch, mesh: AnyMesh) -> dict[str, NamedSharding | None]:
    """Return the sharding of each field: rows over the axes "data" and "fsdp", the small index arrays replicated."""
    rows, everywhere = NamedSharding(mesh, PartitionSpec(None, BATCH_AXES)), replicated(mesh)
    fields = {name: rows if name in IN_ROWS else everywhere for name in vars(batch)}
    return {name: None if getattr(batch, name) is None else sharding for name, sharding in fields.items()}


def batch_shares(mesh: AnyMesh | None) -> int:
    """Return the number of devices, or groups of devices with the same rows, that divide a batch."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def place_batch(batch: Batch, mesh: Mesh | None) -> Batch:
    """Move a batch from the host to the devices: the one transfer of an update."""
    if mesh is None:
        return jax.device_put(batch)
    packed, shares = batch.sources.shape[1], batch_shares(mesh)
    if packed % shares:
        raise UserError(
            f"the batch was packed for {packed} devices, but {shares} share it (mesh axes data x fsdp): "
            f"pack it with shares={shares}."
        )
    return Batch(**jax.device_put(vars(batch), batch_shardings(batch, mesh)))


def initial_state(
    params: PyTree, optimizer: Optimizer, mesh: Mesh | None = None, param_shardings: PyTree = None
) -> TrainState:
    """Return the initial state for `params`, which it owns from now on: the first update donates them.

    Every leaf is placed as the update returns it (without a mesh, on the first device), so the update is compiled once.
    """
    placements: Any = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    others = placements
    if mesh is not None:
        placements = state_shardings(optimizer, params, param_shardings, mesh)
        others = placements.replace(params=None)

    def rest() -> TrainState:
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: params))
        count = jnp.zeros((), jnp.int32)
        return TrainState(count, None, optimizer.transformation.init(zeros), count, count)

    state = jax.jit(rest, out_shardings=others)()
    return jax.device_put(state.replace(params=params), placements)


def _score(
    hidden: Hidden, unembed: Unembed, params: PyTree, frozen: PyTree, batch: Batch, temperature: float
) -> tuple[Array, Array | None]:
    """Return the results of `unembed` for one micro-batch's policy tokens, [episodes, own].

    Only the places that predict a policy token are unembedded, gathered from each device's own rows; after that only
    scalars cross between devices.
    """
    params = params if frozen is None else join(params, frozen)
    states = hidden(params, batch.tokens, batch.positions, batch.segments)
    states = states.reshape(batch.sources.shape[0], -1, states.shape[-1])
    states = jnp.take_along_axis(states, batch.sources[..., None], axis=1)
    scores = unembed(params, states, batch.targets, temperature)
    return jax.tree.map(lambda score: score.reshape(-1)[batch.index], scores)


def _micro_batches(batch: Batch) -> tuple[Array, Callable[[Array], Batch]]:
    """Return the number of non-empty micro-batches, which come first, and the function that takes one out."""
    count = jnp.sum(jnp.any(batch.segments > 0, axis=(1, 2)))
    take = functools.partial(jax.lax.dynamic_index_in_dim, keepdims=False)
    return count, lambda number: jax.tree.map(lambda leaf: take(leaf, number), batch)


@functools.lru_cache(maxsize=32)
def make_score(hidden: Hidden, unembed: Unembed, mesh: Mesh | None = None, temperature: float = 1.0):
    """Build the jitted function `score(params, batch, frozen=None)` -> Float[micro, episodes, own].

    It computes the log-probability of every policy token, or a critic's values; 0 outside the mask.
    """

    def score(params: PyTree, batch: Batch, frozen: PyTree = None) -> Float[Array, "micro episodes own"]:
        def scored(batch: Batch) -> Array:
            count, take = _micro_batches(batch)

            def one(number, scores):
                micro_batch = take(number)
                log_probabilities, _ = _score(hidden, unembed, params, frozen, micro_batch, temperature)
                return scores.at[number].set(jnp.where(micro_batch.mask, log_probabilities, 0.0))

            return jax.lax.fori_loop(0, count, one, jnp.zeros(batch.mask.shape, jnp.float32))

        return jnp.concatenate([scored(part) for part in batch.by_row_length()])

    jitted = jax.jit(score, out_shardings=None if mesh is None else replicated(mesh))
    return lambda params, batch, frozen=None: jitted(params, place_batch(batch, mesh), frozen)


def make_gradients(
    hidden: Hidden, unembed: Unembed, objective: Objective, temperature: float = 1.0, param_shardings: PyTree = None
) -> Callable[..., tuple[PyTree, Array, Metrics]]:
    """Build the pure function `gradients(params, batch, frozen=None) -> (gradients, loss, metrics)`.

    All are sums over micro-batches with the normaliser of the whole batch, so they do not depend on how the batch is
    divided. Gradients are accumulated in the parameters' own (float32) precision and sharded like them.
    """

    def loss_of_part(params, frozen, part: Batch, normaliser, policy_tokens):
        log_probabilities, entropy = _score(hidden, unembed, params, frozen, part, temperature)
        loss, metrics = objective(log_probabilities, part, normaliser, entropy)
        if entropy is not None:
            metrics = metrics | {"entropy": token_mean(jax.lax.stop_gradient(entropy), part.mask)}
        share = jnp.sum(part.mask) / policy_tokens
        means = {name: value * share for name, value in metrics.items() if not name.startswith(("loss/", *MAXIMA))}
        return loss, metrics | means

    differentiate = jax.value_and_grad(loss_of_part, has_aux=True)

    def gradients(params: PyTree, batch: Batch, frozen: PyTree = None) -> tuple[PyTree, Float[Array, ""], Metrics]:
        divisors = objective.normaliser(batch.mask), jnp.maximum(jnp.sum(batch.mask), 1)

        def of_part(part: Batch) -> tuple[PyTree, Array, Metrics]:
            (loss, metrics), gradient = differentiate(params, frozen, part, *divisors)
            if param_shardings is not None:
                gradient = jax.lax.with_sharding_constraint(gradient, param_shardings)
            return gradient, loss, metrics

        def add(take, number, total):
            (gradient, loss, metrics), (new_gradient, new_loss, new_metrics) = total, of_part(take(number))
            combine = {name: jnp.maximum if name in MAXIMA else jnp.add for name in metrics}
            metrics = {name: combine[name](value, new_metrics[name]) for name, value in metrics.items()}
            return jax.tree.map(jnp.add, gradient, new_gradient), loss + new_loss, metrics

        batches = batch.by_row_length()
        shapes = jax.eval_shape(lambda: of_part(_micro_batches(batches[0])[1](0)))
        total = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        for part in batches:
            count, take = _micro_batches(part)
            total = jax.lax.fori_loop(0, count, functools.partial(add, take), total)
        return total

    return gradients


def make_update(
    hidden: Hidden,
    unembed: Unembed,
    objective: Objective,
    optimizer: Optimizer,
    *,
    temperature: float = 1.0,
    mesh: Mesh | None = None,
    param_shardings: PyTree = None,
) -> "Update":
    """Build `update(state, batch, frozen=None) -> (state, metrics)`, jitted, its state donated.

    An update whose loss, gradient or step is not finite changes neither parameters nor optimizer state; it is counted.
    Metrics in addition to the objective's: "gradient_norm" (before the clip), "entropy" (nats per policy token; not of
    a critic), "learning_rate", "update/non_finite_in_a_row" and "update/skipped". "sampling_training_gap" compares
    sampling and training only while the policy has not been updated since it sampled the batch.

    Args:
      temperature: The sampling temperature, at which log-probabilities are trained.
      mesh: Axes "data", "fsdp" and perhaps others; rows are spread over the first two.
      param_shardings: With a mesh: one per parameter.
    """
    gradients = make_gradients(hidden, unembed, objective, temperature, param_shardings)

    def step(state: TrainState, batch: Batch, frozen: PyTree = None) -> tuple[TrainState, Metrics]:
        gradient, loss, metrics = gradients(state.params, batch, frozen)
        norm = optax.global_norm(gradient)
        learning_rate = jnp.asarray(optimizer.learning_rate(state.step - state.skipped))
        updates, optimizer_state = optimizer.transformation.update(gradient, state.optimizer_state, state.params)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm) & jnp.isfinite(optax.global_norm(updates))
        params, optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (optax.apply_updates(state.params, updates), optimizer_state),
            (state.params, state.optimizer_state),
        )
        state = TrainState(
            step=state.step + 1,
            params=params,
            optimizer_state=optimizer_state,
            non_finite_in_a_row=jnp.where(finite, 0, state.non_finite_in_a_row + 1),
            skipped=state.skipped + ~finite,
        )
        if mesh is not None:
            shardings = state_shardings(optimizer, state.params, param_shardings, mesh)
            state = jax.lax.with_sharding_constraint(state, shardings)
        return state, metrics | {
            "gradient_norm": norm,
            "learning_rate": learning_rate,
            "update/non_finite_in_a_row": state.non_finite_in_a_row,
            "update/skipped": state.skipped,
        }

    options = None if mesh is None else update_options(mesh)
    return Update(jax.jit(step, donate_argnames="state", compiler_options=options), mesh)


@dataclasses.dataclass(frozen=True)
class Update:
    """A compiled update, built by `make_update`."""

    jitted: Any
    mesh: Mesh | None

    def __call__(self, state: TrainState, batch: Batch, frozen: PyTree = None) -> tuple[TrainState, Metrics]:
        """Learn from a batch on the host; `state` is donated."""
        return self.jitted(state, place_batch(batch, self.mesh), frozen)

    def lower(self, state: TrainState, batch: Batch, frozen: PyTree = None) -> jax.stages.Lowered:
        """Trace for `jax.ShapeDtypeStruct`s with shardings, to compile without weights or devices."""
        return self.jitted.lower(state, batch, frozen)

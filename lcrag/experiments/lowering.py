"""The programs of training and sampling, traced for arrays that do not exist, and what lies beside them in memory."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Lowered

from lcrag.experiments.learner import policy_update
from lcrag.learning import (
    Layout,
    Optimizer,
    PolicyGradient,
    TrainState,
    batch_shardings,
    initial_state,
    largest_batch,
    state_shardings,
)
from lcrag.policy import (
    DecoderConfig,
    abstract_parameters,
    compute_parameters,
    join,
    param_shardings,
    replicated,
    split_trainable,
)
from lcrag.sampling.programs import Programs, slot_shardings
from lcrag.sampling.slots import Slots, empty_slots

STOP_STATES = 64  # rows of the stop automaton's table: room for a method's few stop strings
EOS_IDS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerSizes:
    """The largest shapes of a `Sampler`; see its arguments."""

    slots: int
    context: int
    block: int
    append_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A training run, without its weights.

    Attributes:
      config: The decoder.
      mesh: Devices, present or not.
      objective: Of the update.
      optimizer: Of the update.
      layout: Shapes of training rows.
      sampler: Shapes of sampling.
    """

    config: DecoderConfig
    mesh: Mesh
    objective: PolicyGradient
    optimizer: Optimizer
    layout: Layout
    sampler: SamplerSizes


def lower_update(plan: Plan) -> Lowered:
    """One update of the largest micro-batches that the layout allows; of these it runs as many as there are."""
    update = policy_update(plan.config, plan.mesh, plan.objective, plan.optimizer, temperature=1.0)
    batch = largest_batch(plan.layout)
    if plan.objective.kl_coefficient:
        batch = batch.replace(reference_log_probabilities=batch.sampling_log_probabilities)
    _, frozen = parameters(plan)
    return update.lower(train_state(plan), _placed(batch, batch_shardings(batch, plan.mesh)), frozen)


def lower_append(plan: Plan) -> Lowered:
    """The longest chunk of environment text appended to all slots at once, at the end of their contexts."""
    sizes, everywhere = plan.sampler, replicated(plan.mesh)
    per_slot = jax.ShapeDtypeStruct((sizes.slots,), jnp.int32, sharding=everywhere)
    tokens = jax.ShapeDtypeStruct((sizes.slots, sizes.append_tokens), jnp.int32, sharding=everywhere)
    parts = sampling_parameters(plan), slots(plan), per_slot, per_slot, tokens, per_slot
    return _programs(plan).lower_append(sizes.context, *parts)


def lower_decode(plan: Plan) -> Lowered:
    """A block of tokens sampled in every slot, reading the whole context."""
    everywhere = replicated(plan.mesh)
    table = jax.ShapeDtypeStruct((STOP_STATES, plan.config.vocabulary_size), jnp.uint8, sharding=everywhere)
    eos_ids = jax.ShapeDtypeStruct((EOS_IDS,), jnp.int32, sharding=everywhere)
    wanted = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    parts = sampling_parameters(plan), slots(plan), table, eos_ids, wanted
    return _programs(plan).lower_decode(plan.sampler.context, *parts)


LOWER = {"update": lower_update, "append": lower_append, "decode": lower_decode}


def _programs(plan: Plan) -> Programs:
    return Programs(plan.config, plan.mesh, plan.sampler.block)


def parameters(plan: Plan) -> tuple[Any, Any]:
    """The abstract parameters: those that are learned, in float32, and those that are frozen, in the compute dtype."""
    placed = _placed(abstract_parameters(plan.config), param_shardings(plan.config, plan.mesh))
    learned, frozen = split_trainable(plan.config, placed)
    return learned, jax.tree.map(lambda leaf: leaf.update(dtype=plan.config.dtype), frozen)


def train_state(plan: Plan) -> TrainState:
    """The abstract train state."""
    params, _ = parameters(plan)
    shapes = jax.eval_shape(lambda params: initial_state(params, plan.optimizer), params)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
    return _placed(shapes, state_shardings(plan.optimizer, params, shardings, plan.mesh))


def sampling_parameters(plan: Plan) -> Any:
    """The abstract parameters as the sampler holds them."""
    params = jax.eval_shape(lambda: compute_parameters(plan.config, _zeros(join(*parameters(plan)))))
    return _placed(params, param_shardings(plan.config, plan.mesh))


def slots(plan: Plan) -> Slots:
    """The abstract slots, the key-value cache included."""
    shapes = jax.eval_shape(lambda: empty_slots(plan.config, plan.sampler.slots, plan.sampler.context, plan.mesh))
    return _placed(shapes, slot_shardings(plan.mesh))


def residents(plan: Plan) -> dict[str, float]:
    """Bytes on one device of what a run keeps there all the time, by name."""
    state, sampling, (learned, frozen) = train_state(plan), sampling_parameters(plan), parameters(plan)
    masters = dict(jax.tree.leaves_with_path(join(learned, frozen)))
    copies = [leaf for path, leaf in jax.tree.leaves_with_path(sampling) if leaf.dtype != masters[path].dtype]
    return {
        "train state": device_bytes(state),
        "frozen parameters": device_bytes(frozen),
        "reference policy": device_bytes(state.params) if plan.objective.kl_coefficient else 0.0,
        "sampler's copy of the parameters": device_bytes(copies),
        "slots": device_bytes(slots(plan)),
    }


def beside(plan: Plan, program: str) -> float:
    """Bytes on one device that are not arguments of a program, yet there while it runs."""
    held = residents(plan)
    if program == "update":
        return sum(held.values()) - held["train state"] - held["frozen parameters"]
    shared = device_bytes(sampling_parameters(plan)) - held["sampler's copy of the parameters"]
    return held["train state"] + held["frozen parameters"] - shared + held["reference policy"]


def device_bytes(tree: Any) -> float:
    """Bytes of a tree of arrays, abstract or not, on each of their devices."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), tree, shardings)

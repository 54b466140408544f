"""The programs of training and sampling, traced for arrays that do not exist, and what lies beside them in memory."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Lowered

from lcrag.errors import UserError
from lcrag.learning import (
    Batch,
    Critic,
    Layout,
    Optimizer,
    PolicyGradient,
    TrainState,
    batch_shardings,
    initial_state,
    largest_batch,
    state_shardings,
)
from lcrag.learning.learner import needs_reference, policy_update
from lcrag.learning.value_learner import value_update
from lcrag.policy import (
    DecoderConfig,
    abstract_parameters,
    compute_parameters,
    gathered,
    join,
    logical_sharding,
    param_shardings,
    replicated,
    split_trainable,
)
from lcrag.policy.value_model import abstract_value_parameters, split_value, value_shardings
from lcrag.sampling import SamplerConfig
from lcrag.sampling.slots import CompiledFunctions, Slots, empty_slots, slot_shardings

STOP_STATES = 64  # rows of the stop automaton's table: room for a method's few stop strings
EOS_IDS = 2


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
      critic: Of PPO; None: no critic.
    """

    config: DecoderConfig
    mesh: Mesh
    objective: PolicyGradient
    optimizer: Optimizer
    layout: Layout
    sampler: SamplerConfig
    critic: Critic | None = None


def lower_update(plan: Plan) -> Lowered:
    """One update of the largest micro-batches that the layout allows; of these it runs as many as there are."""
    update = policy_update(plan.config, plan.mesh, plan.objective, plan.optimizer, temperature=1.0)
    _, frozen = split_trainable(plan.config, parameters(plan))
    return update.lower(train_state(plan), _batch(plan), frozen)


def lower_critic(plan: Plan) -> Lowered:
    """One update of the critic, of micro-batches as large as the policy's."""
    state = critic_state(plan)
    if plan.critic is None or state is None:
        raise UserError("there is no critic to compile: name one with --gin_file=ablation/ppo.gin")
    _, frozen = split_value(plan.config, value_parameters(plan))
    return value_update(plan.config, plan.mesh, plan.critic).lower(state, _batch(plan), frozen)


def _batch(plan: Plan) -> Batch:
    """The largest batch, as learning has it when the updates begin."""
    batch = largest_batch(plan.layout)
    scores = batch.sampling_log_probabilities
    if needs_reference(plan.objective, plan.critic):
        batch = batch.replace(reference_log_probabilities=scores)
    if plan.critic is not None:
        batch = batch.replace(advantages=scores, values=scores, returns=scores)
    return _placed(batch, batch_shardings(batch, plan.mesh))


def lower_append(plan: Plan) -> Lowered:
    """The longest chunk of environment text appended to as many slots as go at once, at the end of their contexts."""
    sizes, shares = plan.sampler, plan.mesh.shape["data"] * plan.mesh.shape["fsdp"]
    append_rows, append_tokens = sizes.largest_append
    shape, by_share = (shares, -(-append_rows // shares)), logical_sharding(plan.mesh, "slots")
    per_row = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=by_share)
    tokens = jax.ShapeDtypeStruct((*shape, append_tokens), jnp.int32, sharding=by_share)
    parts = sampling_parameters(plan), slots(plan), per_row, per_row, tokens, per_row
    return _programs(plan).lower_append(sizes.context, *parts)


def lower_decode(plan: Plan) -> Lowered:
    """A block of tokens sampled in every slot, reading the whole context."""
    everywhere = replicated(plan.mesh)
    table = jax.ShapeDtypeStruct((STOP_STATES, plan.config.vocabulary_size), jnp.uint8, sharding=everywhere)
    eos_ids = jax.ShapeDtypeStruct((EOS_IDS,), jnp.int32, sharding=everywhere)
    wanted = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    parts = sampling_parameters(plan), slots(plan), table, eos_ids, wanted
    return _programs(plan).lower_decode(plan.sampler.context, *parts)


LOWER = {"update": lower_update, "critic": lower_critic, "append": lower_append, "decode": lower_decode}


def programs_of(plan: Plan) -> list[str]:
    """The names of the programs that a run of the plan compiles."""
    return [name for name in LOWER if name != "critic" or plan.critic is not None]


def _programs(plan: Plan) -> CompiledFunctions:
    return CompiledFunctions(plan.config, plan.mesh, plan.sampler.block)


def parameters(plan: Plan) -> Any:
    """The abstract parameters as training holds them: float32, but in the compute dtype if they are frozen."""
    shapes = _placed(abstract_parameters(plan.config), param_shardings(plan.config, plan.mesh))
    trained, frozen = split_trainable(plan.config, shapes)
    return join(trained, jax.tree.map(lambda leaf: leaf.update(dtype=plan.config.dtype), frozen))


def value_parameters(plan: Plan) -> Any:
    """The abstract parameters of the value model."""
    shapes = _placed(abstract_value_parameters(plan.config), value_shardings(plan.config, plan.mesh))
    trained, frozen = split_value(plan.config, shapes)
    return join(trained, jax.tree.map(lambda leaf: leaf.update(dtype=plan.config.dtype), frozen))


def train_state(plan: Plan) -> TrainState:
    """The abstract train state of the policy."""
    trained, _ = split_trainable(plan.config, parameters(plan))
    return _state(trained, plan.optimizer, plan.mesh)


def critic_state(plan: Plan) -> TrainState | None:
    """The abstract train state of the critic, if there is one."""
    if plan.critic is None:
        return None
    trained, _ = split_value(plan.config, value_parameters(plan))
    return _state(trained, plan.critic.optimizer, plan.mesh)


def _state(trained: Any, optimizer: Optimizer, mesh: Mesh) -> TrainState:
    shapes = jax.eval_shape(lambda params: initial_state(params, optimizer), trained)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, trained)
    return _placed(shapes, state_shardings(optimizer, trained, shardings, mesh))


def sampling_parameters(plan: Plan) -> Any:
    """The abstract parameters as the sampler holds them."""
    shapes = jax.eval_shape(functools.partial(compute_parameters, plan.config), parameters(plan))
    shardings = param_shardings(plan.config, plan.mesh)
    return _placed(shapes, gathered(shardings) if plan.sampler.gather_parameters else shardings)


def slots(plan: Plan) -> Slots:
    """The abstract slots, the key-value cache included."""
    create = functools.partial(empty_slots, plan.config, plan.sampler.slots, plan.sampler.context, plan.mesh)
    return _placed(jax.eval_shape(create), slot_shardings(plan.mesh))


def residents(plan: Plan) -> dict[str, float]:
    """Bytes on one device of what a run keeps there all the time, by name."""
    trained, frozen = split_trainable(plan.config, parameters(plan))
    return {
        "train state": device_bytes(train_state(plan)),
        "critic's train state": device_bytes(critic_state(plan)),
        "frozen parameters": device_bytes(frozen),
        "reference policy": device_bytes(trained) if needs_reference(plan.objective, plan.critic) else 0.0,
        "sampler's own parameters": device_bytes(sampling_parameters(plan)) - _shared_bytes(plan),
        "slots": device_bytes(slots(plan)),
    }


def beside(plan: Plan, program: str) -> float:
    """Bytes on one device that are not arguments of a program, yet there while it runs."""
    everything = sum(residents(plan).values())
    if program == "update":
        _, frozen = split_trainable(plan.config, parameters(plan))
        return everything - device_bytes((train_state(plan), frozen))
    if program == "critic":  # the policy's frozen unembedding, if it has one, is none of the critic's
        _, frozen = split_value(plan.config, value_parameters(plan))
        return everything - device_bytes((critic_state(plan), frozen))
    return everything - device_bytes(sampling_parameters(plan)) - device_bytes(slots(plan))


def _shared_bytes(plan: Plan) -> float:
    """Bytes of the parameters that the sampler reads where training holds them."""
    pairs = zip(jax.tree.leaves(sampling_parameters(plan)), jax.tree.leaves(parameters(plan)), strict=True)
    return device_bytes([ours for ours, theirs in pairs if ours == theirs])


def device_bytes(tree: Any) -> float:
    """Bytes of a tree of arrays, abstract or not, on each of their devices."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), tree, shardings)

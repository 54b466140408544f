"""Lowers the programs of training and sampling for abstract arrays, and counts the bytes and operations they need."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Lowered

from lcrag.commands.lane_settings import LaneSettings, lane_sampler
from lcrag.composition.components import configured_sampler
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
from lcrag.learning.critic import value_update
from lcrag.learning.learners import needs_reference, policy_update
from lcrag.learning.optimizers import adamw
from lcrag.learning.update import batch_shares
from lcrag.policy import (
    AnyMesh,
    DecoderConfig,
    abstract_parameters,
    compute_parameters,
    join,
    logical_sharding,
    merge_lora,
    param_shardings,
    replicated,
    split_trainable,
)
from lcrag.policy.accelerators import Accelerator, roofline_seconds
from lcrag.policy.flops import cache_bytes, causal_mean, decode_bytes, forward_flops, recomputed_flops, update_flops
from lcrag.policy.lanes import hand_over_function, lane_config, one_lane
from lcrag.policy.value_model import abstract_value_parameters, split_value, value_shardings
from lcrag.sampling import SamplerConfig
from lcrag.sampling.forms import SamplerForm
from lcrag.sampling.slots import CompiledFunctions, Slots, empty_slots, slot_shardings

STOP_STATES = 64  # rows of the stop automaton's table: enough for a method's few stop strings
EOS_IDS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompilePlan:
    """A training run without weights; its arrays are abstract, with the shardings of a run."""

    config: DecoderConfig
    mesh: AnyMesh  # devices, present or not
    objective: PolicyGradient
    optimizer: Optimizer
    layout: Layout  # shapes of training rows
    sampler: SamplerConfig  # shapes of sampling
    critic: Critic | None = None  # critic of PPO; None: no critic
    lanes: LaneSettings = LaneSettings()  # how sampling is divided among lanes

    @property
    def programs(self) -> list[str]:
        """Names of the programs that a run of the plan compiles."""
        absent = set() if self.critic else {"critic"}
        if not residents(self)[OWN]:  # the sampler reads the training's own arrays
            absent.add("hand_over")
        return [name for name in LOWER if name not in absent]

    @property
    def device_mesh(self) -> Mesh:
        """The mesh, to compile for its devices."""
        assert isinstance(self.mesh, Mesh), "nothing can be compiled for an abstract mesh"
        return self.mesh

    @functools.cached_property
    def parameters(self) -> tuple[Any, Any]:
        """(trained, frozen) parameters in training: float32, frozen ones in the compute dtype."""
        shapes = _placed(abstract_parameters(self.config), param_shardings(self.config, self.mesh))
        trained, frozen = split_trainable(self.config, shapes)
        return trained, self._in_compute_dtype(frozen)

    @functools.cached_property
    def value_parameters(self) -> tuple[Any, Any]:
        """(trained, frozen) parameters of the value model."""
        shapes = _placed(abstract_value_parameters(self.config), value_shardings(self.config, self.mesh))
        trained, frozen = split_value(self.config, shapes)
        return trained, self._in_compute_dtype(frozen)

    def _in_compute_dtype(self, frozen: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.update(dtype=self.config.dtype), frozen)

    @functools.cached_property
    def train_state(self) -> TrainState:
        """Train state of the policy."""
        return self._state(self.parameters[0], self.optimizer)

    @functools.cached_property
    def critic_state(self) -> TrainState | None:
        """Train state of the critic, if there is one."""
        return None if self.critic is None else self._state(self.value_parameters[0], self.critic.optimizer)

    def _state(self, trained: Any, optimizer: Optimizer) -> TrainState:
        shapes = jax.eval_shape(lambda params: initial_state(params, optimizer), trained)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, trained)
        return _placed(shapes, state_shardings(optimizer, trained, shardings, self.mesh))

    @functools.cached_property
    def batch(self) -> Batch:
        """The largest batch, with the fields that it has when the updates begin."""
        batch = largest_batch(self.layout, batch_shares(self.mesh))
        scores = batch.sampling_log_probabilities
        if needs_reference(self.objective, self.critic):
            batch = batch.replace(reference_log_probabilities=scores)
        if self.critic is not None:
            batch = batch.replace(advantages=scores, values=scores, returns=scores)
        return Batch(**_placed(vars(batch), batch_shardings(batch, self.mesh)))

    @functools.cached_property
    def reference(self) -> Any:
        """Trained parameters of the reference policy, if learning needs its log-probabilities; otherwise None."""
        if not needs_reference(self.objective, self.critic):
            return None
        trained, _ = self.parameters
        shapes = jax.eval_shape(functools.partial(compute_parameters, self.config), trained)
        return _placed(shapes, jax.tree.map(lambda leaf: leaf.sharding, trained))

    @property
    def in_lanes(self) -> bool:
        """Whether lanes sample with their own parameters."""
        return self.lanes.count > 1

    @functools.cached_property
    def lanes_of_device(self) -> int:
        """Number of lanes that sample on one device."""
        return max(1, self.lanes.count // self.mesh.size)

    @functools.cached_property
    def lane(self) -> SamplerConfig:
        """Shapes of sampling in one lane."""
        return lane_sampler(self.sampler, self.lanes.count)

    @functools.cached_property
    def sampler_form(self) -> SamplerForm:
        """Form of the parameters and cache of a lane's sampler."""
        config = lane_config(self.config) if self.in_lanes else self.config
        return self.lane.form(config, one_lane(self.mesh, self.lanes.count, self.lanes.tensor))

    @functools.cached_property
    def sampling_parameters(self) -> Any:
        """Parameters of the sampler of a lane."""
        params = join(*self.parameters)
        if self.in_lanes:
            config = self.sampler_form.policy
            params = jax.eval_shape(lambda x: compute_parameters(config, merge_lora(self.config, x)[1]), params)
        return _placed(jax.eval_shape(self.sampler_form.parameters, params), self.sampler_form.parameter_shardings)

    @functools.cached_property
    def slots(self) -> Slots:
        """Slots of a lane, including the key-value cache."""
        create = functools.partial(empty_slots, self.sampler_form, self.lane.slots, self.lane.context)
        return _placed(jax.eval_shape(create), slot_shardings(self.sampler_form))


def configured_plan(
    config: DecoderConfig, mesh: AnyMesh, arguments: Mapping[str, Any], lanes: LaneSettings | None = None
) -> CompilePlan:
    """Returns the plan of a command from its composed arguments and the configured sampler.

    What the command does not have (an evaluation has no optimizer) has a placeholder.
    """
    objective = arguments.get("objective")
    return CompilePlan(
        config=config,
        mesh=mesh,
        objective=objective if isinstance(objective, PolicyGradient) else PolicyGradient(),  # that of sft is another
        optimizer=arguments.get("optimizer") or adamw(learning_rate=1.0, steps=1),
        layout=arguments.get("layout") or Layout(rows=1, row_lengths=(2,)),
        sampler=configured_sampler(),
        critic=arguments.get("critic"),
        lanes=lanes or LaneSettings(),
    )


def lower_update(plan: CompilePlan) -> Lowered:
    """Lowers one update, with micro-batches of the largest layout."""
    update = policy_update(plan.config, plan.device_mesh, plan.objective, plan.optimizer, temperature=1.0)
    return update.lower(plan.train_state, plan.batch, plan.parameters[1])


def lower_critic(plan: CompilePlan) -> Lowered:
    """Lowers one update of the critic, with micro-batches of the policy's size."""
    if plan.critic is None or plan.critic_state is None:
        raise UserError("there is no critic to compile: name one with --gin_file=objective/ppo.gin")
    update = value_update(plan.config, plan.device_mesh, plan.critic)
    return update.lower(plan.critic_state, plan.batch, plan.value_parameters[1])


def lower_append(plan: CompilePlan) -> Lowered:
    """Lowers `append` of the longest chunk to the largest number of slots, at the end of their contexts."""
    rows, tokens = plan.lane.largest_append
    mesh = plan.sampler_form.mesh
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    shape, by_share = (shares, -(-rows // shares)), logical_sharding(mesh, "slots")
    per_row = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=by_share)
    chunk = jax.ShapeDtypeStruct((*shape, tokens), jnp.int32, sharding=by_share)
    arrays = plan.sampling_parameters, plan.slots, per_row, per_row, chunk, per_row
    return _functions(plan).lower_append(plan.lane.context, *arrays)


def lower_decode(plan: CompilePlan) -> Lowered:
    """Lowers `decode` of a block of tokens in every slot, reading the whole context."""
    everywhere = replicated(plan.sampler_form.mesh)
    table = jax.ShapeDtypeStruct((STOP_STATES, plan.config.vocabulary_size), jnp.uint8, sharding=everywhere)
    eos_ids = jax.ShapeDtypeStruct((EOS_IDS,), jnp.int32, sharding=everywhere)
    wanted = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    return _functions(plan).lower_decode(
        plan.lane.context, plan.sampling_parameters, plan.slots, table, eos_ids, wanted
    )


def lower_hand_over(plan: CompilePlan) -> Lowered:
    """Lowers the copy of the trained parameters to the sampler: cast, adapters merged, gathered for each lane."""
    params, form = join(*plan.parameters), plan.sampler_form
    if plan.in_lanes:
        assert isinstance(form.mesh, Mesh)
        return hand_over_function(plan.config, plan.device_mesh, form.mesh.devices.shape).lower(params)
    return jax.jit(form.parameters, out_shardings=form.parameter_shardings).lower(params)


LOWER = {
    "update": lower_update,
    "critic": lower_critic,
    "hand_over": lower_hand_over,
    "append": lower_append,
    "decode": lower_decode,
}


def _functions(plan: CompilePlan) -> CompiledFunctions:
    assert plan.device_mesh
    return CompiledFunctions(plan.sampler_form, plan.lane.block)


OWN = "sampler's own parameters"


def residents(plan: CompilePlan) -> dict[str, float]:
    """Returns the bytes on one device of the arrays that a run keeps there all the time, by name."""
    trained, frozen = plan.parameters
    own, copies = plan.sampling_parameters, 1
    if not plan.in_lanes:
        own = plan.sampler_form.own_leaves(join(trained, frozen), own)
    elif plan.sampler_form.apart:  # lanes on the same device share stacked parameters only
        copies = plan.lanes_of_device
    return {
        "train state": device_bytes(plan.train_state),
        "critic's train state": device_bytes(plan.critic_state),
        "frozen parameters": device_bytes(frozen),
        "reference policy": device_bytes(plan.reference),
        OWN: copies * device_bytes(own),
        "slots": plan.lanes_of_device * device_bytes(plan.slots),
    }


def other_bytes(plan: CompilePlan, program: str) -> float:
    """Returns the bytes on one device of resident arrays that are not arguments of a program."""
    held = residents(plan)
    if program == "hand_over":  # the old copy is freed before, and where layers are apart, the new one is copied once
        copies = held[OWN] if plan.in_lanes and plan.sampler_form.apart else 0.0
        return sum(held.values()) - held[OWN] - device_bytes(plan.parameters) + copies
    arguments = {
        "update": (plan.train_state, plan.parameters[1]),
        # The policy's frozen unembedding, if it has one, is not an argument of the critic.
        "critic": (plan.critic_state, plan.value_parameters[1]),
    }.get(program, (plan.sampling_parameters, plan.slots))
    return sum(held.values()) - device_bytes(arguments)


def device_bytes(tree: Any) -> float:
    """Returns the bytes of a tree of arrays, abstract or not, on each of their devices."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), tree, shardings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Work of one device in one unit of a program, if it is shared evenly."""

    unit: str  # "micro-batch", "chunk", "token of every slot" or "all parameters"
    flops: float
    recomputed_flops: float = 0.0  # operations repeated to save memory
    bytes: float = 0.0  # parameters and cache that must be read and written; 0 where operations dominate
    received_bytes: float = 0.0  # of them from other devices; counted for "hand_over" only

    def least_seconds(self, accelerator: Accelerator) -> float:
        """Returns the roofline bound: the largest of the times to compute, move and receive at the peak rates."""
        here = roofline_seconds(self.flops + self.recomputed_flops, self.bytes, accelerator)
        return max(here, self.link_seconds(accelerator))

    def link_seconds(self, accelerator: Accelerator) -> float:
        """Returns the time to receive `received_bytes` over the links; 0 if their bandwidth is unknown."""
        rate = accelerator.link_bytes_per_second
        return self.received_bytes / rate if rate else 0.0


def cost_of(plan: CompilePlan, program: str) -> Cost:
    """Returns the cost of one of the programs in `LOWER` at the largest shapes."""
    if program in ("update", "critic"):
        return _learning_cost(plan, with_unembedding=program == "update")
    if program == "hand_over":
        return _hand_over_cost(plan)
    sampler, mesh = plan.lane, plan.sampler_form.mesh
    devices = mesh.size
    if program == "append":
        rows, tokens = sampler.largest_append
        flops = forward_flops(plan.config, rows * tokens, attended=sampler.context, unembedded=0)
        return Cost(unit="chunk", flops=flops / devices)
    cached = cache_bytes(plan.config, sampler.slots, sampler.context + 1)
    parameters = decode_bytes(plan.config, sampler.slots, sampler.context) - cached
    return Cost(
        unit="token of every slot",
        flops=forward_flops(plan.config, sampler.slots, attended=sampler.context) / devices,
        bytes=parameters / mesh.shape["tensor"] + cached / devices,
    )


def _hand_over_cost(plan: CompilePlan) -> Cost:
    """Returns the cost of reading the trainer's parameters and writing the sampler's, partly on other devices."""
    given, own = join(*plan.parameters), device_bytes(plan.sampling_parameters)
    here = jax.tree.map(lambda leaf: leaf.update(dtype=plan.config.dtype), given)
    return Cost(
        unit="all parameters",
        flops=0.0,
        bytes=device_bytes(given) + own,
        received_bytes=max(0.0, own - device_bytes(here)),
    )


def _learning_cost(plan: CompilePlan, with_unembedding: bool) -> Cost:
    time = max(plan.layout.row_lengths)
    unembedded = plan.layout.rows * max(plan.layout.policy_lengths(time)) if with_unembedding else 0
    work = {"tokens": plan.layout.rows * time, "attended": causal_mean(time), "unembedded": unembedded}
    flops, repeated = update_flops(plan.config, **work), recomputed_flops(plan.config, **work)
    return Cost(unit="micro-batch", flops=flops / plan.mesh.size, recomputed_flops=repeated / plan.mesh.size)

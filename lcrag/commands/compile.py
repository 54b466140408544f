"""`lcrag compile`: whether a training fits some devices, present or not, by compiling it for them without weights.

An `AbstractRun` has the shapes and shardings of everything a run keeps on its devices. Its programs are lowered from
these, compiled by XLA for the devices, and asked for their memory.
"""

import dataclasses
import functools
import importlib.util
import math
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import gin
import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import Mesh
from jax.stages import Lowered
from rich.table import Table

from lcrag.errors import UserError, typed
from lcrag.files import resolved_folder
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
from lcrag.learning.critic import abstract_value_parameters, split_value, value_shardings, value_update
from lcrag.learning.learners import needs_reference, policy_update
from lcrag.learning.update import batch_shares
from lcrag.policy import (
    AnyMesh,
    DecoderConfig,
    abstract_parameters,
    compute_parameters,
    hidden_states,
    join,
    logical_sharding,
    merge_lora,
    param_shardings,
    parameter_count,
    read_config,
    replicated,
    split_trainable,
    unembed_log_probabilities,
)
from lcrag.policy.config import GIB, Computation, accelerator_named, accelerator_of
from lcrag.policy.decoder import MAX_LOGITS
from lcrag.policy.parameters import lane_config, one_lane
from lcrag.retrieval.collections import memory_bytes
from lcrag.runs import check_used, write_json
from lcrag.runs.display import make_console, size_text
from lcrag.sampling.slots import CompiledFunctions, empty_slots, slot_shardings
from lcrag.train.rollout import Lanes

STOP_STATES = 64  # rows of the stop automaton's table: enough for a method's few stop strings
EOS_IDS = 2
PROCESS_BYTES = 4 * GIB  # of Python's libraries, an encoder, compiling, and what the bounds of an update miss
# Without these, libtpu looks for a TPU machine and reports on stderr that it finds no TPU.
LIBTPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


class AbstractRun:
    """The arrays of a run without weights: their shapes and shardings. Allocates nothing.

    Attributes:
      parameters, value_parameters: (trained, frozen) of policy and value model; frozen ones in the compute dtype.
      lane, form: Shapes of sampling in one lane, and the form of the parameters and cache of its sampler.
      residents: Bytes on one device of the arrays that a run keeps there all the time, by name.
    """

    def __init__(
        self,
        config: DecoderConfig,
        mesh: AnyMesh,
        lanes: Lanes,
        *,
        objective: PolicyGradient,
        optimizer: Optimizer,
        layout: Layout,
        critic: Critic | None = None,
    ):
        self.config, self.mesh, self.objective, self.critic = config, mesh, objective, critic
        self.optimizer, self.lanes = optimizer, lanes

        def halves(split: Callable[..., tuple[Any, Any]], shapes: Any, shardings: Any) -> tuple[Any, Any]:
            trained, frozen = split(config, _placed(shapes, shardings))
            return trained, jax.tree.map(lambda leaf: leaf.update(dtype=config.dtype), frozen)

        def state(trained: Any, optimizer: Optimizer) -> TrainState:
            shapes = jax.eval_shape(lambda params: initial_state(params, optimizer), trained)
            shardings = jax.tree.map(lambda leaf: leaf.sharding, trained)
            return _placed(shapes, state_shardings(optimizer, trained, shardings, mesh))

        # --- Learning.
        self.parameters = halves(split_trainable, abstract_parameters(config), param_shardings(config, mesh))
        self.train_state, self.critic_state = state(self.parameters[0], optimizer), None
        batch, reference = largest_batch(layout, batch_shares(mesh)), None
        scores = batch.sampling_log_probabilities
        if needs_reference(objective, critic):
            batch = batch.replace(reference_log_probabilities=scores)
            reference = jax.eval_shape(functools.partial(compute_parameters, config), self.parameters[0])
            reference = _placed(reference, jax.tree.map(lambda leaf: leaf.sharding, self.parameters[0]))
        if critic is not None:
            batch = batch.replace(advantages=scores, values=scores, returns=scores)
            value = abstract_value_parameters(config), value_shardings(config, mesh)
            self.value_parameters = halves(split_value, *value)
            self.critic_state = state(self.value_parameters[0], critic.optimizer)
        self.batch = Batch(**_placed(vars(batch), batch_shardings(batch, mesh)))

        # --- Sampling in one lane, which with several lanes has its own copy of the parameters, adapters merged.
        self.lane, params = lanes.lane_sampler(), join(*self.parameters)
        decoder = lane_config(config) if lanes.count > 1 else config
        self.form = form = self.lane.form(decoder, one_lane(mesh, lanes.count, lanes.tensor))
        if lanes.count > 1:
            params = jax.eval_shape(lambda x: compute_parameters(decoder, merge_lora(config, x)[1]), params)
        self.sampling_parameters = _placed(jax.eval_shape(form.parameters, params), form.parameter_shardings)
        create = functools.partial(empty_slots, form, self.lane.slots, self.lane.context)
        self.slots = jax.jit(create, out_shardings=slot_shardings(form)).eval_shape()

        # --- What stays on a device. One lane reads the trainer's arrays where it can; lanes on one device share their
        # copy if layers are stacked.
        on_device = max(1, lanes.count // mesh.size)
        leaves = self.sampling_parameters if lanes.count > 1 else form.own_leaves(params, self.sampling_parameters)
        self.residents = {
            "train state": device_bytes(self.train_state),
            "critic's train state": device_bytes(self.critic_state),
            "frozen parameters": device_bytes(self.parameters[1]),
            "reference policy": device_bytes(reference),
            "sampler's own parameters": device_bytes(leaves) * (on_device if lanes.count > 1 and form.apart else 1),
            "slots": on_device * device_bytes(self.slots),
        }


def lower(run: AbstractRun, program: str) -> tuple[Lowered, float]:
    """Lowers a program of a run at its largest shapes; returns also the bytes of residents that are not arguments.

    "append" is that of the longest chunk to the largest number of slots, "decode" of a block of tokens in every slot
    that reads the whole context.
    """
    assert isinstance(run.mesh, Mesh)
    arguments: Any
    if program == "update":
        arguments = (run.train_state, run.parameters[1])
        update = policy_update(run.config, run.mesh, run.objective, run.optimizer, temperature=1.0)
        lowered = update.lower(run.train_state, run.batch, run.parameters[1])
    elif program == "critic":
        if run.critic is None or run.critic_state is None:
            raise UserError("there is no critic to compile: name one with --gin_file=objective/ppo.gin")
        arguments = (run.critic_state, run.value_parameters[1])
        value_updating = value_update(run.config, run.mesh, run.critic)
        lowered = value_updating.lower(run.critic_state, run.batch, run.value_parameters[1])
    else:
        arguments = (run.sampling_parameters, run.slots)
        mesh, functions = run.form.mesh, CompiledFunctions(run.form, run.lane.block)
        if program == "append":
            rows, tokens = run.lane.largest_append
            shares = mesh.shape["data"] * mesh.shape["fsdp"]
            shape, by_share = (shares, -(-rows // shares)), logical_sharding(mesh, "slots")
            per_row = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=by_share)
            marked = jax.ShapeDtypeStruct(shape, jnp.bool_, sharding=by_share)
            chunk = jax.ShapeDtypeStruct((*shape, tokens), jnp.int32, sharding=by_share)
            lowered = functions.lower("append", run.lane.context, *arguments, per_row, per_row, chunk, per_row, marked)
        else:
            everywhere = functools.partial(jax.ShapeDtypeStruct, sharding=replicated(mesh))
            table = everywhere((STOP_STATES, run.config.vocabulary_size), jnp.uint8)
            stops = table, everywhere((EOS_IDS,), jnp.int32), everywhere((), jnp.int32)
            lowered = functions.lower("decode", run.lane.context, *arguments, *stops)
    return lowered, sum(run.residents.values()) - device_bytes(arguments)


def update_bytes(run: AbstractRun, layout: Layout) -> dict[str, float]:
    """Returns what an update needs on a device in addition to what stays there, by name: a bound of its temporaries.

    Activations are what the backward pass reads of the largest micro-batch, found by tracing it for one device and its
    rows; shards of a tensor axis need less. `lower` and XLA know them exactly, after compiling.
    """
    config = dataclasses.replace(
        run.config, attention="xla" if run.config.attention == "auto" else run.config.attention
    )
    shares = batch_shares(run.mesh)
    batch = largest_batch(dataclasses.replace(layout, rows=max(1, layout.rows // shares)))
    plain = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    part = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    trained, frozen = plain(run.parameters)

    def read_back(trained: Any, frozen: Any, part: Batch) -> Any:
        def total(trained: Any) -> jax.Array:
            params = join(trained, frozen)
            states = hidden_states(config, params, part.tokens, part.positions, part.segments)
            chosen = jnp.take_along_axis(states.reshape(1, -1, states.shape[-1]), part.sources[..., None], axis=1)
            return jnp.sum(unembed_log_probabilities(config, params, chosen, part.targets)[0])

        return jax.vjp(total, trained)[1]

    critic = run.critic_state and run.critic_state.params
    bytes_of = lambda tree: sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))  # noqa: E731
    read = bytes_of(jax.eval_shape(read_back, trained, frozen, part)) - bytes_of(trained) - bytes_of(frozen)
    return {
        "activations of a micro-batch": max(0.0, read),
        "logits": 3 * 4.0 * min(MAX_LOGITS, math.prod(part.targets.shape) * config.vocabulary_size),  # with gradients
        # Of all micro-batches and of one, and what the optimizer makes of them.
        "gradients": 3 * device_bytes(run.train_state.params) + 2 * device_bytes(critic),
    }


def device_bytes(tree: Any) -> float:
    """Returns the bytes of a tree of arrays, abstract or not, on each of their devices."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _placed(tree: Any, shardings: Any) -> Any:
    return jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), tree, shardings)


def tpu_devices(topology: str) -> Sequence[Any]:
    """Returns the devices of a TPU slice, written FAMILY:SHAPE, which need not be there: libtpu compiles for it."""
    accelerator = accelerator_named(topology.partition(":")[0])
    if accelerator is None or not accelerator.kind.startswith("TPU"):
        raise UserError(f"--topology={topology} is no TPU slice: write FAMILY:SHAPE, as in v5e:4x4 or v5p:2x2x4")
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"compiling for {topology} needs libtpu, which is not installed: pip install 'lcrag[tpu]'")
    jax.config.update("jax_platforms", "cpu")  # constants of the programs need a device, but no accelerator
    for name, value in LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        # v4's two cores are one device, as its VMs have it.
        options = {"chip_config_name": "megacore"} if accelerator.name == "v4" else {}
        return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).partition(":")[2].split()) or str(error)
        raise UserError(f"libtpu knows no topology {topology} ({reason.rstrip('.')})") from error


@gin.configurable
@typed
def shape_of(folder: str) -> DecoderConfig:
    """Returns the shape of the policy in a Hugging Face folder, or in one that ships with the package."""
    return read_config(resolved_folder(folder))


@gin.configurable("compile")
@typed
def compile_programs(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    decoder: DecoderConfig,
    computation: Computation,
    mesh: Callable[..., Mesh],
    objective: PolicyGradient,
    optimizer: Optimizer,
    layout: Layout,
    lanes: Lanes,
    critic: Critic | None = None,
    topology: str = "",
    memory_gib: float | None = None,
) -> None:
    """Compiles a configuration's updates, append and decode, and prints the memory that each needs on a device.

    Args:
      output_dir: Folder for `compile.json`; None: it is not written.
      words: Programs to compile; empty: all programs of a run.
      decoder, computation: The policy's shape, from `DecoderConfig` or `shape_of`, and its platform settings.
      mesh: Creates a mesh of given devices.
      objective, optimizer, layout, lanes, critic: Those of training; without a critic there is no PPO.
      topology: As in "v5e:4x4"; empty: the devices present.
      memory_gib: Memory of one device; None: by the driver or the data sheet, or this machine's for its CPU.
    """
    known = ("update", "critic", "append", "decode")
    if unknown := sorted(set(words) - set(known)):
        raise UserError(f"lcrag compile knows no program {unknown[0]}: choose among {', '.join(known)}")
    devices = tpu_devices(topology) if topology else jax.devices()
    where = topology or f"{len(devices)} x {devices[0].device_kind} present"
    accelerator = accelerator_of(devices[0])
    # Devices of this machine's CPU share its memory with the process.
    shared = (memory_bytes() - PROCESS_BYTES) / len(devices) if devices[0].platform == "cpu" else None
    available = accelerator.memory_bytes if accelerator else shared
    available = available if memory_gib is None else memory_gib * GIB
    settings: dict[str, Any] = {"objective": objective, "optimizer": optimizer, "layout": layout, "critic": critic}
    run = AbstractRun(computation.of(decoder), mesh(devices=devices), lanes, **settings)
    layout.check_shares(batch_shares(run.mesh))
    check_used()

    console, config = make_console(), run.config
    axes = " x ".join(f"{name} {size}" for name, size in run.mesh.shape.items())
    append_rows, append_tokens = run.lane.largest_append
    lane = f", of one of {run.lanes.count} lanes" if run.lanes.count > 1 else ""
    held = ", ".join(f"{name} {size_text(size)}" for name, size in run.residents.items() if size)
    for line in (
        f"{config.family} of {config.layers} layers, {config.width:,} wide, {config.vocabulary_size:,} tokens:"
        f" {parameter_count(config):,} parameters on {where}: {axes}",
        f"update of {layout.rows} rows of {max(layout.row_lengths)} tokens a micro-batch; {run.lane.slots} slots of"
        f" {run.lane.context} tokens, {append_tokens} of them appended to {append_rows} slots at once{lane}",
        f"on each device all the time: {held}",
    ):
        console.print(line, highlight=False)
    table = Table(title="Memory of each device", title_justify="left", title_style="bold")
    for name in ("program", "arguments", "results", "temporaries", "code", "other arrays", "needed", "available", ""):
        table.add_column(name, justify="left" if name == "program" else "right")
    programs: list[dict[str, Any]] = []
    for program in words or [name for name in known if critic or name != "critic"]:
        with console.status(f"compiling the {program}"):
            started, refused = time.monotonic(), ""
            lowered, others = lower(run, program)
            try:
                analysis = lowered.compile().memory_analysis()
                memory = {
                    "arguments": analysis.argument_size_in_bytes,  # and, where donated, the results in their place
                    "results": analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
                    "temporaries": analysis.temp_size_in_bytes,  # one block, gaps between buffers included
                    "code": analysis.generated_code_size_in_bytes,
                }
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                memory, refused = {}, " ".join(str(error).split())
        needed = None if refused else others + sum(memory.values())
        fits = False if needed is None else None if available is None else needed <= available
        sizes = [memory.get(name) for name in ("arguments", "results", "temporaries", "code")]
        verdict = {True: "fits", False: "does not fit", None: ""}[fits]
        table.add_row(program, *(size_text(size) for size in (*sizes, others, needed, available)), verdict)
        programs.append({"program": program, "memory": memory, "other_bytes": others, "needed_bytes": needed})
        seconds = time.monotonic() - started
        programs[-1] |= {"available_bytes": available, "fits": fits, "refused": refused, "compile_seconds": seconds}
    console.print(table)
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        about = {"target": where, "mesh": dict(run.mesh.shape), "resident_bytes": run.residents}
        write_json(output_dir / "compile.json", {**about, "programs": programs})
    for compiled in programs:
        if compiled["fits"] is False:
            learning = compiled["program"] in ("update", "critic")
            lower_setting = "Layout.rows" if learning else "Sampler.slots or Sampler.context"
            raised = "mesh.fsdp" if learning else "Lanes.tensor or mesh.tensor"
            why = compiled["refused"][:300] or f"it needs {size_text(compiled['needed_bytes'])} on each device"
            raise UserError(
                f"the {compiled['program']} does not fit {where}: {why}, of {size_text(available)}; lower"
                f" {lower_setting}, or raise {raised}"
            )

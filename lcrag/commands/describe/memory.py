"""Bytes that a command keeps on each device, by the formulas of `lcrag compile`."""

from collections.abc import Mapping
from typing import Any

import jax

from lcrag.commands.compile import AbstractRun, device_bytes
from lcrag.commands.describe.named_parts import PolicyShape
from lcrag.commands.lane_settings import configured_lanes
from lcrag.composition.components import configured_sampler
from lcrag.learning import Layout, PolicyGradient
from lcrag.learning.optimizers import adamw
from lcrag.policy import AnyMesh, DecoderConfig, join, parameter_count
from lcrag.train.rollout import Lanes


def mesh_of(policy: PolicyShape) -> dict[str, Any]:
    """Returns the sizes of the mesh and the number of its devices; None: all that are present."""
    sizes: dict[str, Any] = dict(policy.mesh.shape)
    if policy.all_devices:
        sizes["data"] = None
    return sizes | {"devices": None if policy.all_devices else policy.mesh.size}


def abstract_plan(command: str, config: DecoderConfig, mesh: AnyMesh, arguments: Mapping[str, Any]) -> AbstractRun:
    """Returns the plan of a command's run; allocates no arrays.

    Args:
      command: The command, "train", "sft", "evaluate" or "sample".
      config: Its policy.
      mesh: Its devices.
      arguments: Its composed arguments.
    """
    jax.config.update("jax_platforms", "cpu")  # shapes need a backend, but no accelerator
    settings = configured_lanes()
    shared = command in ("train", "evaluate")
    lanes = Lanes(
        sampler=configured_sampler(),
        runner=print,
        count=settings.count if shared else 1,
        tensor=settings.tensor if shared else 1,
    )
    objective = arguments.get("objective")
    return AbstractRun(
        config,
        mesh,
        lanes,
        objective=objective if isinstance(objective, PolicyGradient) else PolicyGradient(),  # that of sft is another
        optimizer=arguments.get("optimizer") or adamw(learning_rate=1.0, steps=1),
        layout=arguments.get("layout") or Layout(rows=1, row_lengths=(2,)),
        critic=arguments.get("critic"),
    )


def memory(command: str, policy: PolicyShape, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the bytes of the arrays that a run keeps on each device, by name; None for an unknown shape.

    Temporaries of the programs are not included: `lcrag compile` counts them.
    """
    if policy.config is None:
        return None
    plan = abstract_plan(command, policy.config, policy.mesh, arguments)
    kept = plan.residents
    if command in ("evaluate", "sample"):
        kept = {"policy": device_bytes(join(*plan.parameters))} | {
            name: kept[name] for name in ("sampler's own parameters", "slots")
        }
    kept = {name: size for name, size in kept.items() if size}
    return {
        "parameters": parameter_count(policy.config),
        "resident_bytes": kept,
        "device_bytes": sum(kept.values()),
    }

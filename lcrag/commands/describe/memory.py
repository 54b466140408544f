"""Bytes that a command keeps on each device, by the formulas of `lcrag compile`."""

from collections.abc import Mapping
from typing import Any

import jax

from lcrag.commands.compile.lowering import CompilePlan, configured_plan, device_bytes, residents
from lcrag.commands.describe.named_parts import PolicyShape
from lcrag.commands.lane_settings import LaneSettings, configured_lanes
from lcrag.policy import AnyMesh, DecoderConfig, join, parameter_count


def mesh_of(policy: PolicyShape) -> dict[str, Any]:
    """Returns the sizes of the mesh and the number of its devices; None: all that are present."""
    sizes: dict[str, Any] = dict(policy.mesh.shape)
    if policy.all_devices:
        sizes["data"] = None
    return sizes | {"devices": None if policy.all_devices else policy.mesh.size}


def abstract_plan(command: str, config: DecoderConfig, mesh: AnyMesh, arguments: Mapping[str, Any]) -> CompilePlan:
    """Returns the plan of a command's run; allocates no arrays.

    Args:
      command: The command, "train", "sft", "evaluate" or "sample".
      config: Its policy.
      mesh: Its devices.
      arguments: Its composed arguments.
    """
    jax.config.update("jax_platforms", "cpu")  # shapes need a backend, but no accelerator
    lanes = configured_lanes() if command in ("train", "evaluate") else LaneSettings()
    return configured_plan(config, mesh, arguments, lanes)


def memory(command: str, policy: PolicyShape, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the bytes of the arrays that a run keeps on each device, by name; None for an unknown shape.

    Temporaries of the programs are not included: `lcrag compile` counts them.
    """
    if policy.config is None:
        return None
    plan = abstract_plan(command, policy.config, policy.mesh, arguments)
    kept = residents(plan)
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

"""Sharding of arrays by one table from logical axes to mesh axes."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from lcrag.errors import UserError
from lcrag.policy.config import DecoderConfig

MESH_AXES = ("data", "fsdp", "tensor")
AnyMesh: TypeAlias = Mesh | AbstractMesh  # an abstract mesh has sizes, and no devices

# Logical axis -> mesh axis. Rows of a batch are spread over every replica of the parameters.
AXIS_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    ("batch", ("data", "fsdp")),
    ("slots", ("data", "fsdp")),
    ("vocabulary", "tensor"),
    ("embed", "fsdp"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
    ("norm", None),
    ("rank", None),
    ("layers", None),
)


def make_mesh(
    data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Sequence[jax.Device | int] | None = None
) -> Mesh:
    """Makes a mesh over (data, fsdp, tensor); with `data=-1` the size of data follows from the other two.

    `devices` are devices, or their places among all; None: all.
    """
    present = jax.devices()
    devices = list(present if devices is None else devices)
    for place, device in enumerate(devices):
        if isinstance(device, int) and not 0 <= device < len(present):
            raise UserError(
                f"mesh.devices names device {device}, but there are {len(present)}, numbered from 0: name these"
            )
        devices[place] = present[device] if isinstance(device, int) else device
    check_mesh_sizes(data, fsdp, tensor)
    if data == -1:
        data = max(1, len(devices) // (fsdp * tensor))
    if data * fsdp * tensor != len(devices):
        raise UserError(
            f"a mesh of data={data} x fsdp={fsdp} x tensor={tensor} needs {data * fsdp * tensor} devices,"
            f" but {len(devices)} are present: change the mesh bindings"
        )
    return Mesh(np.asarray(devices).reshape(data, fsdp, tensor), MESH_AXES)


def check_mesh_sizes(data: int, fsdp: int, tensor: int) -> None:
    """Raises a UserError if a size that `make_mesh` takes is below 1, and is not `data=-1`."""
    for name, size in (("data", data), ("fsdp", fsdp), ("tensor", tensor)):
        if size < 1 and (name, size) != ("data", -1):
            raise UserError(f"mesh.{name} is {size}: give it a value of 1 or more")


def logical_spec(*axes: str | None) -> PartitionSpec:
    """Returns the mesh axes of an array with these logical axes."""
    rules = dict(AXIS_RULES)
    return PartitionSpec(*(rules[axis] if axis else None for axis in axes))


def logical_sharding(mesh: AnyMesh, *axes: str | None) -> NamedSharding:
    """Returns the sharding of an array with these logical axes."""
    return NamedSharding(mesh, logical_spec(*axes))


def constrain(array: jax.Array, mesh: Mesh | None, *axes: str | None) -> jax.Array:
    """Constrains the sharding of an activation; without a mesh, XLA decides."""
    return array if mesh is None else jax.lax.with_sharding_constraint(array, logical_sharding(mesh, *axes))


def spread_kv_heads(config: DecoderConfig, mesh: AnyMesh | None) -> int:
    """Returns the number of key-value heads when each device of the axis "tensor" has those that its queries read."""
    return config.kv_heads if mesh is None else math.lcm(config.kv_heads, mesh.shape["tensor"])


def gathered(shardings):
    """Returns the same tree of shardings, replicated along the mesh axis "fsdp"."""
    spec = lambda sharding: PartitionSpec(*(None if axis == "fsdp" else axis for axis in sharding.spec))  # noqa: E731
    return jax.tree.map(lambda sharding: NamedSharding(sharding.mesh, spec(sharding)), shardings)


def check_mesh(config: DecoderConfig, mesh: AnyMesh) -> None:
    """Checks that a mesh divides a decoder's parameters evenly; the UserError names the sizes that would."""
    shared = {
        "fsdp": {"width": config.width},
        "tensor": {
            "vocabulary_size": config.vocabulary_size,
            "heads": config.heads,
            "kv_heads x head_width": config.kv_heads * config.head_width,
            "mlp_width": config.mlp_width,
        },
    }
    for axis, sizes in shared.items():
        for name, size in sizes.items():
            if size % mesh.shape[axis]:
                common = math.gcd(*sizes.values())
                possible = [str(n) for n in range(1, mesh.size + 1) if common % n == 0]
                raise UserError(
                    f"the mesh has {axis}={mesh.shape[axis]}, which does not divide the policy's {name} of {size}:"
                    f" choose {axis} among {', '.join(possible)}"
                )


def replicated(mesh: AnyMesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())

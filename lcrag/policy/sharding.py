"""Where arrays live: one table from logical axes to mesh axes."""

import flax.linen as nn
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lcrag.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")

# Logical axis -> mesh axis. Rows of a batch are spread over every replica of the parameters.
AXIS_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    ("batch", ("data", "fsdp")),
    ("slots", ("data", "fsdp")),
    ("vocabulary", "tensor"),
    ("embed", "fsdp"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
    ("norm", None),
    ("layers", None),
)


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, devices=None) -> Mesh:
    """A mesh over (data, fsdp, tensor); `data=-1` takes the devices that the other two leave.

    Raises:
      UserError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    if data == -1:
        data = max(1, len(devices) // (fsdp * tensor))
    if data * fsdp * tensor != len(devices):
        raise UserError(
            f"a mesh of data={data} x fsdp={fsdp} x tensor={tensor} needs {data * fsdp * tensor} devices,"
            f" but {len(devices)} are present: change the mesh bindings"
        )
    return Mesh(np.asarray(devices).reshape(data, fsdp, tensor), MESH_AXES)


def logical_sharding(mesh: Mesh, *axes: str | None) -> NamedSharding:
    """The sharding of an array whose axes have these logical names."""
    rules = dict(AXIS_RULES)
    return NamedSharding(mesh, PartitionSpec(*(rules[axis] if axis else None for axis in axes)))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def shardings_of(boxed, mesh: Mesh):
    """The shardings of a tree of parameters that still carry their logical axis names."""
    return nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed), mesh, list(AXIS_RULES))

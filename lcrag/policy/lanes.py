"""Lanes: sub-meshes that each sample with a whole copy of the parameters, which they receive from the training mesh."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from lcrag.errors import UserError
from lcrag.policy.config import DecoderConfig
from lcrag.policy.parameters import Params, compute_parameters, merge_lora, param_shardings
from lcrag.policy.sharding import MESH_AXES, AnyMesh


def lane_meshes(mesh: Mesh, count: int, tensor: int = 1) -> list[Mesh]:
    """Cuts the devices of a mesh into lanes, process after process, and returns the mesh of each lane.

    A lane divides its parameters over `tensor` devices and its slots over the others. More lanes than devices share
    these: lane l samples on device l mod devices.
    """
    parts = lane_devices(mesh.devices.ravel(), count, tensor)
    return [Mesh(parts[number % len(parts)], MESH_AXES) for number in range(count)]


def lane_devices(devices: np.ndarray, count: int, tensor: int) -> np.ndarray:
    """Returns the devices of the distinct lanes, [lanes, data, fsdp, tensor]; see `lane_meshes`."""
    size = max(1, devices.size // count)
    if count < devices.size and devices.size % count:
        raise UserError(
            f"Lanes.count is {count}, which does not divide the {devices.size} devices of the mesh: choose a divisor of"
            f" {devices.size}, or more lanes than devices"
        )
    if size % tensor:
        raise UserError(
            f"Lanes.tensor is {tensor}, which does not divide the devices of a lane: choose among"
            f" {', '.join(str(n) for n in range(1, size + 1) if size % n == 0)}"
        )
    parts = np.array(sorted(devices, key=lambda device: device.process_index)).reshape(-1, size // tensor, 1, tensor)
    for number, part in enumerate(parts):
        processes = sorted({device.process_index for device in part.flat})
        if len(processes) > 1:
            raise UserError(
                f"lane {number} of {count} would lie in processes {processes[0]} and {processes[-1]}, but a lane holds"
                " whole parameters on devices of one process: raise Lanes.count to the number of processes or a"
                " multiple of it"
            )
    return parts


def one_lane(mesh: AnyMesh, count: int, tensor: int = 1) -> AnyMesh:
    """Returns the mesh of the first lane (abstract if `mesh` is); the whole mesh if there is one lane."""
    if count == 1:
        return mesh
    if isinstance(mesh, Mesh):
        return lane_meshes(mesh, count, tensor)[0]
    return AbstractMesh((max(1, mesh.size // count // tensor), 1, tensor), MESH_AXES)


def lane_config(config: DecoderConfig) -> DecoderConfig:
    """Returns the decoder that lanes sample with, whose adapters are merged."""
    return dataclasses.replace(config, lora=None)


def hand_over(config: DecoderConfig, params: Params, mesh: Mesh, lanes: Sequence[Mesh]) -> list[Params | None]:
    """Copies parameters on `mesh` to its lanes (see `lane_meshes`); all processes must call it together.

    Adapters are merged and the result is cast to the compute dtype before it is gathered, over the devices' own links:
    no copy passes through the host. The copies share no buffer with `params`.

    Returns:
      The parameters of each lane; None for lanes of other processes. Lanes on the same devices share them.
    """
    distinct, merged = list(dict.fromkeys(lanes)), lane_config(config)
    every_lane = Mesh(np.stack([lane.devices for lane in distinct]), ("lane", *MESH_AXES))
    wide = jax.device_put(_cast(config, mesh)(params), param_shardings(merged, every_lane))
    shardings = param_shardings(merged, lanes[0])

    def on_lane(lane: Mesh, array: jax.Array, sharding: NamedSharding) -> jax.Array:
        """Returns the pieces of an array that a lane's devices hold, as the lane's array."""
        pieces = {shard.device: shard.data for shard in array.addressable_shards}
        held = [pieces[device] for device in lane.devices.flat]
        return jax.make_array_from_single_device_arrays(array.shape, NamedSharding(lane, sharding.spec), held)

    placed: dict[Mesh, Params] = {}
    for lane in distinct:
        if lane.devices.flat[0].process_index == jax.process_index():
            placed[lane] = jax.tree.map(functools.partial(on_lane, lane), wide, shardings)
    return [placed.get(lane) for lane in lanes]


@functools.lru_cache(8)
def _cast(config: DecoderConfig, mesh: Mesh) -> jax.stages.Wrapped:
    """Compiles the merging of adapters and the cast, as `lane_config` reads the parameters."""
    merged = lane_config(config)
    shardings = param_shardings(merged, mesh)

    def prepared(params: Params) -> Params:
        cast = compute_parameters(merged, merge_lora(config, params)[1])
        # the constraint also keeps JAX from returning a parameter that needs no cast as it is
        return jax.lax.with_sharding_constraint(cast, shardings)

    return jax.jit(prepared, out_shardings=shardings)

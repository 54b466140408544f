"""Lanes get the parameters that are trained: cast, merged, whole, and of their own."""

import dataclasses

import jax
import numpy as np
import pytest
from support import tiny_config

from lcrag.errors import UserError
from lcrag.policy import Lora, add_lora, compute_parameters, initialise, make_mesh, merge_lora
from lcrag.policy.parameters import hand_over, lane_config, lane_devices, lane_meshes


def buffers(params):
    """Addresses of all pieces."""
    leaves = jax.tree.leaves(params)
    return {shard.data.unsafe_buffer_pointer() for leaf in leaves for shard in leaf.addressable_shards}


@pytest.mark.parametrize(
    ("count", "tensor", "lora"),
    [(8, 1, None), (2, 2, None), (12, 1, None), (2, 2, Lora(rank=2, alpha=4))],
    ids=["a lane a device", "lanes of several devices", "more lanes than devices", "adapters"],
)
def test_parameters_arrive_in_every_lane(count, tensor, lora):
    mesh, config = make_mesh(data=1, fsdp=4, tensor=2), tiny_config(compute_dtype="bfloat16", layers=1)
    params = initialise(config, jax.random.key(0), mesh)
    if lora:
        config, params = add_lora(config, params, lora, jax.random.key(1), mesh)
    wanted = jax.device_get(compute_parameters(lane_config(config), merge_lora(config, params)[1]))
    lanes = lane_meshes(mesh, count, tensor)
    for lane, own in zip(lanes, hand_over(config, params, mesh, lanes), strict=True):
        assert {leaf.sharding.mesh for leaf in jax.tree.leaves(own)} == {lane}
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(own), wanted)
        assert not buffers(own) & buffers(params)


def test_the_mesh_may_order_devices_otherwise():
    """As on TPU slices, where the devices of a host are not neighbours in the list of all."""
    devices, config = jax.devices()[:4], tiny_config(layers=1)
    lanes = lane_meshes(make_mesh(devices=devices), 2, 2)
    mesh = make_mesh(data=1, fsdp=2, tensor=2, devices=[devices[place] for place in (0, 2, 1, 3)])
    params = initialise(config, jax.random.key(0), mesh)
    for own in hand_over(config, params, mesh, lanes):
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(own), jax.device_get(params))
        assert not buffers(own) & buffers(params)


@dataclasses.dataclass(frozen=True)
class PretendedDevice:
    """A device of some process."""

    id: int
    process_index: int


def test_lanes_lie_in_one_process_each():
    def pretended(processes):
        return np.array([PretendedDevice(number, process) for number, process in enumerate(processes)])

    parts = lane_devices(pretended([0, 0, 1, 1, 0, 0, 1, 1]), 2, 2)  # the hosts of a TPU v5e are squares of chips
    assert [[device.id for device in part.flat] for part in parts] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    with pytest.raises(UserError, match="lane 0 of 1 would lie in processes 0 and 1, .* raise Lanes.count"):
        lane_devices(pretended([0, 0, 1, 1]), 1, 1)
    with pytest.raises(UserError, match="lane 1 of 3 would lie in processes 0 and 1"):
        lane_devices(pretended([0, 0, 0, 1, 1, 1]), 3, 1)

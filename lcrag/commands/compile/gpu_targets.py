"""Descriptions of absent GPUs for XLA's compiler, from NVIDIA's data sheets.

The compiler gets a `stream_executor.GpuTargetConfigProto` in text form instead of a driver's answers. Fields that only
its cost model reads are left out.
"""

import contextlib
import dataclasses
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from jax._src.cudnn import fused_attention_stablehlo
from jax.experimental import topologies

CUDNN = (9, 10, 0)  # the oldest version that JAX 0.10.2 supports


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Gpu:
    device_kind: str  # as the driver names it
    capability: tuple[int, int]
    features: str
    memory_bytes: int
    bytes_per_second: int
    multiprocessors: int
    float_units: int  # float32 units of a multiprocessor
    gigahertz: float
    cache_bytes: int  # second level
    shared_bytes: int  # shared memory of a multiprocessor


_hopper = functools.partial(
    _Gpu,
    capability=(9, 0),
    features="ACCELERATED_FEATURES",
    multiprocessors=132,
    float_units=128,
    gigahertz=1.98,
    cache_bytes=50 * 2**20,
    shared_bytes=228 * 2**10,
)
GPUS = {
    "a100": _Gpu(
        device_kind="NVIDIA A100-SXM4-80GB",
        capability=(8, 0),
        features="NONE",
        memory_bytes=85_100_068_864,
        bytes_per_second=2_039_040_000_000,
        multiprocessors=108,
        float_units=64,
        gigahertz=1.41,
        cache_bytes=40 * 2**20,
        shared_bytes=164 * 2**10,
    ),
    "h100": _hopper(
        device_kind="NVIDIA H100 80GB HBM3", memory_bytes=84_942_979_072, bytes_per_second=3_352_320_000_000
    ),
    "h200": _hopper(device_kind="NVIDIA H200", memory_bytes=151_397_597_184, bytes_per_second=4_800_000_000_000),
}


def plugin_installed() -> bool:
    """Returns whether JAX's compiler for CUDA is installed; it needs neither a GPU nor a driver."""
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


def absent_gpus(name: str, count: int) -> Sequence[Any]:
    """Returns `count` GPUs of one host to compile for."""
    shape = f"1x1x{count}"  # partitions x hosts x devices of a host
    return topologies.get_topology_desc(
        platform="cuda", topology_name=shape, topology=shape, target_config=target_config(GPUS[name])
    ).devices


@contextlib.contextmanager
def pretended(name: str) -> Iterator[None]:
    """Emulates the answers of an absent GPU and cuDNN to JAX's queries while it traces attention."""
    capability = GPUS[name].capability
    with mock.patch.multiple(
        fused_attention_stablehlo,
        check_cudnn_version=lambda: CUDNN[0] * 10_000 + CUDNN[1] * 100 + CUDNN[2],
        check_compute_capability=lambda least: capability >= tuple(map(int, least.split("."))),
        is_cuda_compute_capability_equal=lambda same: capability == tuple(map(int, same.split("."))),
    ):
        yield


def target_config(gpu: _Gpu) -> str:
    """Returns the text of a GPU's `GpuTargetConfigProto`."""
    major, minor, patch = CUDNN
    return f"""\
gpu_device_info {{
  cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} feature_extension: {gpu.features} }}
  core_count: {gpu.multiprocessors}
  fpus_per_core: {gpu.float_units}
  clock_rate_ghz: {gpu.gigahertz}
  device_memory_size: {gpu.memory_bytes}
  memory_bandwidth: {gpu.bytes_per_second}
  l2_cache_size: {gpu.cache_bytes}
  shared_memory_per_core: {gpu.shared_bytes}
  shared_memory_per_block: {48 * 2**10}
  shared_memory_per_block_optin: {gpu.shared_bytes - 2**10}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
}}
platform_name: "CUDA"
dnn_version_info {{ major: {major} minor: {minor} patch: {patch} }}
device_description_str: "{gpu.device_kind}"
"""

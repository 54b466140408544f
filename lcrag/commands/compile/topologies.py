"""The devices to compile for: those present, an absent TPU slice, absent GPUs, or virtual CPU devices in their place.

A topology is written FAMILY:SHAPE: `v5e:4x4` for TPUs (compiled by libtpu, which needs no TPU), `h100:8` for GPUs
(compiled by JAX's plugin for CUDA, which needs no GPU). If the plugin is not installed, the program is compiled for
as many virtual CPU devices: shardings and sizes are real, temporaries an estimate.
"""

import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import topologies

from lcrag.commands.compile.gpu_targets import absent_gpus, plugin_installed, pretended
from lcrag.errors import UserError
from lcrag.policy.accelerators import ACCELERATORS, Accelerator, accelerator_named, accelerator_of

WRITTEN = re.compile(r"(?P<family>[a-z0-9]+):(?P<shape>\d+(x\d+)*)")
# Without these, libtpu looks for a TPU machine and reports on stderr that it finds no TPU.
LIBTPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for."""

    name: str  # their description in reports
    devices: Sequence[Any]  # devices of the mesh
    accelerator: Accelerator | None  # data sheet of one of them; None if unknown (CPUs)
    estimate: bool = False  # whether the compiler differs from that of the real devices
    absent_gpu: str = ""  # name in `gpu_targets.GPUS` of absent devices

    def pretended(self) -> contextlib.AbstractContextManager:
        """Context in which programs are traced for the devices."""
        return pretended(self.absent_gpu) if self.absent_gpu else contextlib.nullcontext()


def target_of(topology: str) -> Target:
    """Returns the devices of a topology; the devices of this machine if it is empty.

    Raises:
      UserError: no such topology, or libtpu is not installed.
    """
    if not topology:
        devices = jax.devices()
        return Target(f"{len(devices)} x {devices[0].device_kind} present", devices, accelerator_of(devices[0]))
    accelerator, shape = read_topology(topology)
    jax.config.update("jax_platforms", "cpu")  # constants of the programs need a device, but no accelerator
    if not accelerator.kind.startswith("TPU"):
        return _gpus(topology, accelerator, shape)
    return Target(topology, _tpus(topology), accelerator)


def read_topology(topology: str) -> tuple[Accelerator, str]:
    """Returns the data sheet of one device of a topology, and the topology's shape.

    Raises:
      UserError: it is not written as topologies are, or its family is unknown.
    """
    written = WRITTEN.fullmatch(topology)
    accelerator = accelerator_named(written["family"]) if written else None
    if written is None or accelerator is None:
        families = ", ".join(each.name for each in ACCELERATORS)
        raise UserError(
            f"the topology {topology} cannot be read: write FAMILY:SHAPE as in v5e:4x4, v5p:2x2x4 or h100:8, the family"
            f" one of {families}"
        )
    return accelerator, written["shape"]


def _tpus(topology: str) -> Sequence[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(f"compiling for {topology} needs libtpu, which is not installed: pip install 'lcrag[tpu]'")
    for name, value in LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    except jax.errors.JaxRuntimeError as error:
        reason = " ".join(str(error).partition(":")[2].split()) or str(error)
        raise UserError(
            f"libtpu knows no topology {topology} ({reason.rstrip('.')}): choose an existing shape, as v5e:4x4 or"
            " v5p:2x2x4"
        ) from error


def _gpus(topology: str, accelerator: Accelerator, shape: str) -> Target:
    if "x" in shape or int(shape) < 1:
        raise UserError(f"the topology {topology} cannot be read: GPUs are counted, as in {accelerator.name}:8")
    if not plugin_installed():
        return _cpus_as_gpus(topology, accelerator, int(shape))
    devices = absent_gpus(accelerator.name, int(shape))
    return Target(topology, devices, accelerator, absent_gpu=accelerator.name)


def _cpus_as_gpus(topology: str, accelerator: Accelerator, count: int) -> Target:
    with contextlib.suppress(RuntimeError):  # JAX is initialised already, as in tests
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise UserError(
            f"{topology} needs {count} pretended devices, but JAX was initialised with {len(devices)}: set"
            f" XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        )
    return Target(f"{topology}, estimated on pretended CPU devices", devices[:count], accelerator, estimate=True)

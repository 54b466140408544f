"""What a device can do at most: its memory, by the compiler's or driver's count, and its maker's peak rates."""

import dataclasses
from typing import Any

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One device as JAX counts them: a chip, or a core where a chip is two devices.

    Attributes:
      name: As in the names of topologies.
      kind: How JAX's `device_kind` begins.
      memory_bytes: What programs can have of its memory.
      flops_per_second: Dense bfloat16 operations, a multiplication and an addition counted as two.
      bytes_per_second: Of its memory.
    """

    name: str
    kind: str
    memory_bytes: float
    flops_per_second: float
    bytes_per_second: float


# TPU memory is what XLA 0.10.2 reports as available when a program does not fit; rates are Google's data sheets.
# GPU memory is 95 % of what the driver reports (XLA_PYTHON_CLIENT_MEM_FRACTION=0.95); rates are NVIDIA's, SXM, dense.
ACCELERATORS = (
    Accelerator(name="v4", kind="TPU v4", memory_bytes=15.25 * GIB, flops_per_second=137.5e12, bytes_per_second=614e9),
    Accelerator(
        name="v5e", kind="TPU v5 lite", memory_bytes=15.75 * GIB, flops_per_second=197e12, bytes_per_second=819e9
    ),
    Accelerator(name="v5p", kind="TPU v5", memory_bytes=95.74 * GIB, flops_per_second=459e12, bytes_per_second=2765e9),
    Accelerator(
        name="v6e", kind="TPU v6 lite", memory_bytes=31.25 * GIB, flops_per_second=918e12, bytes_per_second=1640e9
    ),
    Accelerator(
        name="tpu7x", kind="TPU7x", memory_bytes=94.75 * GIB, flops_per_second=1153e12, bytes_per_second=3690e9
    ),
    Accelerator(
        name="a100", kind="NVIDIA A100", memory_bytes=75 * GIB, flops_per_second=312e12, bytes_per_second=2039e9
    ),
    Accelerator(
        name="h100", kind="NVIDIA H100", memory_bytes=75 * GIB, flops_per_second=989e12, bytes_per_second=3350e9
    ),
    Accelerator(
        name="h200", kind="NVIDIA H200", memory_bytes=132 * GIB, flops_per_second=989e12, bytes_per_second=4800e9
    ),
)


def accelerator_of(device: Any) -> Accelerator | None:
    """The entry of a JAX device, its memory as the device itself reports it if it does; None if it is not listed."""
    fitting = [each for each in ACCELERATORS if device.device_kind.startswith(each.kind)]
    if not fitting:
        return None
    found = max(fitting, key=lambda each: len(each.kind))  # "TPU v5 lite" is not "TPU v5"
    return dataclasses.replace(found, memory_bytes=reported_memory(device) or found.memory_bytes)


def reported_memory(device: Any) -> float | None:
    """Bytes that a device present says programs may use; None where it says nothing (CPUs, devices not present)."""
    try:
        statistics = device.memory_stats()
    except (AttributeError, NotImplementedError, RuntimeError):  # devices of a topology have no memory to look at
        return None
    return float(statistics["bytes_limit"]) if statistics and "bytes_limit" in statistics else None


def accelerator_named(name: str) -> Accelerator | None:
    """The entry called `name`, in any case; None if there is none."""
    return next((each for each in ACCELERATORS if each.name == name.lower()), None)

"""Memory and peak rates of accelerators."""

import dataclasses
from typing import Any

from jax.sharding import Mesh

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """Data sheet of one device as JAX counts them: a chip, or one core of a chip that it lists as two devices."""

    name: str  # as `--topology` writes it
    kind: str  # prefix of JAX's `device_kind`
    memory_bytes: float  # available to programs
    flops_per_second: float  # dense bfloat16 operations; a multiplication and an addition are two
    bytes_per_second: float  # memory bandwidth


# TPU memory is what XLA 0.10.2 reports as available when a program does not fit; rates are from Google's data sheets.
# GPU memory is 95 % of what the driver reports (XLA_PYTHON_CLIENT_MEM_FRACTION=0.95); rates are NVIDIA's, SXM, dense.
ACCELERATORS = (
    Accelerator("v4", "TPU v4", 15.25 * GIB, 137.5e12, 614e9),
    Accelerator("v5e", "TPU v5 lite", 15.75 * GIB, 197e12, 819e9),
    Accelerator("v5p", "TPU v5", 95.74 * GIB, 459e12, 2765e9),
    Accelerator("v6e", "TPU v6 lite", 31.25 * GIB, 918e12, 1640e9),
    Accelerator("tpu7x", "TPU7x", 94.75 * GIB, 1153e12, 3690e9),
    Accelerator("a100", "NVIDIA A100", 75 * GIB, 312e12, 2039e9),
    Accelerator("h100", "NVIDIA H100", 75 * GIB, 989e12, 3350e9),
    Accelerator("h200", "NVIDIA H200", 132 * GIB, 989e12, 4800e9),
)


def update_options(mesh: Mesh) -> dict[str, str] | None:
    """Returns XLA's options for an update on a mesh; None: its defaults.

    XLA for TPUs would split products with weights that are sharded over "fsdp", to overlap them with gathers. By the
    compiler's model an update then takes 1.76 times as long (docs/describe.md).
    """
    if mesh.devices.flat[0].platform != "tpu" or mesh.shape["fsdp"] == 1:
        return None
    return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}  # no operand of a product is as large


def accelerator_of(device: Any) -> Accelerator | None:
    """Returns the entry of a JAX device, with the memory that the device reports, or None if it is not listed."""
    matches = [accelerator for accelerator in ACCELERATORS if device.device_kind.startswith(accelerator.kind)]
    if not matches:
        return None
    accelerator = max(matches, key=lambda match: len(match.kind))  # "TPU v5 lite" is not "TPU v5"
    try:
        statistics = device.memory_stats() or {}
    except (AttributeError, NotImplementedError, RuntimeError):  # devices of a topology have no memory statistics
        statistics = {}
    return dataclasses.replace(accelerator, memory_bytes=float(statistics.get("bytes_limit", accelerator.memory_bytes)))


def accelerator_named(name: str) -> Accelerator | None:
    """Returns the entry with this name, ignoring case."""
    return next((accelerator for accelerator in ACCELERATORS if accelerator.name == name.lower()), None)

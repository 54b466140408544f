"""Measured rates of the devices, for copying memory and multiplying matrices."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

COPIED_BYTES = {"cpu": 1 << 27, "gpu": 1 << 31, "tpu": 1 << 30}
MATRIX_WIDTH = {"cpu": 1024, "gpu": 8192, "tpu": 8192}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Measured rates of all devices of a mesh together.

    Attributes:
      name: The devices, as in "1 x cpu".
      bytes_per_second: Bytes read and written while a large array is copied.
      flops_per_second: Operations of a product of square matrices in the compute dtype.
    """

    name: str
    bytes_per_second: float
    flops_per_second: float

    def floor_seconds(self, flops: float, moved_bytes: float) -> float:
        """Returns the roofline bound of some work: the larger of the times to compute it and to move its bytes."""
        return max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)

    def bound_by(self, flops: float, moved_bytes: float) -> str:
        """Returns which of the two is larger: "operations" or "memory"."""
        return "operations" if self.floor_seconds(flops, 0) >= self.floor_seconds(0, moved_bytes) else "memory"


def machine_name(mesh: Mesh) -> str:
    """Returns the number and kind of the devices, as in "1 x cpu"."""
    return f"{mesh.size} x {mesh.devices.flat[0].device_kind}"


def seconds_of(work: Callable[[], object], repeats: int) -> list[float]:
    """Returns the seconds of each repeat of some work on the devices, after one call that compiles it."""
    taken = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        jax.block_until_ready(work())
        taken.append(time.perf_counter() - started)
    return taken[1:]


def measured_machine(mesh: Mesh, dtype: jnp.dtype, repeats: int) -> Machine:
    """Measures the first device of a mesh; the others are assumed to be equal.

    Args:
      mesh: The devices.
      dtype: Dtype of the multiplied matrices.
      repeats: Timed calls, of which the median is used.
    """
    device = mesh.devices.flat[0]
    with jax.default_device(device):
        copied = jnp.zeros(COPIED_BYTES[device.platform] // 4)
        width = MATRIX_WIDTH[device.platform]
        square = jnp.ones((width, width), dtype)
        copy, product = jax.jit(jnp.copy), jax.jit(jnp.matmul)
        copying = statistics.median(seconds_of(lambda: copy(copied), repeats))
        multiplying = statistics.median(seconds_of(lambda: product(square, square), repeats))
    return Machine(
        name=machine_name(mesh),
        bytes_per_second=2 * copied.nbytes / copying * mesh.size,
        flops_per_second=2 * width**3 / multiplying * mesh.size,
    )

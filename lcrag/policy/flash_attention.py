"""Attention over whole rows by the platform's own kernel, which never holds a [time, time] matrix of scores.

TPU: Pallas splash attention of JAX. NVIDIA: cuDNN through `jax.nn.dot_product_attention`. Elsewhere: XLA's plain one.
The platform is that of the mesh, never of the host, so that a CPU host can compile for an accelerator it lacks.
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from lcrag.errors import UserError
from lcrag.policy.config import DecoderConfig
from lcrag.policy.sharding import logical_spec

Kernel = Literal["xla", "cudnn", "splash"]

LANES = 128  # a TPU register is 128 wide: tiles of scores are multiples of it
LARGEST_TILE = 512  # queries and keys of a tile; what MaxText takes for v5e and v5p
WIDEST_CUDNN_HEAD = 128  # on every generation; wider ones need Hopper
# The name under which a remat policy can keep what the backward kernel needs of the forward one.
SAVED_NAME = "flash_attention"


def attention_kernel(config: DecoderConfig, time: int, mesh: Mesh | None) -> Kernel:
    """Which kernel a row of `time` tokens is given.

    "auto" asks the mesh: splash on TPUs from one tile of tokens on, cuDNN on NVIDIA's GPUs where its conditions
    hold (a 16-bit dtype, heads of at most 128 in steps of 8), else XLA. Without a mesh it is XLA, the only one of
    the three that is spread over devices without being told how.

    Raises:
      UserError: cuDNN is asked for and cannot serve.
    """
    device = None if mesh is None else mesh.devices.flat[0]
    if config.attention == "cudnn" and (obstacle := _cudnn_obstacle(config, device)):
        raise UserError(f"attention='cudnn' cannot serve {obstacle}: set attention='auto'")
    if config.attention != "auto":
        return config.attention
    if device is not None and device.platform == "tpu" and time >= LANES:
        return "splash"
    if device is not None and _cudnn_obstacle(config, device) is None:
        return "cudnn"
    return "xla"


def _cudnn_obstacle(config: DecoderConfig, device) -> str | None:
    """What keeps cuDNN from attending, in words; None if nothing does. No device: any could be meant."""
    if device is not None and "NVIDIA" not in device.device_kind:
        return f"a mesh of {device.device_kind} devices, which NVIDIA did not make"
    if config.compute_dtype == "float32":
        return "compute_dtype='float32', only 16-bit ones"
    if config.head_width % 8 or config.head_width > WIDEST_CUDNN_HEAD:
        return f"heads {config.head_width} wide, only multiples of 8 up to {WIDEST_CUDNN_HEAD}"
    return None


def flash_attention(
    kernel: Kernel,
    queries: Float[Array, "batch time heads width"],
    keys: Float[Array, "batch time kv_heads width"],
    values: Float[Array, "batch time kv_heads width"],
    segments: Int[Array, "batch time"] | None,
    mesh: Mesh | None = None,
) -> Float[Array, "batch time heads width"]:
    """Causal attention within equal segments, each device its own rows and heads.

    Args:
      kernel: See `attention_kernel`. "splash" away from TPUs is interpreted: exact, and slow.
      queries: Unscaled.
      keys: Each serves `heads / kv_heads` neighbouring query heads.
      values: Likewise.
      segments: Which text a token belongs to; None: a row is one text.
      mesh: Rows are spread over its axes data and fsdp, heads over tensor; both must divide.
    """
    splash_here = functools.partial(_splash, interpret=_platform(mesh) != "tpu")
    attends: dict[Kernel, Callable[..., Array]] = {"xla": _xla, "cudnn": _cudnn, "splash": splash_here}
    if mesh is None or kernel == "xla":  # XLA partitions its own operations
        return attends[kernel](queries, keys, values, segments)
    heads, tokens = logical_spec("batch", None, "heads", None), logical_spec("batch", None)
    specs = {"in_specs": (heads, heads, heads, tokens), "out_specs": heads}
    return jax.shard_map(attends[kernel], mesh=mesh, **specs, check_vma=False)(queries, keys, values, segments)


def _segment_mask(segments: Int[Array, "batch time"] | None):
    return None if segments is None else (segments[:, None, :, None] == segments[:, None, None, :])


def _xla(queries, keys, values, segments):
    return jax.nn.dot_product_attention(queries, keys, values, mask=_segment_mask(segments), is_causal=True)


def _cudnn(queries, keys, values, segments):
    """cuDNN takes segments as a 16-bit bias [batch, 1, time, time], and such rows only of even length."""
    time = queries.shape[1]
    queries, keys, values = (_padded(each, time % 2) for each in (queries, keys, values))
    mask = _segment_mask(None if segments is None else _padded(segments, time % 2))
    out = jax.nn.dot_product_attention(queries, keys, values, mask=mask, is_causal=True, implementation="cudnn")
    return out[:, :time]


def _splash(queries, keys, values, segments, interpret: bool):
    time = queries.shape[1]
    tile, extra = _tiles(time)
    kernel = _splash_kernel(queries.shape[2], time + extra, tile, interpret)
    scaled = queries * jnp.asarray(queries.shape[-1] ** -0.5, queries.dtype)
    heads_first = (_padded(each, extra).swapaxes(1, 2) for each in (scaled, keys, values))
    if segments is None:
        out = jax.vmap(kernel)(*heads_first)
    else:
        segments = _padded(segments, extra)
        out = jax.vmap(kernel)(*heads_first, splash.SegmentIds(segments, segments))
    return out.swapaxes(1, 2)[:, :time]


def _platform(mesh: Mesh | None) -> str:
    return jax.default_backend() if mesh is None else mesh.devices.flat[0].platform


def _tiles(time: int) -> tuple[int, int]:
    """The side of a tile and the tokens that fill up the last one: as few tiles as LARGEST_TILE allows, evenly cut."""
    count = -(-time // LARGEST_TILE)
    tile = -(-time // (count * LANES)) * LANES
    return tile, count * tile - time


def _splash_kernel(heads: int, time: int, tile: int, interpret: bool):
    """Causality is computed inside the kernel and tiles above the diagonal are skipped: no mask is stored."""
    sizes = splash.BlockSizes(
        block_q=tile,
        block_kv=tile,
        block_q_dkv=tile,
        block_kv_dkv=tile,
        block_q_dq=tile,
        block_kv_dq=tile,
    )
    return splash.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((time, time))] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        residual_checkpoint_name=SAVED_NAME,
        interpret=interpret,
    )


def _padded(array: Array, extra: int) -> Array:
    """More tokens at the end; nothing before them can see them."""
    return array if extra == 0 else jnp.pad(array, [(0, 0), (0, extra)] + [(0, 0)] * (array.ndim - 2))

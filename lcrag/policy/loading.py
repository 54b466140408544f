"""Loads a Hugging Face model folder into sharded parameters, in small pieces."""

import functools
import math
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from lcrag.errors import UserError
from lcrag.policy.config import ComputeDtype, DecoderConfig
from lcrag.policy.hugging_face_config import read_config
from lcrag.policy.model_files import DTYPES, TensorFolder
from lcrag.policy.parameters import Params, abstract_parameters, param_shardings
from lcrag.policy.sharding import make_mesh
from lcrag.policy.stored_parameters import (
    EMBEDDING_NAME,
    PIECE_BYTES,
    UNEMBEDDING_NAME,
    StoredParameter,
    flat_parameters,
    nested_parameters,
    row_pieces,
    stored_parameters,
)

PARAMETER_DTYPES = ("float32", "bfloat16")
# Buffers in old checkpoints, which follow from the configuration.
_UNUSED = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"


def load_hugging_face(
    folder: str | pathlib.Path, dtype: DTypeLike = "float32", mesh: Mesh | None = None
) -> tuple[DecoderConfig, Params]:
    """Reads a model folder into sharded parameters.

    Names, shapes and dtypes of all tensors are compared with `config.json` before any value is read. Then each process
    reads the parts that its devices hold, once, in pieces of `PIECE_BYTES`; a device casts and transposes a piece and
    writes it into its share of the parameter, in place. Finally the devices check that all values are finite.

    Args:
      folder: Holds `config.json` and `model.safetensors` (or shards and their index file).
      dtype: Dtype of the parameters in memory: float32 or bfloat16.
      mesh: Devices; one device if None.

    Raises:
      UserError: A file or tensor is missing, unexpected, of another shape or dtype, or cannot be read, or a tensor
        holds a value that is not finite.
    """
    wanted = parameter_dtype(dtype)
    config, tensors = read_config(folder), TensorFolder(folder)
    parts: dict[str, list[StoredParameter]] = {}
    for stored in stored_parameters(config):
        parts.setdefault(stored.path, []).append(stored)
    _check_tensors(config, parts, tensors)
    mesh = mesh or make_mesh(devices=jax.devices()[:1])
    shardings = flat_parameters(param_shardings(config, mesh))
    shapes = flat_parameters(abstract_parameters(config))
    flat = {path: _filled(shapes[path].shape, wanted, shardings[path], parts[path], tensors) for path in parts}
    _check_finite(flat, parts, tensors, mesh)
    return config, nested_parameters(flat)


def stored_dtype(folder: str | pathlib.Path) -> ComputeDtype:
    """Returns the dtype of the stored embedding of a complete model folder; float32 for float16, which is only read.

    Raises:
      UserError: There are no weights.
    """
    return "bfloat16" if TensorFolder(folder).tensors[EMBEDDING_NAME].code == "BF16" else "float32"


def parameter_dtype(dtype: DTypeLike) -> np.dtype:
    """Converts and checks a dtype for parameters.

    Raises:
      UserError: It is neither float32 nor bfloat16.
    """
    try:
        found = jnp.dtype(dtype)
    except TypeError as error:
        raise UserError(f"there is no dtype {dtype!r}: parameters are {' or '.join(PARAMETER_DTYPES)}") from error
    if found.name not in PARAMETER_DTYPES:
        raise UserError(f"parameters cannot be {found.name}: choose {' or '.join(PARAMETER_DTYPES)}")
    return found


def _check_tensors(
    config: DecoderConfig, parts: Mapping[str, Sequence[StoredParameter]], tensors: TensorFolder
) -> None:
    """Checks names, shapes and dtypes; a tied checkpoint may store the embedding twice, but not two different ones."""
    shapes = {stored.name: stored.shape for path in parts for stored in parts[path]}
    if not (config.tie_embeddings and UNEMBEDDING_NAME in tensors.tensors):
        return tensors.check(shapes, unused=_UNUSED)
    rows, width = shapes[EMBEDDING_NAME]
    tensors.check(shapes | {UNEMBEDDING_NAME: (rows, width)}, unused=_UNUSED)
    size, firsts = row_pieces(rows, 4 * width)
    for first in firsts:
        piece = (slice(first, first + size), slice(0, width))
        if not np.array_equal(tensors.read(EMBEDDING_NAME, piece), tensors.read(UNEMBEDDING_NAME, piece)):
            raise UserError(
                f"tensor {UNEMBEDDING_NAME} in {tensors.tensors[UNEMBEDDING_NAME].file} differs from {EMBEDDING_NAME},"
                " though config.json ties them: set tie_word_embeddings to false there"
            )


def _check_finite(
    flat: Mapping[str, jax.Array], parts: Mapping[str, Sequence[StoredParameter]], tensors: TensorFolder, mesh: Mesh
) -> None:
    """Raises an error for the first stored tensor with a non-finite value; it is the same in every process."""
    finite = jax.device_get(_finite(mesh)(flat))
    for stored in (each for path in parts for each in parts[path]):
        if not finite[stored.path].reshape(-1)[stored.layer or 0]:
            raise UserError(
                f"tensor {stored.name} in {tensors.tensors[stored.name].file} holds NaN or infinite values: the"
                " checkpoint is damaged, fetch or write it again"
            )


def _filled(
    shape: tuple[int, ...],
    dtype: np.dtype,
    sharding: NamedSharding,
    parts: list[StoredParameter],
    tensors: TensorFolder,
) -> jax.Array:
    """Assembles a parameter from its stored tensors (one, or one per layer)."""
    parameter, unfinished_bytes = _zeros(shape, dtype, sharding)(), 0
    # the same number in every process
    most_local_devices = max(Counter(device.process_index for device in sharding.mesh.devices.flat).values())
    for part in parts:
        spread = part.sharding(sharding)
        write = _writer(sharding, spread, part.transposed)
        rows, *others = spread.shard_shape(part.shape)
        itemsize = DTYPES[tensors.tensors[part.name].code].itemsize
        size, firsts = row_pieces(rows, math.prod(others) * itemsize * most_local_devices)
        for first in firsts:
            piece = _piece(tensors, part, spread, first, size)
            parameter = write(parameter, piece, part.start(first))
            unfinished_bytes += piece.nbytes
            if unfinished_bytes >= PIECE_BYTES:  # reading must not run ahead of the devices
                parameter.block_until_ready()
                unfinished_bytes = 0
    return parameter.block_until_ready()


def _piece(tensors: TensorFolder, part: StoredParameter, sharding: NamedSharding, first: int, size: int) -> jax.Array:
    """Reads rows [first, first + size) of every device's share; devices that hold the same rows share one read."""
    read: dict[tuple, np.ndarray] = {}
    pieces = []
    places = sharding.addressable_devices_indices_map(part.shape)
    for index in places.values():
        begin = (index[0].start or 0) + first
        rows = (slice(begin, begin + size), *index[1:])
        key = tuple((each.start, each.stop) for each in rows)
        if key not in read:
            read[key] = tensors.read(part.name, rows)
        pieces.append(read[key])
    shares = part.shape[0] // sharding.shard_shape(part.shape)[0]
    shape = (size * shares, *part.shape[1:])
    return jax.make_array_from_single_device_arrays(shape, sharding, jax.device_put(pieces, list(places)))


@functools.cache
def _zeros(shape: tuple[int, ...], dtype: np.dtype, sharding: NamedSharding):
    return jax.jit(functools.partial(jnp.zeros, shape, dtype), out_shardings=sharding)


@functools.cache
def _finite(mesh: Mesh):
    """Compiles the check of every parameter for finite values, bool[] or bool[layers]."""

    def finite(flat):
        kept_axes = {path: int(path.startswith("layers/")) for path in flat}
        return {path: jnp.isfinite(leaf).all(tuple(range(kept_axes[path], leaf.ndim))) for path, leaf in flat.items()}

    return jax.jit(finite, out_shardings=NamedSharding(mesh, PartitionSpec()))


@functools.cache
def _writer(sharding: NamedSharding, spread: NamedSharding, transposed: bool):
    """Compiles the function by which each device writes its piece into its share of the parameter, at `start`."""

    def write(share, piece, start):
        turned = (piece.T if transposed else piece).astype(share.dtype)
        return jax.lax.dynamic_update_slice(share, jnp.expand_dims(turned, range(share.ndim - piece.ndim)), start)

    in_specs = (sharding.spec, spread.spec, PartitionSpec())
    local = jax.shard_map(write, mesh=sharding.mesh, in_specs=in_specs, out_specs=sharding.spec)
    return jax.jit(local, donate_argnums=0, out_shardings=sharding)

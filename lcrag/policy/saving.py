"""Saves sharded parameters to a Hugging Face model folder, in small pieces."""

import contextlib
import functools
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jax.typing import DTypeLike

from lcrag.errors import UserError
from lcrag.files import naming
from lcrag.policy.config import DecoderConfig
from lcrag.policy.hugging_face_config import config_to_hugging_face
from lcrag.policy.loading import parameter_dtype
from lcrag.policy.model_files import (
    INDEX_FILE,
    SINGLE_FILE,
    plan_shards,
    read_optional_json,
    tensor_bytes,
    write_index,
    write_json_object,
    write_shard,
)
from lcrag.policy.parameters import Params, abstract_parameters, merge_lora
from lcrag.policy.stored_parameters import StoredParameter, flat_parameters, row_pieces, stored_parameters

SHARD_BYTES = 5_000_000_000
# Other files of a model, copied from the folder that it was read from.
_COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_STAGING = ".writing"
_LOGGER = logging.getLogger(__name__)


def save_hugging_face(
    folder: str | pathlib.Path,
    config: DecoderConfig,
    params: Params,
    dtype: DTypeLike | None = None,
    eos_ids: Sequence[int] = (),
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a model folder that `transformers` opens as the same model.

    Weights are written in pieces of `PIECE_BYTES`. The tokenizer, the generation settings and the other fields of
    `config.json` are copied from `config.source`. Files are staged first: a concurrent reader finds the earlier model,
    no weights or the new model, never a mixture. With several processes all must call it; the first one writes, and it
    returns on all of them when the folder is complete.

    Args:
      folder: Created if absent; an earlier model in it is replaced.
      config: The decoder.
      params: Its parameters: JAX arrays on any mesh, or NumPy arrays; adapters are merged, in float32.
      dtype: Dtype on disk, float32 or bfloat16; None: that of the embedding.
      eos_ids: Ids that end a generation; those of `config.source` if empty.
      shard_bytes: Maximum bytes of weights in one file.

    Raises:
      UserError: The parameters do not match the configuration, or the dtype is not supported.
    """
    wanted = None if dtype is None else parameter_dtype(dtype)
    config, params = merge_lora(config, params, wanted)
    flat = flat_parameters(params)
    plan = {stored.name: stored for stored in stored_parameters(config)}
    _check(config, flat)
    stored_dtype = parameter_dtype(flat["embedding"].dtype) if wanted is None else wanted
    shapes = {name: stored.shape for name, stored in plan.items()}
    shards = plan_shards(shapes, stored_dtype, shard_bytes)
    folder = pathlib.Path(folder)
    with _staged(folder) as staging:
        for file, names in shards.items():
            pieces = (piece for name in names for piece in _pieces(flat[plan[name].path], plan[name], stored_dtype))
            if staging is None:
                for _ in pieces:  # takes part in gathering the pieces that another process writes
                    pass
            else:
                write_shard(staging / file, {name: shapes[name] for name in names}, stored_dtype, pieces)
        if staging is not None:
            if len(shards) > 1:
                write_index(staging, shards, sum(tensor_bytes(shape, stored_dtype) for shape in shapes.values()))
            _write_settings(staging, config, stored_dtype, tuple(eos_ids))
            _publish(staging, folder)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"saved {folder.name}")  # whose parent may differ between hosts


def _check(config: DecoderConfig, flat: dict[str, Any]) -> None:
    needed = flat_parameters(abstract_parameters(config))
    for path in sorted(flat.keys() ^ needed.keys()):
        what = "is missing" if path in needed else "has no place in the checkpoint"
        raise UserError(f"parameter {path} {what}: these are not the parameters of this configuration")
    for path, leaf in needed.items():
        if flat[path].shape != leaf.shape:
            raise UserError(
                f"parameter {path} has shape {flat[path].shape}, not {leaf.shape}: these are not the parameters of"
                " this configuration"
            )


def _pieces(leaf: Any, stored: StoredParameter, dtype: np.dtype) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yields all rows of a stored tensor for `write_shard`; every process must consume them all."""
    sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
    spread = stored.sharding(sharding) if isinstance(sharding, NamedSharding) else None
    if isinstance(sharding, NamedSharding) and stored.divides_layers(sharding):
        spread = None  # a device does not know the place of a layer in its share
    share = stored.shape[0] if spread is None else spread.shard_shape(stored.shape)[0]
    shares = stored.shape[0] // share
    size, firsts = row_pieces(share, shares * tensor_bytes(stored.shape[1:], dtype))
    for first in firsts:
        if isinstance(leaf, jax.Array):
            cut = _cutter(stored.stacked, stored.transposed, size, dtype, sharding, spread)
            piece = jax.device_get(cut(leaf, stored.start(first)))
        else:
            layer = leaf if stored.layer is None else leaf[stored.layer]
            piece = (layer.T if stored.transposed else layer)[first : first + size].astype(dtype)
        for number in range(shares):
            yield stored.name, number * share + first, piece[number * size : (number + 1) * size]


@functools.cache
def _cutter(
    stacked: bool, transposed: bool, size: int, dtype: np.dtype, sharding: Sharding, spread: NamedSharding | None
):
    """Compiles the function that cuts a piece out of a parameter and transposes it as it is stored.

    Each device cuts from its own share, or with `spread` None all devices together.
    """

    def cut(share, start):
        sizes = list(share.shape)
        sizes[0] = 1 if stacked else sizes[0]
        sizes[stacked + transposed] = size
        piece = jax.lax.dynamic_slice(share, start, sizes)
        piece = piece[0] if stacked else piece
        return (piece.T if transposed else piece).astype(dtype)

    if not isinstance(sharding, NamedSharding):
        return jax.jit(cut)
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())
    if spread is None:
        return jax.jit(cut, out_shardings=everywhere)
    in_specs = (sharding.spec, PartitionSpec())
    local = jax.shard_map(cut, mesh=sharding.mesh, in_specs=in_specs, out_specs=spread.spec)
    # where other processes hold a part of it, every process gets the whole piece
    return jax.jit(local, out_shardings=spread if spread.is_fully_addressable else everywhere)


def _write_settings(staging: pathlib.Path, config: DecoderConfig, dtype: np.dtype, eos_ids: tuple[int, ...]) -> None:
    eos = {"eos_token_id": eos_ids[0] if len(eos_ids) == 1 else list(eos_ids)} if eos_ids else {}
    original: dict[str, Any] = {}
    generation: dict[str, Any] = {}
    if config.source:
        source = pathlib.Path(config.source)
        if not source.is_dir():
            _LOGGER.warning("%s no longer exists: %s gets no tokenizer or settings from it", source, staging.parent)
        original = read_optional_json(source / "config.json")
        generation = read_optional_json(source / "generation_config.json")
        for name in _COMPANIONS:
            if (source / name).is_file():
                with naming(staging / name):
                    shutil.copyfile(source / name, staging / name)
    write_json_object(staging / "config.json", config_to_hugging_face(config, dtype.name, original) | eos)
    if generation | eos:
        write_json_object(staging / "generation_config.json", generation | eos)


@contextlib.contextmanager
def _staged(folder: pathlib.Path) -> Iterator[pathlib.Path | None]:
    """Yields the folder of staged files in the process that writes, otherwise None; removes it afterwards."""
    if jax.process_index() > 0:
        yield None
        return
    staging = folder / _STAGING
    shutil.rmtree(staging, ignore_errors=True)  # left by a killed writer
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: pathlib.Path, folder: pathlib.Path) -> None:
    """Moves the staged files into place; the file that readers open first comes last."""
    for stale in (folder / SINGLE_FILE, folder / INDEX_FILE, *folder.glob("model-*-of-*.safetensors")):
        stale.unlink(missing_ok=True)
    for path in sorted(staging.iterdir(), key=lambda path: path.name in (SINGLE_FILE, INDEX_FILE)):
        os.replace(path, folder / path.name)

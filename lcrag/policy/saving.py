"""Sharded parameters into a Hugging Face model folder, in pieces that are small beside the model."""

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
from lcrag.policy.adapters import merge_lora
from lcrag.policy.config import DecoderConfig
from lcrag.policy.functions import Params, abstract_parameters
from lcrag.policy.hugging_face_config import config_to_hugging_face
from lcrag.policy.json_files import read_optional_json, write_json_object
from lcrag.policy.loading import parameter_dtype
from lcrag.policy.stored_parameters import StoredParameter, flat_parameters, row_pieces, stored_parameters
from lcrag.policy.tensor_folder import INDEX_FILE, SINGLE_FILE
from lcrag.policy.tensor_writer import plan_shards, tensor_bytes, write_index, write_shard

SHARD_BYTES = 5_000_000_000
# What belongs to a model beside its weights: copied from the folder that the model was read from.
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

    Weights go out in pieces of `PIECE_BYTES`. The tokenizer, the generation settings and those fields of `config.json`
    that are not the decoder's come from `config.source`. Everything is written aside first: whoever reads the folder
    meanwhile finds the earlier model, no weights or the new model, never a mixture. With several processes all
    must call it; the first one writes, and it returns on all of them when the folder is complete.

    Args:
      folder: Created if absent; files of an earlier model in it are replaced.
      config: The decoder.
      params: Its parameters: JAX arrays on any mesh, or NumPy arrays; adapters are merged, in float32.
      dtype: Dtype on disk, float32 or bfloat16; that of the embedding if None.
      eos_ids: Ids that end a generation; those of `config.source` if empty.
      shard_bytes: The most bytes of one file of weights.

    Raises:
      UserError: the parameters are not those of the configuration, or the dtype is not supported.
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
    staging = _empty_staging(folder) if jax.process_index() == 0 else None
    for file, names in shards.items():
        pieces = (piece for name in names for piece in _pieces(flat[plan[name].path], plan[name], stored_dtype))
        if staging is None:
            for _ in pieces:  # takes part in gathering what another process writes
                pass
        else:
            write_shard(staging / file, {name: shapes[name] for name in names}, stored_dtype, pieces)
    if staging is not None:
        if len(shards) > 1:
            write_index(staging, shards, sum(tensor_bytes(shape, stored_dtype) for shape in shapes.values()))
        _write_settings(staging, config, stored_dtype, tuple(eos_ids))
        _publish(staging, folder)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"saved {folder}")


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
    """All rows of a stored tensor, as `write_shard` takes them; every process must go through them all."""
    sharding = leaf.sharding if isinstance(leaf, jax.Array) else None
    spread = stored.sharding(sharding) if isinstance(sharding, NamedSharding) else None
    if isinstance(sharding, NamedSharding) and stored.divides_layers(sharding):
        spread = None  # no device knows where in its share a layer is
    share = stored.shape[0] if spread is None else spread.shard_shape(stored.shape)[0]
    shares = stored.shape[0] // share
    size, firsts = row_pieces(share, shares * tensor_bytes(stored.shape[1:], dtype))
    for first in firsts:
        if isinstance(leaf, jax.Array):
            cut = _cutter(stored.stacked, stored.transposed, size, dtype, sharding, spread)
            piece = jax.device_get(cut(leaf, stored.start(first)))
        else:
            piece = _cut(leaf, stored)[first : first + size].astype(dtype)
        for number in range(shares):
            yield stored.name, number * share + first, piece[number * size : (number + 1) * size]


def _cut(leaf: np.ndarray, stored: StoredParameter) -> np.ndarray:
    layer = leaf if stored.layer is None else leaf[stored.layer]
    return layer.T if stored.transposed else layer


@functools.cache
def _cutter(
    stacked: bool, transposed: bool, size: int, dtype: np.dtype, sharding: Sharding, spread: NamedSharding | None
):
    """A program that cuts a piece out of a parameter and turns it as it is stored: each device out of its own share,
    or with `spread` None all devices together."""

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
    # Where other processes hold a part of it, every process gets the whole piece.
    return jax.jit(local, out_shardings=spread if spread.is_fully_addressable else everywhere)


def _empty_staging(folder: pathlib.Path) -> pathlib.Path:
    staging = folder / _STAGING
    if staging.exists():  # an earlier writer was killed
        shutil.rmtree(staging)
    staging.mkdir(parents=True)
    return staging


def _write_settings(staging: pathlib.Path, config: DecoderConfig, dtype: np.dtype, eos_ids: tuple[int, ...]) -> None:
    eos = {"eos_token_id": eos_ids[0] if len(eos_ids) == 1 else list(eos_ids)} if eos_ids else {}
    original: dict[str, Any] = {}
    generation: dict[str, Any] = {}
    if config.source:
        source = pathlib.Path(config.source)
        if not source.is_dir():
            _LOGGER.warning("%s is gone: what it held beside the weights is not in %s", source, staging.parent)
        original = read_optional_json(source / "config.json")
        generation = read_optional_json(source / "generation_config.json")
        for name in _COMPANIONS:
            if (source / name).is_file():
                shutil.copyfile(source / name, staging / name)
    write_json_object(staging / "config.json", config_to_hugging_face(config, dtype.name, original) | eos)
    if generation | eos:
        write_json_object(staging / "generation_config.json", generation | eos)


def _publish(staging: pathlib.Path, folder: pathlib.Path) -> None:
    """Moves the written files into place, the one that readers look for last."""
    for stale in (folder / SINGLE_FILE, folder / INDEX_FILE, *folder.glob("model-*-of-*.safetensors")):
        stale.unlink(missing_ok=True)
    for path in sorted(staging.iterdir(), key=lambda path: path.name in (SINGLE_FILE, INDEX_FILE)):
        os.replace(path, folder / path.name)
    staging.rmdir()

"""Sharded parameters into a Hugging Face model folder, in pieces that are small beside the model."""

import functools
import math
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from lcrag.errors import UserError
from lcrag.policy.adapters import merge_lora
from lcrag.policy.config import DecoderConfig
from lcrag.policy.functions import Params
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
      params: Its parameters: JAX arrays on any mesh, or NumPy arrays; adapters are merged.
      dtype: Dtype on disk, float32 or bfloat16; that of the embedding if None.
      eos_ids: Ids that end a generation; those of `config.source` if empty.
      shard_bytes: The most bytes of one file of weights.

    Raises:
      UserError: the parameters are not those of the configuration, or the dtype is not supported.
    """
    config, params = merge_lora(config, params)
    flat = flat_parameters(params)
    plan = {stored.name: stored for stored in stored_parameters(config)}
    _check(flat, plan.values())
    stored_dtype = parameter_dtype(flat["embedding"].dtype if dtype is None else dtype)
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


def _check(flat: dict[str, Any], plan) -> None:
    needed = {stored.path for stored in plan}
    for path in sorted(flat.keys() ^ needed):
        what = "is missing" if path in needed else "has no place in the checkpoint (adapters are merged before)"
        raise UserError(f"parameter {path} {what}: these are not the parameters of this configuration")
    for stored in plan:
        shape = flat[stored.path].shape[stored.layer is not None :]
        if shape != (stored.shape[::-1] if stored.transposed else stored.shape):
            raise UserError(
                f"parameter {stored.path} has shape {flat[stored.path].shape}, which is not that of {stored.name}"
                f" {stored.shape}: these are not the parameters of this configuration"
            )


def _pieces(leaf: Any, stored: StoredParameter, dtype: np.dtype) -> Iterator[np.ndarray]:
    """The stored tensor's rows, in order; every process must take them all."""
    rows, *others = stored.shape
    size, firsts = row_pieces(rows, math.prod(others) * dtype.itemsize)
    done = 0
    for first in firsts:
        yield _rows(leaf, stored, first, size, dtype)[done - first :]
        done = first + size


def _rows(leaf: Any, stored: StoredParameter, first: int, size: int, dtype: np.dtype) -> np.ndarray:
    if isinstance(leaf, jax.Array):
        start = np.zeros(leaf.ndim, np.int32)
        start[0], start[stored.rows_axis] = stored.layer or 0, first
        gather = _gatherer(stored.layer is not None, stored.transposed, size, dtype, _everywhere(leaf))
        return jax.device_get(gather(leaf, start))
    layer = leaf if stored.layer is None else leaf[stored.layer]
    return (layer.T if stored.transposed else layer)[first : first + size].astype(dtype)


def _everywhere(leaf: jax.Array) -> NamedSharding | None:
    """Where a piece must go so that the writing process can read it; None if it can read all devices."""
    if leaf.is_fully_addressable:
        return None
    assert isinstance(leaf.sharding, NamedSharding)
    return NamedSharding(leaf.sharding.mesh, PartitionSpec())


@functools.cache
def _gatherer(stacked: bool, transposed: bool, size: int, dtype: np.dtype, sharding: NamedSharding | None):
    """A program that cuts a piece out of a parameter and turns it the way it is stored."""

    def gather(leaf, start):
        axis = stacked + transposed
        sizes = [
            1 if stacked and each == 0 else size if each == axis else leaf.shape[each] for each in range(leaf.ndim)
        ]
        piece = jax.lax.dynamic_slice(leaf, start, sizes)
        piece = piece[0] if stacked else piece
        return (piece.T if transposed else piece).astype(jnp.dtype(dtype))

    return jax.jit(gather, out_shardings=sharding)


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

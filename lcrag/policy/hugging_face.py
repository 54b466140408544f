"""Hugging Face model folders: the names of tensors, reading and writing safetensors."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from jax.sharding import Mesh

from lcrag.errors import UserError
from lcrag.policy.config import DecoderConfig, config_to_hugging_face, read_config
from lcrag.policy.functions import Params, abstract_parameters, param_shardings
from lcrag.policy.sharding import make_mesh

STORED_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

# Our path inside a layer -> the name inside `model.layers.<n>.`
_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/output": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp/gate": "mlp.gate_proj",
    "mlp/up": "mlp.up_proj",
    "mlp/down": "mlp.down_proj",
}
_TOP_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "unembedding": "lm_head.weight",
    "final_norm/scale": "model.norm.weight",
}
_KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def _paths(config: DecoderConfig) -> Iterator[tuple[str, jax.ShapeDtypeStruct]]:
    leaves, _ = jax.tree.flatten_with_path(abstract_parameters(config))
    for path, leaf in leaves:
        yield "/".join(key.key for key in path), leaf


def _tensor_name(path: str, layer: int) -> str:
    if path in _TOP_NAMES:
        return _TOP_NAMES[path]
    module, kind = path.removeprefix("layers/").rsplit("/", 1)
    return f"model.layers.{layer}.{_LAYER_NAMES[module]}.{_KINDS[kind]}"


def save_hugging_face(
    folder: str | pathlib.Path, config: DecoderConfig, params: Params, dtype: str = "float32", eos_ids=()
) -> None:
    """Writes `config.json` and `model.safetensors`, which `transformers` opens as the same model.

    Args:
      folder: Created if absent.
      config: The decoder.
      params: Its parameters.
      dtype: "float32" or "bfloat16".
      eos_ids: End-of-sequence ids, written into the configuration.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    flat = {"/".join(k.key for k in path): leaf for path, leaf in jax.tree.flatten_with_path(params)[0]}
    tensors: dict[str, np.ndarray] = {}
    for path, leaf in flat.items():
        array = np.asarray(leaf).astype(STORED_DTYPES[dtype])
        for layer, each in enumerate(array if path.startswith("layers/") else [array]):
            transposed = each.T if path.endswith("/kernel") else each
            tensors[_tensor_name(path, layer)] = np.ascontiguousarray(transposed)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    raw = config_to_hugging_face(config, tuple(eos_ids)) | {"dtype": dtype}
    (folder / "config.json").write_text(json.dumps(raw, indent=2) + "\n")


def load_hugging_face(
    folder: str | pathlib.Path, dtype: str = "float32", mesh: Mesh | None = None
) -> tuple[DecoderConfig, Params]:
    """Reads a model folder into sharded parameters.

    Args:
      folder: Holds `config.json` and `model.safetensors` (or shards and their index file).
      dtype: Dtype of the parameters in memory.
      mesh: Devices; one device if None.

    Raises:
      UserError: a file or tensor is missing, of another shape, or cannot be read.
    """
    folder = pathlib.Path(folder)
    config = read_config(folder)
    tensors = _Tensors(folder)
    shardings = param_shardings(config, mesh or make_mesh(devices=jax.devices()[:1]))
    placed: dict[str, Any] = {}
    flat_shardings = {"/".join(k.key for k in path): s for path, s in jax.tree.flatten_with_path(shardings)[0]}
    for path, leaf in _paths(config):
        array = _read(tensors, path, leaf.shape).astype(STORED_DTYPES[dtype])
        placed[path] = jax.device_put(array, flat_shardings[path])
    return config, _nested(placed)


def _read(tensors: "_Tensors", path: str, shape: tuple[int, ...]) -> np.ndarray:
    layered = path.startswith("layers/")

    def one(layer: int) -> np.ndarray:
        name = _tensor_name(path, layer)
        array = tensors.read(name)
        array = array.T if path.endswith("/kernel") else array
        expected = shape[1:] if layered else shape
        if array.shape != expected:
            raise UserError(
                f"tensor {name} in {tensors.folder} has shape {array.shape}, config.json asks for {expected}"
            )
        return array

    return np.stack([one(layer) for layer in range(shape[0])]) if layered else one(0)


def _nested(flat: dict[str, Any]) -> Params:
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


class _Tensors:
    """The tensors of a folder, each read when asked for."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
        if index.is_file():
            files = {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
        elif single.is_file():
            with self._open(single) as handle:
                files = dict.fromkeys(handle.keys(), single)
        else:
            raise UserError(f"no weights in {folder}: expected model.safetensors or model.safetensors.index.json")
        self._files = files

    def read(self, name: str) -> np.ndarray:
        if name not in self._files:
            raise UserError(
                f"tensor {name} is missing from {self.folder}: the checkpoint is incomplete or of another model"
            )
        with self._open(self._files[name]) as handle:
            return handle.get_tensor(name)

    @staticmethod
    def _open(path: pathlib.Path):
        try:
            return safetensors.safe_open(path, framework="numpy")
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(f"{path} cannot be read ({error}): fetch or write the file again") from error

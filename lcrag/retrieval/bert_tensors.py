"""The parameters of an encoder's body under the names of the Hugging Face hub; BERT and XLM-R share them."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from lcrag.policy.tensor_folder import TensorFolder
from lcrag.retrieval.bert import BertConfig, initialise

_EMBEDDINGS = {
    f"embeddings.{name}.weight": (name, "embedding")
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
}
_LAYER_PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attention_output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
    "output.LayerNorm": "output_norm",
}
# A checkpoint with a head, a masked language model's say, has the body's names behind one of these.
_PREFIXES = ("", "bert.", "roberta.")
# What such a checkpoint stores beside the body: the pooler, buffers and heads, none of which an encoder uses.
_UNUSED = r"(bert\.|roberta\.)?(pooler\..*|embeddings\.(position|token_type)_ids)|(cls|lm_head|classifier)\..*"


def _weight(part: str) -> str:
    return "scale" if part.endswith("LayerNorm") else "kernel"


def _names(config: BertConfig) -> dict[str, tuple[tuple[str, ...], int | None]]:
    """Hugging Face tensor name -> (path in our parameters, layer)."""
    names: dict[str, tuple[tuple[str, ...], int | None]] = {name: (path, None) for name, path in _EMBEDDINGS.items()}
    names["embeddings.LayerNorm.weight"] = (("embeddings_norm", "scale"), None)
    names["embeddings.LayerNorm.bias"] = (("embeddings_norm", "bias"), None)
    for layer in range(config.num_hidden_layers):
        for part, ours in _LAYER_PARTS.items():
            prefix = f"encoder.layer.{layer}.{part}"
            names[f"{prefix}.weight"] = (("layers", ours, _weight(part)), layer)
            names[f"{prefix}.bias"] = (("layers", ours, "bias"), layer)
    return names


def to_tensors(config: BertConfig, params: dict[str, Any]) -> dict[str, np.ndarray]:
    """Parameters under their Hugging Face names; dense kernels are transposed to [out, in]."""
    flat = traverse_util.flatten_dict(jax.device_get(params))
    tensors = {}
    for name, (path, layer) in _names(config).items():
        value = flat[path] if layer is None else flat[path][layer]
        tensors[name] = np.ascontiguousarray(value.T if path[-1] == "kernel" else value)
    return tensors


def read_tensors(config: BertConfig, folder: TensorFolder) -> dict[str, Any]:
    """The inverse of `to_tensors`, from a model folder and as float32, one tensor at a time.

    Raises:
      UserError: a tensor is missing, has another shape or dtype than it must, or belongs to another model.
    """
    abstract = traverse_util.flatten_dict(jax.eval_shape(lambda key: initialise(config, key), jax.random.key(0)))
    stored = _stored_names(_names(config), folder.tensors)
    folder.check({stored[name]: _shape(abstract[path], path) for name, (path, _) in _names(config).items()}, _UNUSED)
    flat = {path: np.empty(leaf.shape, np.float32) for path, leaf in abstract.items()}
    for name, (path, layer) in _names(config).items():
        value = folder.read(stored[name])
        target = flat[path] if layer is None else flat[path][layer]
        target[...] = value.T if path[-1] == "kernel" else value
    return traverse_util.unflatten_dict(flat)


def _shape(leaf: jax.ShapeDtypeStruct, path: tuple[str, ...]) -> tuple[int, ...]:
    shape = leaf.shape[1:] if path[0] == "layers" else leaf.shape
    return shape[::-1] if path[-1] == "kernel" else shape


def _stored_names(names: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """The name under which a checkpoint has each tensor: behind a prefix perhaps, and in TensorFlow's old names."""
    present = set(present)
    prefix = next((p for p in _PREFIXES if f"{p}embeddings.word_embeddings.weight" in present), "")

    def stored(name: str) -> str:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return prefix + (old if prefix + old in present else name)

    return {name: stored(name) for name in names}

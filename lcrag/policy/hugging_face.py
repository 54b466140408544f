"""Loads a Hugging Face model folder into sharded parameters, and saves one, tensor by tensor.

At most one tensor, or one process's part of it, is in host memory at a time.
"""

import functools
import hashlib
import json
import logging
import math
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import huggingface_hub
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
from flax import traverse_util
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Bool

from lcrag.errors import UserError
from lcrag.files import (
    MANIFEST,
    check_manifest,
    naming,
    read_json_object,
    read_optional_json,
    write_json,
    write_manifest,
)
from lcrag.policy.config import ComputeDtype, DecoderConfig, Family, RopeScaling, make_mesh, replicated
from lcrag.policy.parameters import Params, abstract_parameters, merge_lora, param_shardings

# --- Files of tensors ---

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000
SAMPLES, SAMPLE_BYTES = 16, 1 << 16

# Dtypes that weights may be stored in, by their safetensors codes.
DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}


class StoredTensor(NamedTuple):
    """A tensor in a file, as its header describes it."""

    file: pathlib.Path
    values: Any  # the library's slice, which reads on request
    shape: tuple[int, ...]
    code: str  # its safetensors dtype ("F32", "BF16", "I64", ...)


class TensorFolder:
    """The tensors of `model.safetensors`, or of the shards listed in `model.safetensors.index.json`.

    As in `transformers`, the single file takes precedence. Headers are read at once, values on request. Absent, pickled
    or truncated weights, and an index that the files contradict, are a UserError.
    """

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        single, index = self.folder / SINGLE_FILE, self.folder / INDEX_FILE
        if single.is_file():
            self.tensors = self._open(single)
            return
        if not index.is_file():
            pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in self.folder.glob(pattern))
            if pickles:
                raise UserError(
                    f"{folder} holds pickled weights only ({pickles[0]}), which are never opened: load it in"
                    f" transformers once and save_pretrained it, which writes {SINGLE_FILE}"
                )
            raise UserError(f"no weights in {folder}: expected {SINGLE_FILE} or {INDEX_FILE}")
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise UserError(f"{index} has no weight_map from tensors to files: fetch or write it again")
        self.tensors = {}
        for file in sorted(set(weight_map.values())):
            if pathlib.Path(file).name != file:
                raise UserError(f"{index} names {file}, which is not a file of its folder: fetch the model again")
            if not (self.folder / file).is_file():
                raise UserError(f"{index} names the file {file}, which does not exist: copy or fetch it too")
            held = self._open(self.folder / file)
            self.tensors |= {name: tensor for name, tensor in held.items() if weight_map.get(name, file) == file}
        for name, file in weight_map.items():
            if name not in self.tensors:
                raise UserError(f"{index} says that {file} holds the tensor {name}, but it does not: fetch both again")

    def _open(self, path: pathlib.Path) -> dict[str, StoredTensor]:
        try:
            handle = safetensors.safe_open(path, framework="numpy")
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(f"{path} cannot be read ({error}): fetch or write the file again") from error
        parts = {name: handle.get_slice(name) for name in handle.keys()}
        return {
            name: StoredTensor(path, part, tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()
        }

    def check(self, shapes: Mapping[str, tuple[int, ...]], unused: str = "(?!)") -> None:
        """Compares names, shapes and dtypes of the tensors with the `shapes` that a model needs; reads no values.

        Names that match the regular expression `unused` may be stored in addition; any other difference is a UserError.
        """
        for name, shape in shapes.items():
            if name not in self.tensors:
                raise UserError(f"tensor {name} is missing from {self.folder}: the checkpoint is incomplete")
            file, _, stored_shape, code = self.tensors[name]
            if stored_shape != tuple(shape):
                raise UserError(
                    f"tensor {name} in {file} has shape {stored_shape}, but config.json asks for {tuple(shape)}: one of"
                    " the two files is of another model"
                )
            if code not in DTYPES:
                raise UserError(
                    f"tensor {name} in {file} is stored as {code}, which is not supported: save the model unquantized,"
                    f" as {', '.join(DTYPES)}"
                )
        for name in sorted(self.tensors.keys() - shapes.keys()):
            if not re.fullmatch(unused, name):
                raise UserError(
                    f"tensor {name} in {self.tensors[name].file} is not part of the model that config.json describes:"
                    " the checkpoint is of another model, or holds parts (adapters, heads) that are not supported"
                )

    def read(self, name: str, index: tuple[slice, ...] = (slice(None),)) -> np.ndarray:
        return self.tensors[name].values[index]


def write_shard(
    path: pathlib.Path, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype, values: Iterable[np.ndarray]
) -> None:
    """Writes one safetensors file with tensors of one dtype; `values` are taken one by one, in the order of `shapes`.

    The library's own writer needs the values of the whole file at once. The format (https://huggingface.co/docs/safetensors)
    is eight bytes with the header's length, a JSON header of names, dtypes, shapes and offsets, and the values.
    """
    code = next(code for code, stored in DTYPES.items() if stored == dtype)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of eight bytes
    with naming(path), path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in values:
            file.write(np.ascontiguousarray(value, dtype).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def write_tensors(
    folder: pathlib.Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype,
    value_of: Callable[[str], np.ndarray],
    shard_bytes: int = MAX_SHARD_BYTES,
    writes: bool = True,
) -> None:
    """Writes `model.safetensors`, or shards and their index; `value_of` is called with each name in turn.

    A process that does not write calls it all the same, to take part in gathering the values.
    """
    plan = huggingface_hub.split_state_dict_into_shards_factory(
        dict(shapes),
        get_storage_size=lambda shape: math.prod(shape) * dtype.itemsize,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in plan.filename_to_tensors.items():
        values = map(value_of, names)
        if writes:
            write_shard(folder / file, {name: shapes[name] for name in names}, dtype, values)
        else:
            for _ in values:
                pass
    if writes and plan.is_sharded:
        weight_map = dict(sorted(plan.tensor_to_filename.items()))
        write_json(folder / INDEX_FILE, {"metadata": plan.metadata, "weight_map": weight_map})


def sampled_fingerprint(folder: pathlib.Path) -> str:
    """Hashes the names and sizes of a folder's weights and 64 KiB at 16 places of each file: 16 hexadecimal digits.

    Distinguishes two checkpoints without reading them completely, which may take minutes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("[!.]*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in np.linspace(0, max(0, size - SAMPLE_BYTES), SAMPLES, dtype=np.int64):
                file.seek(int(place))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


# --- Settings and names ---

EMBEDDING, UNEMBEDDING = "model.embed_tokens.weight", "lm_head.weight"
# Our path -> the tensor's name without ".weight" or ".bias"; Gemma has two norms more and moves one name.
NAMES = {
    "embedding": "model.embed_tokens",
    "unembedding": "lm_head",
    "final_norm": "model.norm",
    "layers/attention_norm": "model.layers.{}.input_layernorm",
    "layers/attention/query": "model.layers.{}.self_attn.q_proj",
    "layers/attention/key": "model.layers.{}.self_attn.k_proj",
    "layers/attention/value": "model.layers.{}.self_attn.v_proj",
    "layers/attention/output": "model.layers.{}.self_attn.o_proj",
    "layers/attention/query_norm": "model.layers.{}.self_attn.q_norm",
    "layers/attention/key_norm": "model.layers.{}.self_attn.k_norm",
    "layers/mlp_norm": "model.layers.{}.post_attention_layernorm",
    "layers/mlp/gate": "model.layers.{}.mlp.gate_proj",
    "layers/mlp/up": "model.layers.{}.mlp.up_proj",
    "layers/mlp/down": "model.layers.{}.mlp.down_proj",
}
GEMMA_NAMES = NAMES | {
    "layers/attention_post_norm": "model.layers.{}.post_attention_layernorm",
    "layers/mlp_norm": "model.layers.{}.pre_feedforward_layernorm",
    "layers/mlp_post_norm": "model.layers.{}.post_feedforward_layernorm",
}
# Buffers in old checkpoints, which follow from the configuration, and the parts of a Gemma 3 that read images.
UNUSED = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
IMAGE_PARTS = r"|(model\.)?(vision_tower|multi_modal_projector)\..*"
TIED = r"|lm_head\.weight"  # which `transformers` ignores, too, where config.json ties it to the embedding
# Other files of a model, copied from the folder that it was read from.
COMPANIONS = (
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
_LOGGER = logging.getLogger(__name__)

# config.json: settings that would change results and are not implemented are refused; absent fields have the defaults
# of `transformers`.
ARCHITECTURES: dict[Family, str] = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
MODEL_TYPES: dict[Family, str] = {"qwen2": "qwen2", "qwen3": "qwen3", "llama": "llama", "gemma3": "gemma3_text"}
# A Gemma 3 that reads images, too, has the settings of its decoder in "text_config"; only the decoder is read.
WITH_IMAGES, ITS_ARCHITECTURE = "gemma3", "Gemma3ForConditionalGeneration"
GEMMA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,  # every sixth layer is global, if "layer_types" does not say otherwise
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "tie_word_embeddings": True,
}

# The only supported value of each field; `transformers` uses it where the field is absent.
SUPPORTED: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_activation": "gelu_pytorch_tanh",  # only Gemma's
    "attn_logit_softcapping": None,  # a field of Gemma 3, which `transformers` does not apply
    "use_bidirectional_attention": False,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
# Fields of the original config.json that would contradict those written here, or that name files that are not copied.
STALE = ("torch_dtype", "rope_scaling", "layer_types", "auto_map", "_name_or_path", "transformers_version")


def read_config(folder: str | pathlib.Path) -> DecoderConfig:
    """Reads the configuration of a Hugging Face model folder; what the decoder does not support is a UserError."""
    path = pathlib.Path(folder).absolute() / "config.json"
    if not path.is_file():
        hint = "" if path.parent.is_dir() else ", and there is no such folder; models are not downloaded"
        raise UserError(f"no model in {folder}: expected the file config.json{hint}")
    raw, where = decoder_settings(read_json_object(path)), str(path)
    for name in ("architectures", "layer_types"):
        value = raw.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise UserError(f"{where} has {name} {value!r}: it must be a list of names")
    for name in ("rope_parameters", "rope_scaling"):
        if not isinstance(raw.get(name) or {}, dict):
            raise UserError(f"{where} has {name} {raw[name]!r}: it must be an object")
    model_type = raw.get("model_type")
    family = next((family for family, name in MODEL_TYPES.items() if name == model_type), None)
    if family is None:
        raise UserError(f"{where} has model_type {model_type!r}; supported are {', '.join(MODEL_TYPES.values())}")
    if family == "gemma3":
        raw = GEMMA_DEFAULTS | {name: value for name, value in raw.items() if value is not None}

    def number(name: str, default: float | None = None, fields: dict[str, Any] = raw) -> float:
        value = default if fields.get(name) is None else fields[name]
        if value is None:
            raise UserError(f"{where} lacks the field {name!r}: it is not a complete configuration")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{where} has {name} {value!r}: it must be a number")
        return value

    def integer(name: str, default: int | None = None) -> int:
        value = number(name, default)
        if value != int(value) or value < 1:
            raise UserError(f"{where} has {name} {value!r}: it must be a positive whole number")
        return int(value)

    if raw.get("architectures") and ARCHITECTURES[family] not in raw["architectures"]:
        raise UserError(f"{where} has architectures {raw['architectures']}; supported is {ARCHITECTURES[family]} only")
    for name, value in SUPPORTED.items():
        # not fields of these architectures: the first always has biases, the second calls it hidden_activation
        if (name, family) in (("attention_bias", "qwen2"), ("hidden_act", "gemma3")):
            continue
        if raw.get(name) is not None and raw[name] != value:
            raise UserError(f"{where} sets {name} to {raw[name]!r}, which is not supported: only {value!r} is")
    known = ("full_attention", "sliding_attention")[: 1 + (family == "gemma3")]
    if others := set(raw.get("layer_types") or ()) - set(known):
        names = " and ".join(known)
        raise UserError(f"{where} lists {min(others)!r} in layer_types, which is not supported: only {names} is")
    sliding: dict[str, Any] = {}
    # `transformers` prefers the old name of the rotary parameters
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if family == "gemma3":
        every = integer("sliding_window_pattern")
        usual = [
            "full_attention" if number % every == 0 else known[1]
            for number in range(1, integer("num_hidden_layers") + 1)
        ]
        kinds = raw.get("layer_types") or usual
        by_kind = raw.get("rope_parameters") or {}
        if by_kind.keys() - set(known) or not all(isinstance(settings, dict) for settings in by_kind.values()):
            raise UserError(f"{where} has rotary parameters {by_kind}: expected one set for each of {', '.join(known)}")
        rope = (by_kind.get(known[0]) or {}) | (raw.get("rope_scaling") or {})
        local = by_kind.get(known[1]) or {}
        if local.get("rope_type", "default") != "default":
            raise UserError(f"{where} scales the rotation of sliding windows, which is not supported")
        sliding = {
            "sliding_window": integer("sliding_window") if known[1] in kinds else None,
            "global_layers": tuple(number for number, kind in enumerate(kinds) if kind == known[0]),
            "local_rope_theta": float(number("rope_theta", raw["rope_local_base_freq"], local)),
            "query_pre_attn_scalar": number("query_pre_attn_scalar"),
            "logit_softcap": raw.get("final_logit_softcapping") and number("final_logit_softcapping"),
        }
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise UserError(f"{where} has rotary parameters per layer type, which are not supported: only one set is")
    kind, scaling = rope.get("rope_type", rope.get("type", "default")), None
    if kind not in ("default", "linear", "llama3"):
        raise UserError(f"{where} asks for rope type {kind!r}; supported are default, linear and llama3")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{where} rotates a part of each head (partial_rotary_factor), which is not supported")
    if kind == "linear":
        scaling = RopeScaling(factor=float(number("factor", fields=rope)))
    if kind == "llama3":
        positions = "original_max_position_embeddings"
        scaling = RopeScaling(
            factor=float(number("factor", fields=rope)),
            low_frequency_factor=float(number("low_freq_factor", fields=rope)),
            high_frequency_factor=float(number("high_freq_factor", fields=rope)),
            original_positions=integer(positions, rope.get(positions) or raw.get("max_position_embeddings")),
        )
    heads, width = integer("num_attention_heads"), integer("hidden_size")
    return DecoderConfig(
        family=family,
        vocabulary_size=integer("vocab_size"),
        width=width,
        layers=integer("num_hidden_layers"),
        heads=heads,
        kv_heads=integer("num_key_value_heads", heads if family == "llama" else None),
        head_width=integer("head_dim", 128 if family == "qwen3" else width // heads),
        mlp_width=integer("intermediate_size"),
        max_positions=integer("max_position_embeddings"),
        rope_theta=float(number("rope_theta", 10_000.0, rope if rope.get("rope_theta") else raw)),
        rope_scaling=scaling,
        norm_epsilon=number("rms_norm_eps", 1e-6),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        source=str(path.parent),
        **sliding,
    )


def decoder_settings(raw: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a `config.json` that describe the decoder, as a model without images has them."""
    if raw.get("model_type") != WITH_IMAGES or not isinstance(raw.get("text_config"), dict):
        return raw
    shared = ("tie_word_embeddings", "quantization_config", "bos_token_id", "eos_token_id", "pad_token_id")
    architectures = raw.get("architectures")
    return (
        raw["text_config"]
        | {name: raw[name] for name in shared if raw.get(name) is not None}
        | {"model_type": MODEL_TYPES["gemma3"]}
        | {"architectures": [ARCHITECTURES["gemma3"]] if architectures == [ITS_ARCHITECTURE] else architectures}
    )


def decoder_tensors(folder: str | pathlib.Path) -> TensorFolder:
    """Opens the tensors of a model; those of a decoder that has other parts at its side get its plain names."""
    opened = TensorFolder(folder)
    plain = re.compile(r"^(model\.language_model|language_model\.model)\.|^language_model\.(?=lm_head)")
    opened.tensors = {
        plain.sub(lambda m: "model." if m[1] else "", name): tensor for name, tensor in opened.tensors.items()
    }
    return opened


def config_to_hugging_face(config: DecoderConfig, dtype: str, original: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the `config.json` that `transformers` reads as the same model, with tensors stored in `dtype`.

    Other fields of the `original` configuration, such as token ids, are kept.
    """
    rope: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_type": "default"}
    if (scaling := config.rope_scaling) and scaling.original_positions is None:
        rope |= {"rope_type": "linear", "factor": scaling.factor}
    elif scaling:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    fields: dict[str, Any] = {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": MODEL_TYPES[config.family],
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.mlp_width,
        "max_position_embeddings": config.max_positions,
        "rope_parameters": rope,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_epsilon,
        "tie_word_embeddings": config.tie_embeddings,
        "dtype": dtype,
    }
    if config.gemma:
        scalar = config.query_pre_attn_scalar or config.head_width
        local = map(config.is_local, range(config.layers))
        fields |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": ["sliding_attention" if is_local else "full_attention" for is_local in local],
            "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
            "final_logit_softcapping": config.logit_softcap,
            "rope_local_base_freq": config.local_rope_theta,
            "rope_parameters": {
                "full_attention": rope,
                "sliding_attention": {"rope_theta": config.local_rope_theta, "rope_type": "default"},
            },
        } | ({} if config.sliding_window is None else {"sliding_window": config.sliding_window})
    else:
        fields["hidden_act"] = "silu"
    if config.family != "qwen2":
        fields["attention_bias"] = False
    if config.rope_scaling:  # for readers older than rope_parameters
        fields["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {name: value for name, value in (original or {}).items() if name not in STALE} | fields


class StoredParameter(NamedTuple):
    """The place of a checkpoint's tensor among the parameters; kernels are stored transposed."""

    path: str  # such as "layers/mlp/up/kernel"
    layer: int | None  # None: the parameter is not stacked over layers
    shape: tuple[int, ...]  # of the tensor
    transposed: bool


def stored_parameters(config: DecoderConfig) -> dict[str, StoredParameter]:
    """Maps the names of a checkpoint's tensors to parameters; the layers of a parameter are consecutive."""
    stored = {}
    for path, leaf in flat_parameters(abstract_parameters(config)).items():
        stacked, transposed = path.startswith("layers/"), path.endswith("/kernel")
        module = path.removesuffix("/kernel").removesuffix("/scale").removesuffix("/bias")
        name = f"{(GEMMA_NAMES if config.gemma else NAMES)[module]}.{'bias' if path.endswith('/bias') else 'weight'}"
        shape = leaf.shape[1:] if stacked else leaf.shape
        for layer in range(leaf.shape[0]) if stacked else (None,):
            tensor = shape[::-1] if transposed else shape
            stored[name.format(layer)] = StoredParameter(path, layer, tensor, transposed)
    return stored


def flat_parameters(params: Params) -> dict[str, Any]:
    """Flattens nested parameters to paths such as "layers/mlp/up/kernel"."""
    return traverse_util.flatten_dict(params, sep="/")


def load_hugging_face(
    folder: str | pathlib.Path, dtype: DTypeLike = "float32", mesh: Mesh | None = None
) -> tuple[DecoderConfig, Params]:
    """Reads a model folder into sharded parameters.

    Names, shapes and dtypes of all tensors are compared with `config.json` before any value is read. Then each process
    reads the parts that its devices hold; the devices cast and transpose them, and check that all values are finite.

    Args:
      folder: Holds `config.json` and `model.safetensors` (or shards and their index file).
      dtype: Dtype of the parameters in memory: float32 or bfloat16.
      mesh: Devices; one device if None.

    Raises:
      UserError: A file or tensor is missing, unexpected, of another shape or dtype, or cannot be read, a tensor holds
        a value that is not finite, or a file differs from the folder's `manifest.json`, if there is one.
    """
    check_manifest(pathlib.Path(folder))
    wanted = parameter_dtype(dtype)
    config, tensors = read_config(folder), decoder_tensors(folder)
    stored = stored_parameters(config)
    needed = {name: place.shape for name, place in stored.items()}
    tensors.check(needed, UNUSED + IMAGE_PARTS * config.gemma + TIED * config.tie_embeddings)
    mesh = mesh or make_mesh(devices=jax.devices()[:1])
    shardings = flat_parameters(param_shardings(config, mesh))
    shapes = flat_parameters(abstract_parameters(config))
    flat: dict[str, Array] = {}
    for name, place in stored.items():
        path, sharding = place.path, shardings[place.path]
        tensor = _read(tensors, name, place, sharding)
        if path not in flat:
            flat[path] = jnp.zeros(shapes[path].shape, wanted, device=sharding)
        flat[path], finite = _writer(place.transposed, sharding)(flat[path], tensor, place.layer)
        # this also waits: reading must not run ahead of the devices, or the host's memory would fill
        if not jax.device_get(finite):
            raise UserError(
                f"tensor {name} in {tensors.tensors[name].file} holds NaN or infinite values: the checkpoint is"
                " damaged, fetch or write it again"
            )
    return config, traverse_util.unflatten_dict(flat, sep="/")


def _read(tensors: TensorFolder, name: str, place: StoredParameter, parameter: NamedSharding) -> Array:
    """Reads a tensor in the sharding in which each device holds its part of the parameter."""
    axes = (*parameter.spec, None, None, None)[place.layer is not None :][: len(place.shape)]
    sharding = NamedSharding(parameter.mesh, PartitionSpec(*(axes[::-1] if place.transposed else axes)))
    parts: dict[tuple, np.ndarray] = {}  # devices that hold the same part share one read

    def read(index: tuple[slice, ...]) -> np.ndarray:
        key = tuple((part.start, part.stop) for part in index)
        if key not in parts:
            parts[key] = tensors.read(name, index)
        return parts[key]

    return jax.make_array_from_callback(place.shape, sharding, read)


@functools.cache
def _writer(transposed: bool, sharding: NamedSharding):
    """Compiles the function that writes a tensor into its parameter, in place, and says whether its values are finite.

    No value leaves its device.
    """

    def write(parameter: Array, tensor: Array, layer: int | None) -> tuple[Array, Bool[Array, ""]]:
        value = (tensor.T if transposed else tensor).astype(parameter.dtype)
        whole = value if layer is None else jax.lax.dynamic_update_index_in_dim(parameter, value, layer, 0)
        return whole, jnp.isfinite(value).all()

    return jax.jit(write, donate_argnums=0, out_shardings=(sharding, replicated(sharding.mesh)))


def stored_dtype(folder: str | pathlib.Path) -> ComputeDtype:
    """Returns the dtype of the stored embedding of a complete model folder; float32 for float16, which is only read."""
    return "bfloat16" if decoder_tensors(folder).tensors[EMBEDDING].code == "BF16" else "float32"


def parameter_dtype(dtype: DTypeLike) -> np.dtype:
    """Converts a dtype for parameters, float32 or bfloat16."""
    for name in ("float32", "bfloat16"):
        if dtype == name or (not isinstance(dtype, str) and jnp.dtype(dtype) == name):
            return jnp.dtype(name)
    raise UserError(f"parameters cannot be {dtype!r}: choose float32 or bfloat16")


def save_hugging_face(
    folder: str | pathlib.Path,
    config: DecoderConfig,
    params: Params,
    dtype: DTypeLike | None = None,
    eos_ids: Sequence[int] = (),
    shard_bytes: int = MAX_SHARD_BYTES,
    save_tokenizer: Callable[[pathlib.Path], None] = lambda folder: None,
) -> None:
    """Writes a model folder that `transformers` opens as the same model.

    The tokenizer, the generation settings and the other fields of `config.json` are copied from `config.source`, and
    `manifest.json` has the digests of all files, which `load_hugging_face` and `load_tokenizer` compare. Files
    are staged first: a concurrent reader finds the earlier model, no weights or the new model, never a mixture. With
    several processes all must call it; the first one writes, and it returns on all of them when the folder is complete.

    Args:
      folder: Created if absent; an earlier model in it is replaced.
      params: The decoder's parameters: JAX arrays on any mesh, or NumPy arrays; adapters are merged, in float32.
      dtype: Dtype on disk, float32 or bfloat16; None: that of the embedding.
      eos_ids: Ids that end a generation; those of `config.source` if empty.
      save_tokenizer: Writes the files of another tokenizer than that of `config.source` into a folder.
    """
    wanted = None if dtype is None else parameter_dtype(dtype)
    config, params = merge_lora(config, params, wanted)
    flat, needed = flat_parameters(params), flat_parameters(abstract_parameters(config))
    for path in sorted(flat.keys() | needed.keys()):
        given, expected = (tree[path].shape if path in tree else "absent" for tree in (flat, needed))
        if given != expected:
            raise UserError(f"parameter {path} is {given}, not {expected}: it is of another configuration")
    written = parameter_dtype(flat["embedding"].dtype) if wanted is None else wanted
    stored = stored_parameters(config)
    shapes = {name: place.shape for name, place in stored.items()}
    folder, writes = pathlib.Path(folder), jax.process_index() == 0
    staging = folder / ".writing"
    if writes:
        shutil.rmtree(staging, ignore_errors=True)  # left by a killed writer
        staging.mkdir(parents=True)

    def value_of(name: str) -> np.ndarray:
        """Returns the values of a tensor; with several processes, all gather them."""
        place, leaf = stored[name], flat[stored[name].path]
        if not isinstance(leaf, jax.Array):
            value = leaf if place.layer is None else leaf[place.layer]
            return (value.T if place.transposed else value).astype(written)
        gathered = None if leaf.is_fully_addressable else replicated(leaf.sharding.mesh)
        return jax.device_get(_cutter(place.transposed, written, gathered)(leaf, place.layer))

    try:
        write_tensors(staging, shapes, written, value_of, shard_bytes, writes)
        if writes:
            # the settings, and the files of the source
            original, generation, source = dict[str, Any](), dict[str, Any](), pathlib.Path(config.source or "")
            if config.source and not source.is_dir():
                _LOGGER.warning("%s no longer exists: %s gets no tokenizer or settings from it", source, folder)
            elif config.source:
                original = decoder_settings(read_optional_json(source / "config.json"))
                generation = read_optional_json(source / "generation_config.json")
                for name in filter(lambda name: (source / name).is_file(), COMPANIONS):
                    with naming(staging / name):
                        shutil.copyfile(source / name, staging / name)
            eos = {"eos_token_id": eos_ids[0] if len(eos_ids) == 1 else list(eos_ids)} if eos_ids else {}
            write_json(staging / "config.json", config_to_hugging_face(config, written.name, original) | eos)
            if generation | eos:
                write_json(staging / "generation_config.json", generation | eos)
            save_tokenizer(staging)
            TensorFolder(staging).check(shapes)
            write_manifest(staging, sorted(staging.iterdir()))
            # The earlier model goes; of the staged files, those that readers open first come last.
            for stale in (MANIFEST, SINGLE_FILE, INDEX_FILE, "model-*-of-*.safetensors"):
                for earlier in folder.glob(stale):
                    earlier.unlink(missing_ok=True)
            for source in sorted(staging.iterdir(), key=lambda path: path.name in (SINGLE_FILE, INDEX_FILE)):
                os.replace(source, folder / source.name)
    finally:
        if writes:
            shutil.rmtree(staging, ignore_errors=True)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"saved {folder.name}")  # whose parent may differ between hosts


@functools.cache
def _cutter(transposed: bool, dtype: np.dtype, out_sharding: NamedSharding | None):
    """Compiles the function that cuts a tensor out of its parameter."""

    def cut(parameter: Array, layer: int | None) -> Array:
        value = parameter if layer is None else jax.lax.dynamic_index_in_dim(parameter, layer, keepdims=False)
        return (value.T if transposed else value).astype(dtype)

    return jax.jit(cut, out_shardings=out_sharding)

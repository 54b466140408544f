"""Conversion between `config.json` of a Hugging Face model folder and `DecoderConfig`.

Settings that would change results and are not implemented are rejected; absent fields have the defaults of
`transformers`.
"""

import pathlib
from typing import Any

from lcrag.errors import UserError
from lcrag.policy.config import DecoderConfig, Family, RopeScaling
from lcrag.policy.model_files import read_json_object

ARCHITECTURES: dict[Family, str] = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "llama": "LlamaForCausalLM",
}

# The only supported value of each field; `transformers` uses it where the field is absent.
SUPPORTED: dict[str, Any] = {
    "hidden_act": "silu",
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
    """Reads the configuration of a Hugging Face model folder.

    Raises:
      UserError: There is no `config.json`, or it needs something that the decoder does not support.
    """
    path = pathlib.Path(folder).absolute() / "config.json"
    if not path.is_file():
        hint = "" if path.parent.is_dir() else ", and there is no such folder; models are not downloaded"
        raise UserError(f"no model in {folder}: expected the file config.json{hint}")
    raw, where = read_json_object(path), str(path)

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

    model_type = raw.get("model_type")
    family = next((name for name in ARCHITECTURES if name == model_type), None)
    if family is None:
        raise UserError(f"{where} has model_type {model_type!r}; supported are {', '.join(ARCHITECTURES)}")
    if raw.get("architectures") and ARCHITECTURES[family] not in raw["architectures"]:
        raise UserError(f"{where} has architectures {raw['architectures']}; supported is {ARCHITECTURES[family]} only")
    for name, value in SUPPORTED.items():
        if name == "attention_bias" and family == "qwen2":  # not a field of this architecture, which always has biases
            continue
        if raw.get(name) is not None and raw[name] != value:
            raise UserError(f"{where} sets {name} to {raw[name]!r}, which is not supported: only {value!r} is")
    if others := set(raw.get("layer_types") or ()) - {"full_attention"}:
        raise UserError(f"{where} lists {min(others)!r} in layer_types, which is not supported: only full_attention is")

    # `transformers` prefers the old name of the rotary parameters
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        raise UserError(f"{where} has rotary parameters per layer type, which are not supported: only one set is")
    kind, scaling = rope.get("rope_type", rope.get("type", "default")), None
    if kind not in ("default", "llama3"):
        raise UserError(f"{where} asks for rope type {kind!r}; supported are default and llama3")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UserError(f"{where} rotates a part of each head (partial_rotary_factor), which is not supported")
    if kind == "llama3":
        positions = "original_max_position_embeddings"
        scaling = RopeScaling(
            factor=float(number("factor", fields=rope)),
            low_frequency_factor=float(number("low_freq_factor", fields=rope)),
            high_frequency_factor=float(number("high_freq_factor", fields=rope)),
            original_positions=raw.get(positions) or rope.get(positions) or integer("max_position_embeddings"),
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
    )


def config_to_hugging_face(config: DecoderConfig, dtype: str, original: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the `config.json` that `transformers` reads as the same model, with tensors stored in `dtype`.

    Other fields of the `original` configuration, such as token ids, are kept.
    """
    rope: dict[str, Any] = {"rope_theta": config.rope_theta, "rope_type": "default"}
    if scaling := config.rope_scaling:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_positions,
        }
    fields: dict[str, Any] = {
        "architectures": [ARCHITECTURES[config.family]],
        "model_type": config.family,
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
        "hidden_act": "silu",
        "dtype": dtype,
    }
    if config.family != "qwen2":
        fields["attention_bias"] = False
    if config.rope_scaling:  # for readers older than rope_parameters
        fields["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {name: value for name, value in (original or {}).items() if name not in STALE} | fields

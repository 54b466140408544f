"""`lcrag convert`: a GGUF file, the format of llama.cpp, as a Hugging Face folder with dequantised weights.

`gguf`, the format's own package, reads the file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), and
`transformers` converts its tokenizer. Where that conversion says less than the file implies for llama.cpp, this module
adds it: scaled rotation, single digits, whole words before merges, NFC, and the token that begins a text.
"""

import json
import pathlib
import re
from typing import Any

import gguf
import numpy as np
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from lcrag.commands.command_line import Arguments
from lcrag.errors import UserError, excerpt
from lcrag.files import is_remote, replacing_folder, write_json, write_manifest
from lcrag.policy import DecoderConfig, RopeScaling, load_tokenizer
from lcrag.policy.hugging_face import (
    ARCHITECTURES,
    config_to_hugging_face,
    parameter_dtype,
    stored_parameters,
    write_tensors,
)
from lcrag.policy.tokenizer import CONTROL as CONTROL_NAME

USAGE = "lcrag convert FILE.gguf FOLDER"
# Values of tokenizer.ggml.pre, which names how a byte-level BPE splits texts, as in llama.cpp's src/llama-vocab.cpp;
# those that `transformers` knows are in its table.
SPLIT_AS_GPT_2 = ("default", "gpt-2", "mpt", "olmo", "jais")
SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
LLAMA_3 = ("llama3", "llama-v3", "llama-bpe", "falcon3")  # a word of the vocabulary is one token; texts get a beginning
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # token types
BRACKETED = re.compile(r"<[^<>\s]{2,}>|\[[A-Z_/]{2,}\]")  # added tokens such as <think>, if no merge makes them
LAYERS_OF_27B = 62  # of Gemma 3, whose largest model divides scores by another number
ROPE_FACTORS = "rope_freqs.weight"  # how often slower each frequency is; the only trace of Llama 3's scaling


class GgufModel:
    """A GGUF file: its metadata by name, and its tensors, which are read on request."""

    def __init__(self, path: pathlib.Path):
        if not path.is_file():
            raise UserError(f"there is no file {path}: name a GGUF file, as in {USAGE}")
        self.path = path
        try:
            reader = gguf.GGUFReader(path)
            self.metadata = {name: field.contents() for name, field in reader.fields.items()}
        except OSError:
            raise
        except Exception as error:  # whatever the library meets in a file that is no GGUF, or was cut off
            raise UserError(f"{path} is not a whole GGUF file ({error}): fetch it again") from error
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.family = self.get("general.architecture")
        if self.family not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise UserError(f"{path} holds a model of architecture {self.family!r}; supported are {known}")
        if self.get("general.type", "model") != "model":
            raise UserError(
                f"{path} is of type {self.get('general.type')!r}, not a model: convert the model's own file"
            )
        if (parts := self.get("split.count", 1)) > 1:
            raise UserError(f"{path} is one of {parts} parts: join them first with llama-gguf-split --merge")

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value of the metadata; without a default its absence is a mistake."""
        value = self.metadata.get(name.format(arch=self.metadata.get("general.architecture")), default)
        if value is None:
            raise UserError(f"{self.path} lacks {name.format(arch=self.family)}: it is not a complete model")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a number that was stored as float32, as it was written before."""
        return float(str(np.float32(self.get(name, default))))

    def tensor(self, name: str) -> np.ndarray:
        """Returns the values of a tensor as float32."""
        tensor = self.tensors[name]
        try:
            return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise UserError(f"{self.path} stores {name} as {kind}, which gguf cannot dequantise: use another") from None


def convert(arguments: Arguments) -> None:
    """Runs `lcrag convert FILE.gguf FOLDER`; the folder appears when it is complete."""
    if len(arguments.words) != 2 or arguments.gin_files or arguments.bindings or arguments.output_dir:
        raise UserError(f"lcrag convert takes a file and the folder to write, and nothing else: {USAGE}")
    if remote := next(filter(is_remote, arguments.words), None):
        raise UserError(f"{remote} is in object storage: lcrag convert reads and writes local files")
    source, folder = map(pathlib.Path, arguments.words)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not empty: choose another folder")
    dtype = arguments.options.get("--dtype", "float32")
    stored_dtype = parameter_dtype(dtype)
    model = GgufModel(source)
    config = read_decoder(model)
    tensors = find_tensors(model, config)
    backend, settings = convert_tokenizer(model)
    config.check_vocabulary(backend.get_vocab_size(), source)

    def values(name: str) -> np.ndarray:
        value = model.tensor(tensors[name])
        heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
        if model.family == "llama" and heads:
            # llama.cpp rotates neighbours, Hugging Face the halves of a head.
            value = value.reshape(heads, -1, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        # llama.cpp multiplies by the stored weights of norms, Gemma by one more.
        return value - 1 if config.gemma and name.endswith("norm.weight") else value

    ids = {name: model.get(f"tokenizer.ggml.{name}_token_id", -1) for name in ("bos", "eos", "eot", "eom", "padding")}
    special = {f"{to}_token_id": ids[name] for to, name in (("bos", "bos"), ("pad", "padding")) if ids[name] >= 0}
    print(f"Converting {source}: {model.family}, {config.layers} layers, {len(tensors)} tensors", flush=True)
    with replacing_folder(folder) as made:
        write_json(made / "tokenizer_config.json", settings)
        backend.save(str(made / "tokenizer.json"))
        ends = [ids[name] for name in ("eos", "eot", "eom") if ids[name] >= 0]
        write_json(made / "generation_config.json", {"eos_token_id": ends})
        try:
            tokenizer = load_tokenizer(made)  # finds the other ends, and makes them control tokens
        except UserError as error:
            raise UserError(f"{source} names no token that ends a text, or one that it lacks: {error}") from error
        tokenizer.backend.save(str(made / "tokenizer.json"))
        special["eos_token_id"] = list(tokenizer.eos_ids)
        write_json(made / "config.json", config_to_hugging_face(config, dtype) | special)
        write_json(made / "generation_config.json", special)
        shapes = {name: place.shape for name, place in stored_parameters(config).items()}
        write_tensors(made, shapes, stored_dtype, values)
        write_manifest(made, sorted(made.rglob("*")))
    print(f"{folder} is ready: policy.folder = {str(folder)!r}")


def read_decoder(model: GgufModel) -> DecoderConfig:
    """Returns the shape of a file's decoder; what the decoder does not support is a UserError."""
    heads, width = int(model.get("{arch}.attention.head_count")), int(model.get("{arch}.embedding_length"))
    head_width = int(model.get("{arch}.attention.key_length", width // heads))
    rotated = model.get("{arch}.rope.dimension_count", head_width)
    factor = model.number("{arch}.rope.scaling.factor", model.number("{arch}.rope.scale_linear", 1.0))  # its old name
    scaling = model.get("{arch}.rope.scaling.type", "none" if factor in (0, 1) else "linear")  # as llama.cpp has it
    if rotated != head_width or scaling not in ("none", "linear"):
        what = (
            f"scales by {scaling!r}"
            if rotated == head_width
            else f"rotates {rotated} of {head_width} numbers of a head"
        )
        raise UserError(f"{model.path} {what}, which is not supported: only plain, linear and Llama 3's rotation are")
    if "token_embd.weight" not in model.tensors:
        raise UserError(f"{model.path} lacks the tensor token_embd.weight: it is not a complete model")
    layers, theta = int(model.get("{arch}.block_count")), model.number("{arch}.rope.freq_base", 10_000.0)
    rope_scaling = None
    if ROPE_FACTORS in model.tensors and ((factors := model.tensor(ROPE_FACTORS)) != 1).any():
        # Llama 3's scaling, of which a file has only the factor of each frequency.
        wavelengths = 2 * np.pi * theta ** (np.arange(0, head_width, 2) / head_width)
        largest, original = round(float(factors.max()), 3), 8192  # of every Llama 3; the other settings are 1 and 4
        smooth = np.clip((original / wavelengths - 1) / (4 - 1), 0, 1)
        if factors.shape != smooth.shape or not np.allclose(1 / ((1 - smooth) / largest + smooth), factors, rtol=1e-3):
            raise UserError(f"{model.path} scales its rotation in another way than Llama 3, which is not supported")
        rope_scaling = RopeScaling(
            factor=largest, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=original
        )
    if scaling == "linear" and factor not in (0, 1):
        if rope_scaling is not None:
            raise UserError(f"{model.path} scales its rotation both linearly and as Llama 3, which is not supported")
        rope_scaling = RopeScaling(factor=factor)
    windows: dict[str, Any] = {}
    if model.family == "gemma3":  # what a file may leave out is as llama.cpp has it
        pattern = model.get("{arch}.attention.sliding_window_pattern", 6)
        is_local = pattern if isinstance(pattern, list) else [(n + 1) % pattern > 0 for n in range(layers)]
        windows = {
            "sliding_window": int(model.get("{arch}.attention.sliding_window")),
            "global_layers": tuple(n for n in range(layers) if not is_local[n]),
            "local_rope_theta": model.number("{arch}.rope.freq_base_swa", 10_000.0),
            "query_pre_attn_scalar": width // heads if layers == LAYERS_OF_27B else head_width,
        }
        if (cap := "gemma3.final_logit_softcapping") in model.metadata:
            windows["logit_softcap"] = model.number(cap)
    return DecoderConfig(
        family=model.family,
        vocabulary_size=int(model.tensors["token_embd.weight"].shape[1]),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=int(model.get("{arch}.attention.head_count_kv", heads)),
        head_width=head_width,
        mlp_width=int(model.get("{arch}.feed_forward_length")),
        max_positions=int(model.get("{arch}.context_length")),
        rope_theta=theta,
        rope_scaling=rope_scaling,
        norm_epsilon=model.number("{arch}.attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in model.tensors,
        **windows,
    )


def find_tensors(model: GgufModel, config: DecoderConfig) -> dict[str, str]:
    """Maps the tensors of a Hugging Face folder to those of a file, in which each must have its shape."""
    architecture = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == model.family)
    names = gguf.get_tensor_name_map(architecture, config.layers)
    tensors = {}
    for name, place in stored_parameters(config).items():
        stem, _, suffix = name.rpartition(".")
        tensors[name] = stored = f"{names.get_name(stem)}.{suffix}"
        if stored not in model.tensors:
            raise UserError(f"{model.path} lacks the tensor {stored}: it is not a complete model")
        shape = tuple(int(size) for size in model.tensors[stored].shape[::-1])
        if shape != place.shape:
            raise UserError(f"{model.path} has {stored} of shape {shape}, but its metadata ask for {place.shape}")
    if others := sorted(model.tensors.keys() - tensors.values() - {ROPE_FACTORS}):
        raise UserError(f"{model.path} holds {others[0]}, which is not part of a {model.family} model: not supported")
    return tensors


def convert_tokenizer(model: GgufModel) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Returns a file's tokenizer, and the content of its `tokenizer_config.json`."""
    from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

    names = mapping.GGUF_TOKENIZER_MAPPING["tokenizer"].items()
    parts = {name: model.metadata[f"tokenizer.{key}"] for key, name in names if f"tokenizer.{key}" in model.metadata}
    kind, tokens = model.get("tokenizer.ggml.model"), model.get("tokenizer.ggml.tokens")
    split = parts.get("pre_tokenizer_type", "default")
    known = {*mapping.GGUF_PRE_TOKENIZER_SPLITS, *SPLIT_AS_GPT_2, *SINGLE_DIGITS}
    if kind not in ("gpt2", "llama"):
        raise UserError(f"{model.path} has a tokenizer of kind {kind!r}; supported are gpt2 and llama")
    if kind == "gpt2" and split not in known:
        raise UserError(f"{model.path} splits texts as {split!r}; supported are {', '.join(sorted(known))}")

    # A file may store control or added tokens as ordinary ones.
    ids = {model.get(f"tokenizer.ggml.{name}_token_id", -1) for name in ("bos", "eos", "eot", "eom", "padding")}
    merged = {merge.replace(" ", "", 1) for merge in parts.get("merges") or ()}
    parts["token_type"] = types = list(parts.get("token_type") or [NORMAL] * len(tokens))
    for index, (token, stored) in enumerate(zip(tokens, types, strict=False)):
        if stored in (NORMAL, USER_DEFINED) and (index in ids or CONTROL_NAME.fullmatch(token)):
            types[index] = CONTROL
        elif stored == NORMAL and merged and token not in merged and BRACKETED.fullmatch(token):
            types[index] = USER_DEFINED
    try:
        backend, _ = mapping.convert_gguf_tokenizer(model.family, parts)
    except Exception as error:  # tokenizers raises nothing narrower, for example if a merge names no token
        raise UserError(f"{model.path} has a broken tokenizer ({excerpt(error)}): get the file again") from error
    if kind == "gpt2" and split in SINGLE_DIGITS:
        digits, bytes_of = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_of(add_prefix_space=False)])
    if kind == "gpt2" and split == "qwen2":
        backend.normalizer = normalizers.NFC()
    if kind == "llama" and model.family != "gemma3" and not parts.get("add_prefix_space", True):
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    state = json.loads(backend.to_str())
    state["model"]["ignore_merges"] = kind == "gpt2" and split in LLAMA_3
    # The classes of transformers add tokens that they expect, and none that byte-level vocabularies cannot spell.
    added = {token["id"]: token for token in state["added_tokens"] if token["id"] < len(tokens)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    spelled = {index: token for token, index in state["model"]["vocab"].items()}
    for index, (token, role) in enumerate(zip(tokens, parts["token_type"], strict=False)):
        if role == CONTROL and index not in added and CONTROL_NAME.fullmatch(token):  # such as <｜User｜>
            state["model"]["vocab"][token] = state["model"]["vocab"].pop(spelled[index])
            added[index] = {"id": index, "content": token, "special": True, **flags}
    state["added_tokens"] = [added[index] for index in sorted(added)]
    begins = kind == "llama" or split in LLAMA_3
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(model.get("{arch}.context_length")),
        "add_bos_token": bool(model.get("tokenizer.ggml.add_bos_token", begins)),
    }
    for name in ("bos", "eos", "unknown", "padding"):
        if (index := model.get(f"tokenizer.ggml.{name}_token_id", -1)) >= 0:
            settings[f"{ {'unknown': 'unk', 'padding': 'pad'}.get(name, name) }_token"] = tokens[index]
    prefix = "tokenizer.chat_template"
    templates = {
        name.removeprefix(prefix)[1:]: text for name, text in model.metadata.items() if name.startswith(prefix)
    }
    templates = {name: text for name, text in templates.items() if isinstance(text, str)}
    if set(templates) == {""}:
        settings["chat_template"] = templates[""]
    elif templates:
        settings["chat_template"] = [{"name": name or "default", "template": text} for name, text in templates.items()]
    converted = tokenizers.Tokenizer.from_str(json.dumps(state))
    if settings["add_bos_token"] and (begin := settings.get("bos_token")):
        places = (begin, converted.token_to_id(begin))
        converted.post_processor = processors.TemplateProcessing(f"{begin} $A", f"{begin} $A {begin} $B", [places])
    return converted, settings

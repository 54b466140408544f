"""Encoders of texts as unit vectors: a BERT or XLM-R body, pooling, prefixes of texts, and their folders.

BERT: Devlin et al. 2019, arXiv:1810.04805. XLM-R: Conneau et al. 2020, arXiv:1911.02116.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import math
import pathlib
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

import flax.linen as nn
import gin
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pydantic
import regex
import safetensors.numpy
import tokenizers
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int
from tokenizers import normalizers

from lcrag.errors import UserError, excerpt, first_problem, typed
from lcrag.files import (
    check_manifest,
    read_json_object,
    read_optional_json,
    readable_folder,
    replacing_folder,
    resolved_folder,
    write_manifest,
)
from lcrag.policy.hugging_face import SINGLE_FILE, TensorFolder

# --- The body: BERT and XLM-R in Flax, whose parameters have Hugging Face's names in files ---

ACTIVATIONS = {
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
}
# Layers of a small model are unrolled in the scan: faster on CPUs, at the same compile time.
_UNROLLED_LAYERS = 4
# Fields that change the computation, and the only supported value of each.
_FIXED: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "quantization_config": None,
}


DENSE_ACTIVATIONS = {
    "Identity": lambda x: x,
    "Tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "GELU": ACTIVATIONS["gelu"],
    "Sigmoid": jax.nn.sigmoid,
    "SiLU": jax.nn.silu,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseConfig:
    """A linear layer and an activation after the pooling (`Dense` of sentence-transformers)."""

    in_features: pydantic.PositiveInt
    out_features: pydantic.PositiveInt
    bias: bool = True
    activation_function: str = "Tanh"  # a name in `DENSE_ACTIVATIONS`, in files with PyTorch's module before it

    def __post_init__(self) -> None:
        if self.activation not in DENSE_ACTIVATIONS:
            known = ", ".join(DENSE_ACTIVATIONS)
            raise UserError(f"activation_function {self.activation} is not supported: there are {known}")

    @property
    def activation(self) -> str:
        return self.activation_function.rsplit(".", 1)[-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticConfig:
    """An embedding bag (`StaticEmbedding` of sentence-transformers): a text is the mean of its tokens' rows."""

    model_type: ClassVar[str] = "static embeddings"
    num_hidden_layers: ClassVar[int] = 0
    padding_id: ClassVar[int] = 0
    longest_tokens: ClassVar[int] = 8192  # a bag has no positions; this bounds the shapes that are compiled

    vocab_size: pydantic.PositiveInt
    hidden_size: pydantic.PositiveInt
    dense: tuple[DenseConfig, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes of a BERT encoder; names and defaults of optional fields are those of `transformers`."""

    model_type: ClassVar[str] = "bert"
    architecture: ClassVar[str] = "BertModel"

    vocab_size: pydantic.PositiveInt
    hidden_size: pydantic.PositiveInt
    num_hidden_layers: pydantic.PositiveInt
    num_attention_heads: pydantic.PositiveInt
    intermediate_size: pydantic.PositiveInt
    max_position_embeddings: pydantic.PositiveInt = 512
    type_vocab_size: pydantic.PositiveInt = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    dense: tuple[DenseConfig, ...] = ()  # after the pooling

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise UserError(f"hidden_act {self.hidden_act!r} is not supported: there are {', '.join(ACTIVATIONS)}")
        if self.longest_tokens < 1:
            raise UserError(f"max_position_embeddings {self.max_position_embeddings} leaves no position for a token")

    @property
    def padding_id(self) -> int:
        """Id of the padding token."""
        return 0

    @property
    def longest_tokens(self) -> int:
        """Largest number of tokens of a text."""
        return self.max_position_embeddings


@dataclasses.dataclass(frozen=True, kw_only=True)
class XlmRobertaConfig(BertConfig):
    """Sizes of an XLM-R encoder: a BERT whose position ids start after the id of padding.

    The first `pad_token_id + 1` rows of the position table belong to no token.
    """

    model_type: ClassVar[str] = "xlm-roberta"
    architecture: ClassVar[str] = "XLMRobertaModel"

    pad_token_id: pydantic.NonNegativeInt = 1

    @property
    def padding_id(self) -> int:
        return self.pad_token_id

    @property
    def longest_tokens(self) -> int:
        return self.max_position_embeddings - self.pad_token_id - 1


EncoderConfig: TypeAlias = BertConfig | StaticConfig
Config = TypeVar("Config", BertConfig, DenseConfig)
_CONFIGS: dict[str, type[BertConfig]] = {config.model_type: config for config in (BertConfig, XlmRobertaConfig)}


def read_encoder_config(path: pathlib.Path) -> BertConfig:
    """Reads a Hugging Face `config.json`; an unsupported or incomplete one is a UserError."""
    if not path.is_file():
        raise UserError(f"there is no encoder in {path.parent}: expected the file {path.name}")
    values = read_json_object(path)
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in _CONFIGS:
        raise UserError(f"{path}: an encoder of type {model_type!r} is not supported: there are {', '.join(_CONFIGS)}")
    for name, value in _FIXED.items():
        if values.get(name, value) != value:
            raise UserError(f"{path}: {name} {values[name]!r} is not supported: only {value!r} is")
    return _validated(_CONFIGS[model_type], values, path)


def _validated(kind: type[Config], values: dict[str, Any], path: pathlib.Path) -> Config:
    """Returns the configuration of a file's values, strictly: neither "3" nor true is a number of layers."""
    try:
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(values), strict=True)
    except pydantic.ValidationError as error:
        raise UserError(f"{path} is not a readable configuration: {first_problem(error)}") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


class _BertLayer(nn.Module):
    """Self-attention and feed-forward, each followed by a residual sum and a layer norm.

    Batch and time are one axis: XLA's CPU backend multiplies matrices twice as fast as stacks of matrices. Heads come
    before time, 2.4 times as fast there as `jax.nn.dot_product_attention` (forward and backward, 512 x 24 x 4 heads).
    """

    config: BertConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "rows width"], mask: Bool[Array, "batch time"]):
        config = self.config
        sides = (nn.Dense(config.hidden_size, name=name)(hidden) for name in ("query", "key", "value"))
        split = (*mask.shape, config.num_attention_heads, -1)
        query, key, value = (side.reshape(split).swapaxes(1, 2) for side in sides)
        scores = query @ key.swapaxes(2, 3) / math.sqrt(query.shape[-1])
        weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, jnp.finfo(scores.dtype).min))
        attended = (weights @ value).swapaxes(1, 2).reshape(mask.size, -1)
        update = nn.Dense(config.hidden_size, name="attention_output")(attended)
        hidden = nn.LayerNorm(config.layer_norm_eps, name="attention_norm")(hidden + update)
        update = ACTIVATIONS[config.hidden_act](nn.Dense(config.intermediate_size, name="intermediate")(hidden))
        update = nn.Dense(config.hidden_size, name="output")(update)
        return nn.LayerNorm(config.layer_norm_eps, name="output_norm")(hidden + update), None


class Bert(nn.Module):
    """Maps token ids to hidden states. No position attends to a masked one; all token types are 0."""

    config: BertConfig

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "batch time"], mask: Bool[Array, "batch time"]
    ) -> Float[Array, "batch time width"]:
        config = self.config
        # BERT counts positions from 0. XLM-R counts tokens other than padding from `pad_token_id + 1`; padding has its
        # own row.
        positions = jnp.arange(tokens.shape[1])[None]
        if isinstance(config, XlmRobertaConfig):
            real = tokens != config.pad_token_id
            positions = jnp.where(real, jnp.cumsum(real, axis=1), 0) + config.pad_token_id

        def embedding(rows: int, name: str) -> nn.Embed:
            return nn.Embed(rows, config.hidden_size, embedding_init=nn.initializers.normal(0.02), name=name)

        hidden = embedding(config.vocab_size, "word_embeddings")(tokens)
        hidden += embedding(config.max_position_embeddings, "position_embeddings")(positions)
        hidden += embedding(config.type_vocab_size, "token_type_embeddings")(jnp.zeros((1,), jnp.int32))
        hidden = nn.LayerNorm(config.layer_norm_eps, name="embeddings_norm")(hidden)
        layers = nn.scan(
            _BertLayer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=config.num_hidden_layers,
            unroll=min(config.num_hidden_layers, _UNROLLED_LAYERS),
        )
        rows, _ = layers(config, name="layers")(hidden.reshape(mask.size, -1), mask)
        return rows.reshape(hidden.shape)


def initialise(config: EncoderConfig, key: jax.Array) -> dict[str, Any]:
    """Returns random float32 parameters; layers of the body are stacked on a leading axis."""
    if isinstance(config, StaticConfig):
        params = {"word_embeddings": {"embedding": jax.random.normal(key, (config.vocab_size, config.hidden_size))}}
    else:
        params = jax.jit(Bert(config).init)(key, jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))["params"]
    for number, dense in enumerate(config.dense):
        kernel = 0.02 * jax.random.normal(key, (dense.in_features, dense.out_features))
        bias = {"bias": jnp.zeros(dense.out_features)} if dense.bias else {}
        params[f"dense_{number}"] = {"kernel": kernel} | bias
    return params


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
STATIC_TABLE = "embedding.weight"
# Tensors that an encoder does not use: the pooler, and buffers.
_UNUSED = r"pooler\..*|embeddings\.(position|token_type)_ids"


def _stored(config: EncoderConfig) -> list[dict[str, tuple[tuple[str, ...], int | None]]]:
    """Returns tensor name -> (path in our parameters, layer): of the body's folder, then of each dense layer's.

    Names are those of Hugging Face and sentence-transformers.
    """
    names: dict[str, tuple[tuple[str, ...], int | None]] = {}
    if isinstance(config, StaticConfig):
        names[STATIC_TABLE] = ("word_embeddings", "embedding"), None
    else:
        for table in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
            names[f"embeddings.{table}.weight"] = (table, "embedding"), None
        names["embeddings.LayerNorm.weight"] = ("embeddings_norm", "scale"), None
        names["embeddings.LayerNorm.bias"] = ("embeddings_norm", "bias"), None
    for layer in range(config.num_hidden_layers):
        for part, ours in _LAYER_PARTS.items():
            prefix = f"encoder.layer.{layer}.{part}"
            weight = "scale" if part.endswith("LayerNorm") else "kernel"
            names[f"{prefix}.weight"] = ("layers", ours, weight), layer
            names[f"{prefix}.bias"] = ("layers", ours, "bias"), layer
    stored = [names]
    for number, dense in enumerate(config.dense):
        parts = {"linear.weight": "kernel"} | ({"linear.bias": "bias"} if dense.bias else {})
        stored.append({name: ((f"dense_{number}", part), None) for name, part in parts.items()})
    return stored


def to_tensors(config: EncoderConfig, params: dict[str, Any]) -> list[dict[str, np.ndarray]]:
    """Returns the parameters by their stored names, for each folder; kernels are transposed to [out, in]."""
    flat = traverse_util.flatten_dict(jax.device_get(params))
    folders: list[dict[str, np.ndarray]] = []
    for names in _stored(config):
        folders.append({})
        for name, (path, layer) in names.items():
            value = flat[path] if layer is None else flat[path][layer]
            folders[-1][name] = np.ascontiguousarray(value.T if path[-1] == "kernel" else value)
    return folders


def read_tensors(config: EncoderConfig, folders: Sequence[TensorFolder]) -> dict[str, Any]:
    """Reads float32 parameters from the folders of the modules, one tensor at a time: the inverse of `to_tensors`.

    A tensor that is missing, has a wrong shape or dtype, or belongs to another model is a UserError.
    """
    abstract = traverse_util.flatten_dict(jax.eval_shape(lambda key: initialise(config, key), jax.random.key(0)))
    flat = {path: np.empty(leaf.shape, np.float32) for path, leaf in abstract.items()}
    for names, folder in zip(_stored(config), folders, strict=True):
        shapes = {}
        for name, (path, _) in names.items():
            shape = abstract[path].shape[1:] if path[0] == "layers" else abstract[path].shape
            shapes[name] = shape[::-1] if path[-1] == "kernel" else shape
        folder.check(shapes, _UNUSED)
        for name, (path, layer) in names.items():
            value = folder.read(name)
            target = flat[path] if layer is None else flat[path][layer]
            target[...] = value.T if path[-1] == "kernel" else value
    return traverse_util.unflatten_dict(flat)


# --- Texts to unit vectors ---

Devices: TypeAlias = Literal["all", "cpu"] | int
Pooling = Literal["mean", "cls"]
ROWS_AXIS = "rows"


@dataclasses.dataclass(frozen=True)
class BatchShapes:
    """The shapes to which batches are padded, of which each is compiled.

    Attributes:
      rows: Numbers of texts on one device; a text that is too long for all of them comes alone.
      shortest: Smallest number of tokens.
      per_octave: Numbers of tokens between one and twice as many: with 4, at most a quarter of a text is padding.
      tokens_per_call: A batch costs as much as this number of tokens in addition to its own.
      largest_scores: Attention scores of one head in one batch on one device.
    """

    rows: tuple[int, ...]
    shortest: int
    per_octave: int
    tokens_per_call: int
    largest_scores: int


# Rows of 256 tokens come 16 at a time: 64 take a third longer for each token, because they leave the caches.
ON_CPU = BatchShapes(rows=(1, 4, 16, 64, 256), shortest=16, per_octave=4, tokens_per_call=64, largest_scores=1 << 20)
# A shape takes a GPU's compiler five seconds, and a call a millisecond.
ON_ACCELERATORS = BatchShapes(rows=(16, 256), shortest=32, per_octave=2, tokens_per_call=2048, largest_scores=1 << 24)
# Characters of a text that are tokenized, for each token that the encoder reads; tokens have about five on average.
CHARACTERS_PER_TOKEN = 32
_UNSEEN = regex.compile(r"(?V1)[[\p{Cf}&&\p{Default_Ignorable_Code_Point}]--[\u200c\u200d]]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Settings of pooling, of the prefixes of texts, and of truncation on the right.

    `pooling` is the "mean" over the tokens (E5: Wang et al. 2022, arXiv:2212.03533) or "cls", the first token (BGE).
    """

    pooling: Pooling = "mean"
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    max_tokens: int = 256


def rows_mesh(devices: Devices = "all") -> Mesh:
    """Returns the mesh of this host's devices that encode.

    They are "all" accelerators (or processors if there are none); "cpu", the processors, which never wait for the
    sampler's devices; or the number of one local device, for example one that is not used for sampling.
    """
    local = jax.local_devices()
    if devices == "cpu":
        try:
            local = jax.local_devices(backend="cpu")
        except RuntimeError as error:
            raise UserError(
                'devices = "cpu", but JAX was started without processors: add cpu to JAX_PLATFORMS'
            ) from error
    elif isinstance(devices, int):
        if not 0 <= devices < len(local):
            raise UserError(f"devices = {devices}, but this host has devices 0 to {len(local) - 1}")
        local = [local[devices]]
    return Mesh(np.asarray(local), (ROWS_AXIS,))


def batches(
    lengths: Sequence[int], longest_tokens: int, devices: int, shapes: BatchShapes
) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """Yields batches of texts of similar length: their indices, and the shape [rows, tokens] to pad them to.

    The number of tokens is one of a few, on processors 16, 20, 24, 28, 32, 40, 48 and so on, that of rows a multiple of
    `devices`. A longer text in a batch makes all its rows longer, so each batch takes the number of rows that costs
    least for each token of its texts.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    start = 0
    while start < len(order):
        longest = max(lengths[order[start]], shapes.shortest)
        step = (1 << (longest - 1).bit_length() - 1) // shapes.per_octave
        tokens = min(-(-longest // step) * step, longest_tokens)
        best: tuple[float, list[int], int] | None = None
        for per_device in shapes.rows:
            rows = -(-per_device // devices) * devices
            if rows // devices * tokens**2 > shapes.largest_scores and rows > devices:
                break
            chunk = order[start : start + rows]
            cost = (rows * tokens + shapes.tokens_per_call) / sum(max(1, lengths[index]) for index in chunk)
            if best is None or cost <= best[0]:
                best = cost, chunk, rows
        _, chunk, rows = best or (0.0, order[start : start + devices], devices)
        yield chunk, (rows, tokens)
        start += len(chunk)


def pad_rows(
    rows: Sequence[Sequence[int]], shape: tuple[int, int]
) -> tuple[Int[np.ndarray, "batch time"], Int[np.ndarray, " batch"]]:
    """Returns right-padded tokens and lengths; additional rows have one padding token (a mean needs one)."""
    tokens, lengths = np.zeros(shape, np.int32), np.ones(shape[0], np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        lengths[index] = len(row)
    return tokens, lengths


def embed(
    config: EncoderConfig,
    pooling: str,
    params: dict[str, Any],
    tokens: Int[Array, "batch time"],
    lengths: Int[Array, " batch"],
) -> Float[Array, "batch width"]:
    """Returns unit vectors of token rows; tokens from a row's length on are padding and have no effect."""
    mask = jnp.arange(tokens.shape[1]) < lengths[:, None]
    if isinstance(config, StaticConfig):
        hidden = params["word_embeddings"]["embedding"][tokens]
    else:
        hidden = Bert(config).apply({"params": params}, tokens, mask)
    if pooling == "cls":
        pooled = hidden[:, 0]
    else:
        pooled = jnp.where(mask[..., None], hidden, 0.0).sum(axis=1) / lengths[:, None]
    for number, dense in enumerate(config.dense):
        layer = params[f"dense_{number}"]
        pooled = DENSE_ACTIVATIONS[dense.activation](pooled @ layer["kernel"] + layer.get("bias", 0.0))
    return pooled / jnp.maximum(jnp.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_embed(
    mesh: Mesh,
    config: EncoderConfig,
    pooling: str,
    params: dict[str, Any],
    tokens: Int[Array, "batch time"],
    lengths: Int[Array, " batch"],
) -> Float[Array, "batch width"]:
    """Applies `embed` with rows distributed over the mesh.

    No device waits for another, so a policy sampled on the same devices cannot block it in any launch order.
    """
    rows, share = PartitionSpec(ROWS_AXIS), functools.partial(embed, config, pooling)
    sharded = jax.shard_map(share, mesh=mesh, in_specs=(PartitionSpec(), rows, rows), out_specs=rows)
    return sharded(params, tokens, lengths)


class Encoder:
    """A dual encoder whose sides share their weights and differ in the prefix; thread-safe.

    The parameters of the body are replicated on every device that encodes. The tokenizer's post-processor adds the
    special tokens.
    """

    def __init__(
        self,
        config: EncoderConfig,
        settings: EncoderSettings,
        params: dict[str, Any],
        tokenizer: tokenizers.Tokenizer,
        devices: Devices = "all",
    ):
        special = tokenizer.num_special_tokens_to_add(False)
        if not special < settings.max_tokens <= config.longest_tokens:
            raise UserError(
                f"load_encoder.max_tokens is {settings.max_tokens}, but the encoder has {special} special tokens and"
                f" {config.longest_tokens} positions: set it to a value from {special + 1} to {config.longest_tokens}"
            )
        if tokenizer.get_vocab_size() > config.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the encoder {config.vocab_size} embeddings"
            )
        self.config, self.settings = config, settings
        self._mesh = rows_mesh(devices)
        self._shapes = ON_CPU if self._mesh.devices.flat[0].platform == "cpu" else ON_ACCELERATORS
        self.params = jax.device_put(params, NamedSharding(self._mesh, PartitionSpec()))
        # A copy: truncation is a state of the tokenizer, and the caller's must not change.
        self.tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(settings.max_tokens)
        self._lock = threading.Lock()
        self._fingerprint: str | None = None

    @property
    def dimension(self) -> int:
        return self.config.dense[-1].out_features if self.config.dense else self.config.hidden_size

    def encode(self, texts: Sequence[str], kind: str = "query") -> Float[np.ndarray, "texts width"]:
        """Returns float32 vectors of unit length, one per text and in order.

        A vector does not depend on the other texts of the call. `kind` is "query" or "passage". Vectors that are not
        finite are a UserError.
        """
        rows = self.tokenize(texts, kind)
        out = np.empty((len(rows), self.dimension), np.float32)
        lengths = [len(row) for row in rows]
        with self._lock:  # concurrent threads would only share the same cores
            done = 0
            for chunk, shape in batches(lengths, self.settings.max_tokens, self._mesh.size, self._shapes):
                if kind == "passage":
                    _ACTIVITY.info("embedding passage %s of %s", f"{done:,}", f"{len(rows):,}")
                    done += len(chunk)
                padded = pad_rows([rows[index] for index in chunk], shape)
                placed = jax.device_put(padded, NamedSharding(self._mesh, PartitionSpec(ROWS_AXIS)))
                vectors = _compiled_embed(self._mesh, self.config, self.settings.pooling, self.params, *placed)
                out[chunk] = jax.device_get(vectors)[: len(chunk)]
        if not (finite := np.isfinite(out).all(axis=1)).all():
            text = excerpt(texts[int(finite.argmin())])
            raise UserError(
                f"the encoder's vector of {text!r} is not finite: its weights are damaged; copy its folder again"
            )
        return out

    def tokenize(self, texts: Sequence[str], kind: str) -> list[list[int]]:
        """Returns token ids of the prefixed texts, truncated to `max_tokens`; at least one id each.

        Only the first `CHARACTERS_PER_TOKEN * max_tokens` characters of a text are tokenized, because texts of millions
        of characters would take seconds and hundreds of MB. Soft hyphens, marks of direction and other invisible signs
        are no part of them, so a query and a passage that look alike are alike. Joiners stay, because they shape words
        of Persian and of Indian scripts; tokenizers know them.
        """
        prefixes = {"query": self.settings.query_prefix, "passage": self.settings.passage_prefix}
        if kind not in prefixes:
            raise UserError(f"kind {kind!r} is unknown to the encoder: choose 'query' or 'passage'")
        characters = CHARACTERS_PER_TOKEN * self.settings.max_tokens
        encodings = self.tokenizer.encode_batch_fast(
            [prefixes[kind] + _UNSEEN.sub("", text[:characters]) for text in texts]
        )
        return [encoding.ids or [0] for encoding in encodings]

    def fingerprint(self) -> str:
        """Returns 16 hexadecimal digits of a hash of weights, settings and tokenizer: equal ones give equal vectors."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for part in (_fields(self.config), dataclasses.asdict(self.settings)):
                digest.update(json.dumps(part, sort_keys=True).encode())
            digest.update(self.tokenizer.to_str().encode())
            for tensors in to_tensors(self.config, self.params):
                for name, tensor in sorted(tensors.items()):
                    digest.update(name.encode())
                    digest.update(np.ascontiguousarray(tensor, np.float32).data)
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint


def _fields(config: EncoderConfig) -> dict[str, Any]:
    """Returns the fields of a configuration; dense layers only if there are any, so that older folders keep theirs."""
    return {name: value for name, value in dataclasses.asdict(config).items() if name != "dense" or value}


def initialise_encoder(
    config: EncoderConfig, settings: EncoderSettings, tokenizer: tokenizers.Tokenizer, seed: int = 0
) -> Encoder:
    return Encoder(config, settings, initialise(config, jax.random.key(seed)), tokenizer)


# --- Folders: Hugging Face checkpoints, laid out as `sentence-transformers` expects them ---

MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
BODY_FILE = "sentence_bert_config.json"
PROMPTS_FILE = "config_sentence_transformers.json"
TOKENIZER_FILE = "tokenizer_config.json"
_TOKENIZER = "tokenizer.json"
DENSE_MODULES = {"Identity": "linear"}  # where PyTorch defines an activation that is not among its activations
# Names of the prompts of queries and passages in PROMPTS_FILE, in order of precedence.
_PROMPT_NAMES = {"query": ("query",), "passage": ("passage", "document", "corpus")}
# A tokenizer without a limit has 1e30.
_NO_LIMIT_TOKENS = 1 << 24
_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_LOGGER = logging.getLogger(__name__)
_ACTIVITY = logging.getLogger("lcrag.activity")


def save_encoder(
    folder: str | pathlib.Path, encoder: Encoder, dtype: Literal["float32", "float16", "bfloat16"] = "float32"
) -> None:
    """Writes an encoder with weights of type `dtype`; `folder` is replaced atomically, or left unchanged on an error.

    An encoder read back from float16 or bfloat16 has rounded weights and thus another fingerprint.
    """
    settings, stored = encoder.settings, _DTYPES[dtype]
    # Without a class, transformers assumes BERT's WordPiece tokenizer. sentence-transformers looks up the prompt
    # "document" first, and assumes an empty prompt without it.
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": settings.max_tokens}
    prompts = {"query": settings.query_prefix} | dict.fromkeys(("passage", "document"), settings.passage_prefix)
    pooling = {
        "word_embedding_dimension": encoder.config.hidden_size,
        "pooling_mode_mean_tokens": settings.pooling == "mean",
        "pooling_mode_cls_token": settings.pooling == "cls",
    }
    config: EncoderConfig = encoder.config
    kinds = ["StaticEmbedding"] if isinstance(config, StaticConfig) else ["Transformer", "Pooling"]
    kinds += ["Dense"] * len(config.dense) + ["Normalize"]
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
    files: dict[str, Any] = {
        MODULES_FILE: [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, path) in enumerate(zip(kinds, paths, strict=True))
        ],
        BODY_FILE: {"max_seq_length": settings.max_tokens, "do_lower_case": False},
        PROMPTS_FILE: {"prompts": prompts},
        _TOKENIZER: json.loads(encoder.tokenizer.to_str()),
        TOKENIZER_FILE: tokenizer | {"pad_token": encoder.tokenizer.id_to_token(config.padding_id)},
    }
    if isinstance(config, BertConfig):
        kind = {"architectures": [config.architecture], "model_type": config.model_type, "torch_dtype": dtype}
        files |= {"config.json": kind | _fields(dataclasses.replace(config, dense=())), POOLING_FILE: pooling}
    weights = ["", *(path for path in paths if path.endswith("_Dense"))]
    for path, dense in zip(weights[1:], config.dense, strict=True):
        module = f"torch.nn.modules.{DENSE_MODULES.get(dense.activation, 'activation')}.{dense.activation}"
        files[f"{path}/config.json"] = dataclasses.asdict(dense) | {"activation_function": module}
    with replacing_folder(folder) as temporary:
        for name, value in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            (temporary / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        for path, tensors in zip(weights, to_tensors(config, encoder.params), strict=True):
            file = temporary / path / SINGLE_FILE
            rounded = {name: value.astype(stored) for name, value in tensors.items()}
            safetensors.numpy.save_file(rounded, file, metadata={"format": "pt"})
            file.chmod(0o644)  # the library restricts it to its owner
        write_manifest(temporary, sorted(temporary.rglob("*")))


def load_encoder(
    folder: str | pathlib.Path,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_tokens: int | None = None,
    devices: Devices = "all",
) -> Encoder:
    """Reads an encoder written by `save_encoder`, `sentence-transformers` or `transformers`, or "atlas/encoder".

    Settings that are not given (see `EncoderSettings`) come from the files of `sentence-transformers`; if these state
    no prompts, texts have no prefix, unless the model is called E5, whose folders leave the prefixes to the model card.
    The defaults of other folders are E5's settings. One line logs the settings: a warning if some come from neither the
    caller nor a file. For `devices`, see `rows_mesh`. A file that is missing, damaged, inconsistent with the others, or
    not supported is a UserError.
    """
    folder = readable_folder(resolved_folder(folder))
    _ACTIVITY.info("loading the encoder %s", folder)
    if not folder.is_dir():
        raise UserError(f"no encoder at {folder}: there is no such folder")
    check_manifest(folder)
    modules = _read_modules(folder)
    is_static = "StaticEmbedding" in modules
    [body] = modules.get("StaticEmbedding") or modules.get("Transformer") or [folder]
    config: EncoderConfig
    tensors = None
    if is_static:
        tensors = TensorFolder(body)
        if "embeddings" in tensors.tensors:  # as Model2Vec calls the table
            tensors.tensors[STATIC_TABLE] = tensors.tensors.pop("embeddings")
        table = tensors.tensors[STATIC_TABLE].shape if STATIC_TABLE in tensors.tensors else ()
        if len(table) != 2:
            raise UserError(f"{body} holds no table {STATIC_TABLE}, which static embeddings need: fetch it again")
        config, pooling = StaticConfig(vocab_size=table[0], hidden_size=table[1]), "mean"
    else:
        config = read_encoder_config(body / "config.json")
    dense_folders, width = modules.get("Dense", []), config.hidden_size
    for dense_folder in dense_folders:
        path = dense_folder / "config.json"
        dense = _validated(DenseConfig, read_json_object(path), path)
        if dense.in_features != width:
            raise UserError(f"{path} takes {dense.in_features} numbers, but what is before it gives {width}")
        config, width = dataclasses.replace(config, dense=(*config.dense, dense)), dense.out_features
    usual, guessed = EncoderSettings(), []

    pooling_file = modules["Pooling"][0] / "config.json" if "Pooling" in modules else None
    pooled = {} if pooling_file is None else read_json_object(pooling_file)
    if pooling is None and pooling_file is not None:
        modes = pooled.get("pooling_mode")
        if modes is None:  # older versions have a flag for each mode; the library's default is the mean
            flags = [name for name, value in pooled.items() if name.startswith("pooling_mode_") and value]
            modes = [re.sub(r"^pooling_mode_|_tokens?$", "", flag) for flag in flags] or ["mean"]
        modes = [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
        if len(modes) != 1 or modes[0] not in ("mean", "cls"):
            raise UserError(
                f"{pooling_file} asks for {' + '.join(modes)} pooling, which is not supported: choose 'mean' or 'cls'"
            )
        pooling = "cls" if modes == ["cls"] else "mean"
    elif pooling is None:
        pooling = usual.pooling
        guessed.append("pooling")
    prompts = read_optional_json(folder / PROMPTS_FILE).get("prompts") or {}
    if not isinstance(prompts, dict):
        raise UserError(f"{folder / PROMPTS_FILE}: prompts is {prompts!r}, not a table from names to texts")
    if prompts == {"query": "", "document": ""}:  # the library writes this for a model without prompts
        prompts = {}
    # The model's name: its folder's, that of its snapshots in the hub's cache, or the one that transformers wrote.
    place = folder.absolute()
    hub = place.parent.parent.name if place.parent.name == "snapshots" else ""
    names = (place.name, hub, read_optional_json(body / "config.json").get("_name_or_path"))
    # Models that take instructions have other prefixes.
    is_e5 = any(re.search(r"(?<![a-z0-9])e5(?![a-z0-9])(?!.*instruct)", str(name).lower()) for name in names)
    if (folder / MODULES_FILE).is_file() and not is_e5:
        usual = EncoderSettings(query_prefix="", passage_prefix="")
    prefixes = {"query": query_prefix, "passage": passage_prefix}
    for kind, default in (("query", usual.query_prefix), ("passage", usual.passage_prefix)):
        stated = [prompts[name] for name in _PROMPT_NAMES[kind] if isinstance(prompts.get(name), str)]
        if prefixes[kind] is None and prompts:
            prefixes[kind] = stated[0] if stated else ""
        elif prefixes[kind] is None:
            prefixes[kind] = default
            guessed.append(f"{kind}_prefix")
    if is_e5:  # the default is what its model card says
        guessed = []
    if pooled.get("include_prompt") is False and any(prefixes.values()):
        raise UserError(
            f"{pooling_file} leaves the prefix out of the pooling (include_prompt), which is not supported: give empty"
            " prefixes, or choose another encoder"
        )

    body_settings = body / "sentence_xlm-roberta_config.json"  # its name in older versions of the library
    body_settings = body_settings if body_settings.is_file() else body / BODY_FILE
    if max_tokens is None:
        max_tokens = config.longest_tokens
        for path, name in ((body_settings, "max_seq_length"), (body / TOKENIZER_FILE, "model_max_length")):
            value = read_optional_json(path).get(name)
            if isinstance(value, int | float) and 0 < value < _NO_LIMIT_TOKENS:
                max_tokens = min(int(value), max_tokens)
                break

    if not (body / _TOKENIZER).is_file():
        raise UserError(
            f"no {body / _TOKENIZER}: an encoder needs a Hugging Face fast tokenizer, which transformers'"
            " AutoTokenizer.from_pretrained(...).save_pretrained(...) writes"
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(body / _TOKENIZER))
    except Exception as error:  # the library raises bare Exception for a malformed file
        raise UserError(f"{body / _TOKENIZER} is not a readable tokenizer: {error}") from error
    if read_optional_json(body_settings).get("do_lower_case") is True:
        present = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *present])
    if is_static:  # no token is added at either end
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()) | {"post_processor": None}))
    settings = EncoderSettings(
        pooling=pooling,
        query_prefix=prefixes["query"] or "",
        passage_prefix=prefixes["passage"] or "",
        max_tokens=max_tokens,
    )
    params = read_tensors(config, [tensors or TensorFolder(body), *map(TensorFolder, dense_folders)])
    encoder = Encoder(config, settings, params, tokenizer, devices)
    level, note = logging.INFO, ""
    if guessed:
        level, note = logging.WARNING, f"; no file names {', '.join(guessed)}: set load_encoder's if they are wrong"
    _LOGGER.log(
        level, "encoder %s: %s of %d layers; %s%s", folder, config.model_type, config.num_hidden_layers, settings, note
    )
    return encoder


def _read_modules(folder: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """Returns the folders of an encoder's modules by their kind, in order.

    Without `modules.json` the body is the folder, and the pooling where `sentence-transformers` has it.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        pooling = {"Pooling": [(folder / POOLING_FILE).parent]} if (folder / POOLING_FILE).is_file() else {}
        return {"Transformer": [folder], **pooling}
    try:
        modules = [(module["type"].rsplit(".", 1)[-1], module["path"]) for module in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a readable list of modules: {error}") from error
    kinds = [kind for kind, _ in modules]
    if not re.fullmatch("((Transformer )?(Pooling )?|StaticEmbedding )(Dense )*(Normalize )?", " ".join([*kinds, ""])):
        raise UserError(
            f"{path} lists {', '.join(kinds)} in this order, which is not supported: choose another encoder"
        )
    folders: dict[str, list[pathlib.Path]] = {}
    for kind, place in modules:
        if pathlib.Path(place).is_absolute() or ".." in pathlib.Path(place).parts:
            raise UserError(f"{path} names {place}, which is outside of it: fetch the encoder again")
        folders.setdefault(kind, []).append(folder / place)
    return folders


# With gin's bindings; `load_encoder` itself also reads encoders whose settings must be those that were stored.
configured_encoder = gin.external_configurable(typed(load_encoder), "load_encoder", module="lcrag.retrieval")


def encoder_folder(folder: str | None, binding: str) -> pathlib.Path:
    """Returns the folder of an encoder, which is the value of `binding`; nothing is downloaded or read."""
    if folder is None:
        raise UserError(
            f"{binding} names no encoder: give the folder of one that you have with --gin.ENCODER='\"e5-base-v2\"'"
            ' ("atlas/encoder" knows the built-in world only)'
        )
    path = resolved_folder(folder)
    if not path.is_dir():
        raise UserError(
            f"{binding} names the encoder {folder}, but there is no such folder: download it, and name its folder with"
            " --gin.ENCODER"
        )
    if not any((path / name).is_file() for name in ("config.json", MODULES_FILE)):
        raise UserError(f"{binding} names {folder}, which holds no encoder: neither config.json nor {MODULES_FILE}")
    return path


def named_encoder(folder: str | None, binding: str) -> Encoder:
    """Returns the configured encoder in a folder, which is the value of `binding`."""
    return configured_encoder(encoder_folder(folder, binding))

"""Encodes texts as unit vectors: a BERT or XLM-R body, pooling, and a prefix for queries and passages."""

import dataclasses
import functools
import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from lcrag.errors import UserError
from lcrag.retrieval.bert import Bert, BertConfig, initialise, to_tensors

Devices: TypeAlias = Literal["all", "cpu"] | int
Pooling = Literal["mean", "cls"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
ROWS_AXIS = "rows"
# Batches are padded to one of these row counts and one of the token counts, so the number of compiled shapes is finite.
ROW_BUCKETS = (4, 16, 64, 256)
SHORTEST_BUCKET_TOKENS = 16
# Attention scores of one head in one batch on one device: 256 rows of 256 tokens, 64 of 512, one of 4,096 and more.
LARGEST_SCORES = 1 << 24
# Characters of a text that are tokenized, for each token that the encoder reads; tokens have about five on average.
CHARACTERS_PER_TOKEN = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """Settings of pooling, of the prefixes of texts, and of truncation on the right.

    `pooling` is the "mean" over the tokens (E5: Wang et al. 2022, arXiv:2212.03533) or "cls", the first token (BGE).
    """

    pooling: Pooling = "mean"
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise UserError(f"pooling {self.pooling!r} is not supported: choose 'mean' or 'cls'")
        if self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}: an encoder must read at least one token")


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


def batches(lengths: Sequence[int], longest_tokens: int, devices: int) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """Yields batches of texts of similar length: their indices, and the shape [rows, tokens] to pad them to.

    The number of tokens is a power of two from 16, or the largest possible length; that of rows is a multiple of
    `devices`.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    start = 0
    while start < len(order):
        # A longer text in the batch makes all rows longer, so fewer fit: try the largest number of rows first.
        for max_rows in (*reversed(ROW_BUCKETS), devices):
            chunk = order[start : start + max_rows]
            tokens = SHORTEST_BUCKET_TOKENS
            while tokens < lengths[chunk[-1]]:
                tokens *= 2
            tokens = min(tokens, longest_tokens)
            per_device = max(1, LARGEST_SCORES // tokens**2)
            rounded = sorted({-(-rows // devices) * devices for rows in ROW_BUCKETS})
            buckets = [rows for rows in rounded if rows <= per_device * devices] or [per_device * devices]
            if len(chunk) <= buckets[-1]:
                break
        yield chunk, (next(rows for rows in buckets if rows >= len(chunk)), tokens)
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
    config: BertConfig,
    pooling: str,
    params: dict[str, Any],
    tokens: Int[Array, "batch time"],
    lengths: Int[Array, " batch"],
) -> Float[Array, "batch width"]:
    """Returns unit vectors of token rows; tokens from a row's length on are padding and have no effect."""
    mask = jnp.arange(tokens.shape[1]) < lengths[:, None]
    hidden = Bert(config).apply({"params": params}, tokens, mask)
    if pooling == "cls":
        pooled = hidden[:, 0]
    else:
        pooled = jnp.where(mask[..., None], hidden, 0.0).sum(axis=1) / lengths[:, None]
    return pooled / jnp.maximum(jnp.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _compiled_embed(
    mesh: Mesh,
    config: BertConfig,
    pooling: str,
    params: dict[str, Any],
    tokens: Int[Array, "batch time"],
    lengths: Int[Array, " batch"],
) -> Float[Array, "batch width"]:
    """Applies `embed` with rows distributed over the mesh.

    No device waits for another, so a policy sampled on the same devices cannot block it in any launch order.
    """
    rows = PartitionSpec(ROWS_AXIS)
    share = functools.partial(embed, config, pooling)
    return jax.shard_map(share, mesh=mesh, in_specs=(PartitionSpec(), rows, rows), out_specs=rows)(
        params, tokens, lengths
    )


class Encoder:
    """A dual encoder whose sides share their weights and differ in the prefix; thread-safe.

    The parameters of the body are replicated on every device that encodes. The tokenizer's post-processor adds the
    special tokens.
    """

    def __init__(
        self,
        config: BertConfig,
        settings: EncoderSettings,
        params: dict[str, Any],
        tokenizer: tokenizers.Tokenizer,
        devices: Devices = "all",
    ):
        if settings.max_tokens > config.longest_tokens:
            raise UserError(
                f"max_tokens {settings.max_tokens} exceeds the encoder's {config.longest_tokens} positions: set"
                f" load_encoder.max_tokens = {config.longest_tokens}, or less"
            )
        special = tokenizer.num_special_tokens_to_add(False)
        if settings.max_tokens <= special:
            raise UserError(
                f"max_tokens {settings.max_tokens} leaves no room for text after the {special} special tokens"
            )
        if tokenizer.get_vocab_size() > config.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the encoder {config.vocab_size} embeddings"
            )
        self.config, self.settings = config, settings
        self._mesh = rows_mesh(devices)
        self.params = jax.device_put(params, NamedSharding(self._mesh, PartitionSpec()))
        # A copy: truncation is a state of the tokenizer, and the caller's must not change.
        self.tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(settings.max_tokens)
        self._lock = threading.Lock()
        self._fingerprint: str | None = None

    @property
    def dimension(self) -> int:
        return self.config.hidden_size

    def encode(self, texts: Sequence[str], kind: str = "query") -> Float[np.ndarray, "texts width"]:
        """Returns float32 vectors of unit length, one per text and in order.

        A vector does not depend on the other texts of the call. `kind` is "query" or "passage".
        """
        rows = self.tokenize(texts, kind)
        out = np.empty((len(rows), self.dimension), np.float32)
        lengths = [len(row) for row in rows]
        with self._lock:  # concurrent threads would only share the same cores
            for chunk, shape in batches(lengths, self.settings.max_tokens, self._mesh.size):
                padded = pad_rows([rows[index] for index in chunk], shape)
                placed = jax.device_put(padded, NamedSharding(self._mesh, PartitionSpec(ROWS_AXIS)))
                vectors = _compiled_embed(self._mesh, self.config, self.settings.pooling, self.params, *placed)
                out[chunk] = jax.device_get(vectors)[: len(chunk)]
        return out

    def tokenize(self, texts: Sequence[str], kind: str) -> list[list[int]]:
        """Returns token ids of the prefixed texts, truncated to `max_tokens`; at least one id each.

        Only the first `CHARACTERS_PER_TOKEN * max_tokens` characters of a text are tokenized, because texts of millions
        of characters would take seconds and hundreds of MB.
        """
        prefixes = {"query": self.settings.query_prefix, "passage": self.settings.passage_prefix}
        if kind not in prefixes:
            raise UserError(f"kind {kind!r} is unknown to the encoder: choose 'query' or 'passage'")
        characters = CHARACTERS_PER_TOKEN * self.settings.max_tokens
        encodings = self.tokenizer.encode_batch_fast([prefixes[kind] + text[:characters] for text in texts])
        return [encoding.ids or [0] for encoding in encodings]

    def fingerprint(self) -> str:
        """Returns 16 hexadecimal digits of a hash of weights, settings and tokenizer: equal ones give equal vectors."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for part in (dataclasses.asdict(self.config), dataclasses.asdict(self.settings)):
                digest.update(json.dumps(part, sort_keys=True).encode())
            digest.update(self.tokenizer.to_str().encode())
            for name, tensor in sorted(to_tensors(self.config, self.params).items()):
                digest.update(name.encode() + tensor.astype(np.float32).tobytes())
            self._fingerprint = digest.hexdigest()[:16]
        return self._fingerprint


def initialise_encoder(
    config: BertConfig, settings: EncoderSettings, tokenizer: tokenizers.Tokenizer, seed: int = 0
) -> Encoder:
    """Returns an untrained encoder."""
    return Encoder(config, settings, initialise(config, jax.random.key(seed)), tokenizer)

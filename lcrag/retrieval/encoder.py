"""Texts to unit vectors: a BERT body, pooling, and a prefix that says what a text is."""

import dataclasses
import hashlib
import json
import threading
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from jaxtyping import Array, Float, Int

from lcrag.errors import UserError
from lcrag.retrieval.bert import Bert, BertConfig, initialise, to_tensors

# Batches are padded to one of these row counts and one of the token counts: finitely many programs are compiled.
ROW_BUCKETS = (4, 16, 64, 256)
SHORTEST_BUCKET_TOKENS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """How texts become vectors.

    Attributes:
      pooling: "mean" over the tokens (E5: Wang et al. 2022, arXiv:2212.03533) or "cls", the first token (BGE).
      query_prefix: Put in front of a query before tokenization.
      passage_prefix: Put in front of a passage.
      max_tokens: Longer texts are cut on the right.
    """

    pooling: Literal["mean", "cls"] = "mean"
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if self.pooling not in ("mean", "cls"):
            raise UserError(f"pooling {self.pooling!r} is not supported: choose 'mean' or 'cls'")
        if self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}: an encoder must read at least one token")


def embed(
    config: BertConfig,
    pooling: str,
    params: dict[str, Any],
    tokens: Int[Array, "batch time"],
    lengths: Int[Array, " batch"],
) -> Float[Array, "batch width"]:
    """Unit vectors of token rows; what stands at or after a row's length is padding and has no effect."""
    mask = jnp.arange(tokens.shape[1]) < lengths[:, None]
    hidden = Bert(config).apply({"params": params}, tokens, mask)
    if pooling == "cls":
        pooled = hidden[:, 0]
    else:
        pooled = jnp.where(mask[..., None], hidden, 0.0).sum(axis=1) / lengths[:, None]
    return pooled / jnp.maximum(jnp.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)


_compiled_embed = jax.jit(embed, static_argnums=(0, 1))


class Encoder:
    """A dual encoder whose two sides share their weights and differ in the prefix. Threads may share one.

    Attributes:
      config: Sizes of the body.
      settings: Pooling, prefixes, longest text.
      params: Parameters of the body (a pytree of arrays).
      tokenizer: A `tokenizers.Tokenizer`; special tokens are those of its own post-processor.
    """

    def __init__(
        self, config: BertConfig, settings: EncoderSettings, params: dict[str, Any], tokenizer: tokenizers.Tokenizer
    ):
        if settings.max_tokens > config.max_position_embeddings:
            raise UserError(
                f"max_tokens {settings.max_tokens} exceeds the encoder's {config.max_position_embeddings} positions"
            )
        if tokenizer.get_vocab_size() > config.vocab_size:
            raise UserError(
                f"the tokenizer has {tokenizer.get_vocab_size()} tokens, the encoder {config.vocab_size} embeddings"
            )
        self.config, self.settings = config, settings
        self.params = jax.device_put(params)
        # A copy, because truncation is a state of the tokenizer and the caller's must not change.
        self.tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(settings.max_tokens)
        self._lock = threading.Lock()
        self._fingerprint: str | None = None

    @property
    def dimension(self) -> int:
        return self.config.hidden_size

    def encode(self, texts: Sequence[str], kind: str = "query") -> Float[np.ndarray, "texts width"]:
        """Float32 vectors of unit length, one a text, in the order given.

        A text's vector does not depend on what else is in the call.

        Raises:
          UserError: `kind` is neither "query" nor "passage".
        """
        rows = self.tokenize(texts, kind)
        out = np.empty((len(rows), self.dimension), np.float32)
        # Texts of like length share a batch, so that little padding is computed.
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        with self._lock:  # one thread at a time compiles and computes; the others would only share its cores
            for start in range(0, len(order), ROW_BUCKETS[-1]):
                chunk = order[start : start + ROW_BUCKETS[-1]]
                out[chunk] = self._embed_rows([rows[index] for index in chunk])
        return out

    def tokenize(self, texts: Sequence[str], kind: str) -> list[list[int]]:
        """Token ids of the prefixed texts, cut to `max_tokens`; at least one id each."""
        prefixes = {"query": self.settings.query_prefix, "passage": self.settings.passage_prefix}
        if kind not in prefixes:
            raise UserError(f"kind {kind!r} is unknown to the encoder: say 'query' or 'passage'")
        encodings = self.tokenizer.encode_batch_fast([prefixes[kind] + text for text in texts])
        return [encoding.ids or [0] for encoding in encodings]

    def _embed_rows(self, rows: list[list[int]]) -> np.ndarray:
        shape = (_row_bucket(len(rows)), self._token_bucket(max(map(len, rows))))
        tokens, lengths = pad_rows(rows, shape)
        vectors = _compiled_embed(self.config, self.settings.pooling, self.params, *jax.device_put((tokens, lengths)))
        return jax.device_get(vectors)[: len(rows)]

    def _token_bucket(self, tokens: int) -> int:
        bucket = SHORTEST_BUCKET_TOKENS
        while bucket < tokens:
            bucket *= 2
        return min(bucket, self.settings.max_tokens)

    def fingerprint(self) -> str:
        """16 hexadecimal digits that name the weights, the settings and the tokenizer: two encoders with the same
        fingerprint give the same vectors."""
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
    """An untrained encoder."""
    return Encoder(config, settings, initialise(config, jax.random.key(seed)), tokenizer)


def pad_rows(
    rows: Sequence[Sequence[int]], shape: tuple[int, int]
) -> tuple[Int[np.ndarray, "batch time"], Int[np.ndarray, " batch"]]:
    """Right-padded tokens and lengths; rows beyond the given ones have one padding token (a mean needs one)."""
    tokens, lengths = np.zeros(shape, np.int32), np.ones(shape[0], np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        lengths[index] = len(row)
    return tokens, lengths


def _row_bucket(rows: int) -> int:
    return next(bucket for bucket in ROW_BUCKETS if bucket >= rows)

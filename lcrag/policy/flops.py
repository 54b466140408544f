"""What the decoder's work costs, by formula: floating-point operations and bytes of memory traffic.

A multiplication and an addition are two operations. Norms, rotations, softmaxes and the embedding's lookup are left
out (below one per cent at any real width), as in Chowdhery et al. (2022, PaLM, appendix B). Compilers count the body
of a scan over layers once, so their figures cannot be used.
"""

import jax.numpy as jnp

from lcrag.policy.config import DecoderConfig
from lcrag.policy.functions import parameter_count
from lcrag.policy.lora import LINEAR_LAYERS


def linear_parameters(config: DecoderConfig) -> int:
    """Parameters of the matrices that every token is multiplied with, the unembedding aside."""
    attention = 2 * config.width * (config.heads + config.kv_heads) * config.head_width
    return config.layers * (attention + 3 * config.width * config.mlp_width)


def adapter_parameters(config: DecoderConfig) -> int:
    """Parameters of the adapters, 0 where there are none."""
    if config.lora is None:
        return 0
    queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width
    inner = {"query": queries, "key": keys, "value": keys, "output": queries}
    sizes = {target: config.width + inner.get(target.split("/")[1], config.mlp_width) for target in LINEAR_LAYERS}
    return config.layers * config.lora.rank * sum(sizes[target] for target in config.lora.targets)


def adapter_flops(config: DecoderConfig, tokens: float) -> float:
    """Operations of the adapters' products for `tokens` tokens, forward."""
    return 2.0 * adapter_parameters(config) * tokens


def linear_flops(config: DecoderConfig, tokens: float) -> float:
    """Operations of the layers' matrix products for `tokens` tokens, forward, adapters aside."""
    return 2.0 * linear_parameters(config) * tokens


def attention_flops(config: DecoderConfig, tokens: float, attended: float) -> float:
    """Operations of scores and weighted values, forward.

    Args:
      config: The decoder.
      tokens: Queries.
      attended: Positions that a query sees on average, itself included; see `causal_mean`.
    """
    return 4.0 * config.layers * config.heads * config.head_width * tokens * attended


def unembedding_flops(config: DecoderConfig, tokens: float) -> float:
    """Operations of the product with the vocabulary, forward."""
    return 2.0 * config.width * config.vocabulary_size * tokens


def causal_mean(length: int) -> float:
    """Positions that a token of a causal text sees on average, itself included."""
    return (length + 1) / 2


def forward_flops(config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None) -> float:
    """Operations of one forward pass.

    Args:
      config: The decoder.
      tokens: Tokens that go through the layers.
      attended: Positions that a token sees on average: `causal_mean(length)` for whole texts of a length, the mean
        length of the contexts in a step of decoding.
      unembedded: Tokens whose logits are computed; None: all. Learning needs only the policy's own.
    """
    logits = unembedding_flops(config, tokens if unembedded is None else unembedded)
    attention = attention_flops(config, tokens, attended)
    return linear_flops(config, tokens) + adapter_flops(config, tokens) + attention + logits


def update_flops(config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None) -> float:
    """Operations that a forward and backward pass needs, nothing recomputed.

    Each product has two in the backward pass, for the gradients of its two operands; a frozen matrix has one. This is
    the numerator of model FLOPs utilisation (Chowdhery et al., 2022); arguments as in `forward_flops`.
    """
    frozen = 0.0
    if config.lora is not None:
        logits = unembedding_flops(config, tokens if unembedded is None else unembedded)
        frozen = linear_flops(config, tokens) + logits
    return 3.0 * forward_flops(config, tokens, attended=attended, unembedded=unembedded) - frozen


def recomputed_flops(
    config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None
) -> float:
    """Operations that the backward pass repeats under `config.remat` to save memory; arguments as in `forward_flops`.

    The unembedding is always repeated, block by block; "dots" repeats attention too, whose scores it does not keep,
    "full" everything. With `update_flops` it is what the hardware executes.
    """
    repeated = unembedding_flops(config, tokens if unembedded is None else unembedded)
    if config.remat != "none":
        repeated += attention_flops(config, tokens, attended)
    if config.remat == "full":
        repeated += linear_flops(config, tokens) + adapter_flops(config, tokens)
    return repeated


def cache_bytes(config: DecoderConfig, slots: int, positions: float) -> float:
    """Size of the keys and values of `positions` positions in every slot."""
    return 2.0 * config.layers * slots * config.kv_heads * positions * config.head_width * config.dtype.itemsize


def parameter_bytes(config: DecoderConfig, dtype: str = "float32") -> int:
    """Size of all parameters, stored in `dtype`."""
    return parameter_count(config) * jnp.dtype(dtype).itemsize


def decode_bytes(config: DecoderConfig, slots: int, window: float, *, dtype: str | None = None) -> float:
    """Bytes that one decode step (one token in every slot) must read and write at the least.

    Every parameter is read once (of an embedding that is not also the unembedding only the slots' rows), the cache of
    `window` positions is read, one position written. Over seconds x measured copy bandwidth it is the share of
    bandwidth that decoding reaches.

    Args:
      config: The decoder.
      slots: Tokens a step.
      window: Cached positions that are read in each slot.
      dtype: In which the parameters are stored; None: the compute dtype.
    """
    stored = dtype or config.compute_dtype
    itemsize = jnp.dtype(stored).itemsize
    unread = 0 if config.tie_embeddings else max(0, config.vocabulary_size - slots) * config.width * itemsize
    return parameter_bytes(config, stored) - unread + cache_bytes(config, slots, window + 1)

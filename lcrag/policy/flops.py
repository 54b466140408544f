"""Floating-point operations and memory traffic of the decoder, by formula.

A multiplication and an addition are two operations. Norms, rotations, softmaxes and the embedding lookup are left out
(below one per cent at any real width), as in Chowdhery et al. (2022, PaLM, appendix B). Compilers count the body of a
scan over layers only once, so their figures cannot be used.
"""

import jax.numpy as jnp

from lcrag.policy.config import LINEAR_LAYERS, DecoderConfig
from lcrag.policy.parameters import parameter_count


def linear_parameters(config: DecoderConfig) -> int:
    """Counts the parameters of the layers' matrices, without the unembedding."""
    attention = 2 * config.width * (config.heads + config.kv_heads) * config.head_width
    return config.layers * (attention + 3 * config.width * config.mlp_width)


def adapter_parameters(config: DecoderConfig) -> int:
    """Counts the parameters of the adapters."""
    if config.lora is None:
        return 0
    queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width
    inner = {"query": queries, "key": keys, "value": keys, "output": queries}
    sizes = {target: config.width + inner.get(target.split("/")[1], config.mlp_width) for target in LINEAR_LAYERS}
    return config.layers * config.lora.rank * sum(sizes[target] for target in config.lora.targets)


def _attention_flops(config: DecoderConfig, tokens: float, attended: float) -> float:
    """Operations of scores and weighted values."""
    return 4.0 * config.layers * config.heads * config.head_width * tokens * attended


def _unembedding_flops(config: DecoderConfig, tokens: float) -> float:
    return 2.0 * config.width * config.vocabulary_size * tokens


def causal_mean(length: int) -> float:
    """Returns the mean number of positions that a token of a causal text attends to, itself included."""
    return (length + 1) / 2


def forward_flops(config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None) -> float:
    """Counts the operations of one forward pass.

    Args:
      config: The decoder.
      tokens: Tokens that pass through the layers.
      attended: Positions that a token attends to on average: `causal_mean(length)` for whole texts, the mean context
        length in a decode step.
      unembedded: Tokens whose logits are computed; None: all. Learning needs only the policy's own.
    """
    logits = _unembedding_flops(config, tokens if unembedded is None else unembedded)
    return (
        2.0 * (linear_parameters(config) + adapter_parameters(config)) * tokens
        + _attention_flops(config, tokens, attended)
        + logits
    )


def update_flops(config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None) -> float:
    """Counts the operations of a forward and backward pass, without recomputation; arguments as in `forward_flops`.

    The backward pass has two products for each product of the forward pass, for the gradients of its two operands, and
    one for a frozen matrix. This is the numerator of model FLOPs utilisation (Chowdhery et al., 2022).
    """
    frozen = 0.0
    if config.lora is not None:
        logits = _unembedding_flops(config, tokens if unembedded is None else unembedded)
        frozen = 2.0 * linear_parameters(config) * tokens + logits
    return 3.0 * forward_flops(config, tokens, attended=attended, unembedded=unembedded) - frozen


def recomputed_flops(
    config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None
) -> float:
    """Counts what the backward pass recomputes under `config.remat`; arguments as in `forward_flops`.

    The unembedding is recomputed block by block, except where `lcrag.policy.unembedding.keeps_logits`: then pass 0 as
    `unembedded`. "dots" also recomputes attention, whose scores it does not keep, "full" everything. The hardware
    executes the sum of this and `update_flops`.
    """
    repeated = _unembedding_flops(config, tokens if unembedded is None else unembedded)
    if config.remat != "none":
        repeated += _attention_flops(config, tokens, attended)
    if config.remat == "full":
        repeated += 2.0 * (linear_parameters(config) + adapter_parameters(config)) * tokens
    return repeated


def cache_bytes(config: DecoderConfig, slots: int, positions: float) -> float:
    """Returns the size of the keys and values of `positions` positions in every slot."""
    return 2.0 * config.layers * slots * config.kv_heads * positions * config.head_width * config.dtype.itemsize


def parameter_bytes(config: DecoderConfig, dtype: str = "float32") -> int:
    """Returns the size of all parameters in `dtype`."""
    return parameter_count(config) * jnp.dtype(dtype).itemsize


def decode_bytes(config: DecoderConfig, slots: int, window: float, *, dtype: str | None = None) -> float:
    """Returns the bytes that one decode step (one token in every slot) must at least read and write.

    Every parameter is read once (of an untied embedding only the slots' rows), the cache of `window` positions is read
    and one position is written. Divided by seconds x measured copy bandwidth, it is the share of bandwidth reached.
    `dtype` is that of the stored parameters; None: the compute dtype.
    """
    stored = dtype or config.compute_dtype
    itemsize = jnp.dtype(stored).itemsize
    unread = 0 if config.tie_embeddings else max(0, config.vocabulary_size - slots) * config.width * itemsize
    return parameter_bytes(config, stored) - unread + cache_bytes(config, slots, window + 1)

"""Floating-point operations and memory traffic of the decoder, by formula.

A multiplication and an addition are two operations. Norms, rotations, softmaxes and the embedding lookup are left out
(below one per cent at any real width), as in Chowdhery et al. (2022, PaLM, appendix B). Compilers count the body of a
scan over layers only once, so their figures cannot be used.
"""

import jax.numpy as jnp
from flax import traverse_util

from lcrag.policy.config import DecoderConfig
from lcrag.policy.decoder import ADAPTERS
from lcrag.policy.parameters import abstract_parameters, parameter_count


def layer_parameters(config: DecoderConfig) -> tuple[int, int]:
    """Counts the parameters of the layers' matrices, without the unembedding, and those of their adapters."""
    flat = traverse_util.flatten_dict(abstract_parameters(config))
    kernels, adapters = (
        sum(leaf.size for path, leaf in flat.items() if path[-1] in names) for names in (("kernel",), ADAPTERS)
    )
    return kernels, adapters


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
    unembedded = tokens if unembedded is None else unembedded
    scores_and_values = 4.0 * config.layers * config.heads * config.head_width * tokens * attended
    logits = 2.0 * config.width * config.vocabulary_size * unembedded
    return 2.0 * sum(layer_parameters(config)) * tokens + scores_and_values + logits


def update_flops(config: DecoderConfig, tokens: float, *, attended: float, unembedded: float | None = None) -> float:
    """Counts the operations of a forward and backward pass, without recomputation; arguments as in `forward_flops`.

    The backward pass has two products for each product of the forward pass, for the gradients of its two operands, and
    one for a frozen matrix. This is the numerator of model FLOPs utilisation (Chowdhery et al., 2022).
    """
    frozen = 0.0
    if config.lora is not None:
        logits = 2.0 * config.width * config.vocabulary_size * (tokens if unembedded is None else unembedded)
        frozen = 2.0 * layer_parameters(config)[0] * tokens + logits
    return 3.0 * forward_flops(config, tokens, attended=attended, unembedded=unembedded) - frozen


def cache_bytes(config: DecoderConfig, slots: int, positions: float) -> float:
    """Returns the size of the keys and values of `positions` positions in every slot."""
    return 2.0 * config.layers * slots * config.kv_heads * positions * config.head_width * config.dtype.itemsize


def decode_bytes(config: DecoderConfig, slots: int, window: float, *, dtype: str | None = None) -> float:
    """Returns the bytes that one decode step (one token in every slot) must at least read and write.

    Every parameter is read once (of an untied embedding only the slots' rows), the cache of `window` positions is read
    and one position is written. Divided by seconds x measured copy bandwidth, it is the share of bandwidth reached.
    `dtype` is that of the stored parameters; None: the compute dtype.
    """
    itemsize = jnp.dtype(dtype or config.compute_dtype).itemsize
    unread = 0 if config.tie_embeddings else max(0, config.vocabulary_size - slots) * config.width
    return (parameter_count(config) - unread) * itemsize + cache_bytes(config, slots, window + 1)

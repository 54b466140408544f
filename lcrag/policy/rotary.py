"""Rotary position embeddings (Su et al., 2021), with Llama 3's frequency scaling."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lcrag.policy.config import DecoderConfig, RopeScaling


def frequencies(config: DecoderConfig) -> np.ndarray:
    """Angular frequencies, radians per position, float32[head_width / 2]."""
    exponents = np.arange(0, config.head_width, 2, dtype=np.float32) / config.head_width
    plain = (1.0 / config.rope_theta**exponents).astype(np.float32)
    return plain if config.rope_scaling is None else _scaled(plain, config.rope_scaling)


def _scaled(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended linearly."""
    wavelengths = 2 * np.pi / plain
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    blend = np.clip((scaling.original_positions / wavelengths - low) / (high - low), 0.0, 1.0)
    return ((1 - blend) * plain / scaling.factor + blend * plain).astype(np.float32)


def rotation(
    config: DecoderConfig, positions: Int[Array, "batch time"]
) -> tuple[Float[Array, "batch time 1 half"], Float[Array, "batch time 1 half"]]:
    """Cosines and sines of every position, computed once for all layers and heads."""
    angles = positions[..., None, None].astype(jnp.float32) * frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    vectors: Float[Array, "batch time heads width"],
    cosines: Float[Array, "batch time 1 half"],
    sines: Float[Array, "batch time 1 half"],
) -> Float[Array, "batch time heads width"]:
    """Rotates each pair (i, i + width / 2) by its position's angle."""
    first, second = jnp.split(vectors.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return turned.astype(vectors.dtype)

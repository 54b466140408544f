"""Parameters in the precision that they are computed in: what sampling reads for every token."""

import jax

from lcrag.policy.config import DecoderConfig
from lcrag.policy.functions import Params


def compute_parameters(config: DecoderConfig, params: Params) -> Params:
    """Casts to the compute dtype, once, what the forward pass would cast at every use.

    A step of decoding takes about as long as reading the parameters does, and float32 masters have twice the bytes.
    The scales of norms stay as they are, because norms are computed in float32: results do not change by a bit.
    Leaves that are no wider than the compute dtype are returned themselves, not copied.
    """

    def cast(path, leaf):
        used_in_float32 = path[-1].key == "scale"
        return leaf if used_in_float32 or leaf.dtype.itemsize <= config.dtype.itemsize else leaf.astype(config.dtype)

    return jax.tree.map_with_path(cast, params)

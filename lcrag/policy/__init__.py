"""The policy: a Flax decoder and what belongs to weights.

Public: the configuration, pure functions of (config, params), the sharding table and tokenizers.
"""

from lcrag.policy.attention import KeyValueCache, empty_cache
from lcrag.policy.config import DecoderConfig, RopeScaling
from lcrag.policy.functions import (
    abstract_parameters,
    forward,
    hidden_states,
    initialise,
    log_probabilities,
    logits,
    param_shardings,
    parameter_count,
)
from lcrag.policy.hugging_face_config import read_config
from lcrag.policy.loading import load_hugging_face
from lcrag.policy.saving import save_hugging_face
from lcrag.policy.sharding import logical_sharding, make_mesh, replicated
from lcrag.policy.tokenizer import Tokenizer, load_tokenizer
from lcrag.policy.unembedding import unembed, unembed_log_probabilities

__all__ = [
    "DecoderConfig",
    "KeyValueCache",
    "RopeScaling",
    "Tokenizer",
    "abstract_parameters",
    "empty_cache",
    "forward",
    "hidden_states",
    "initialise",
    "load_hugging_face",
    "load_tokenizer",
    "log_probabilities",
    "logical_sharding",
    "logits",
    "make_mesh",
    "param_shardings",
    "parameter_count",
    "read_config",
    "replicated",
    "save_hugging_face",
    "unembed",
    "unembed_log_probabilities",
]

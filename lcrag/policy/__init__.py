"""The policy: a Flax decoder and what belongs to weights.

Public: the configuration, pure functions of (config, params), the sharding table and tokenizers.
"""

from lcrag.policy.adapters import add_lora, join, merge_lora, split_trainable
from lcrag.policy.attention import KeyValueCache, empty_cache
from lcrag.policy.chat import ChatPrompt, ChatTemplate
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
from lcrag.policy.hugging_face_tokenizer import HuggingFaceTokenizer
from lcrag.policy.loading import load_hugging_face, stored_dtype
from lcrag.policy.lora import Lora
from lcrag.policy.policy import Policy
from lcrag.policy.precision import compute_parameters
from lcrag.policy.saving import save_hugging_face
from lcrag.policy.sentencepiece_tokenizer import SentencePieceTokenizer, vocabulary_tokenizer
from lcrag.policy.sharding import gathered, logical_sharding, make_mesh, replicated
from lcrag.policy.tokenizer import TokenIds, Tokenizer
from lcrag.policy.tokenizer_folder import load_tokenizer
from lcrag.policy.unembedding import unembed, unembed_log_probabilities

__all__ = [
    "Policy",
    "ChatPrompt",
    "ChatTemplate",
    "DecoderConfig",
    "HuggingFaceTokenizer",
    "KeyValueCache",
    "Lora",
    "RopeScaling",
    "SentencePieceTokenizer",
    "TokenIds",
    "Tokenizer",
    "abstract_parameters",
    "add_lora",
    "compute_parameters",
    "empty_cache",
    "forward",
    "gathered",
    "hidden_states",
    "initialise",
    "join",
    "load_hugging_face",
    "load_tokenizer",
    "log_probabilities",
    "logical_sharding",
    "logits",
    "make_mesh",
    "merge_lora",
    "param_shardings",
    "parameter_count",
    "read_config",
    "replicated",
    "save_hugging_face",
    "split_trainable",
    "stored_dtype",
    "unembed",
    "unembed_log_probabilities",
    "vocabulary_tokenizer",
]

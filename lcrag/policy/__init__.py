"""The policy: a Flax decoder, its weights and its tokenizer. Functions are pure in (config, params).

Public:
  Policy: A decoder with its parameters, tokenizer and devices.
  DecoderConfig, RopeScaling, Lora, read_config: The shape of a decoder, and reading it from a folder.
  forward, hidden_states, logits, log_probabilities: The forward pass.
  unembed, unembed_log_probabilities: From hidden states to tokens.
  KeyValueCache, empty_cache: The caches of sampling.
  initialise, abstract_parameters, parameter_count, parameter_fingerprint, compute_parameters: Parameters.
  add_lora, merge_lora, split_trainable, join: Adapters.
  make_mesh, AnyMesh, check_mesh_sizes, param_shardings, logical_sharding, gathered, replicated: Sharding.
  load_policy, save_policy, check_shape; load_hugging_face, save_hugging_face, stored_dtype: Model folders.
  Tokenizer, TokenIds, load_tokenizer, ChatTemplate, ChatPrompt: Tokenizers and conversations.
"""

from lcrag.policy.attention import KeyValueCache, empty_cache
from lcrag.policy.config import (
    AnyMesh,
    DecoderConfig,
    Lora,
    RopeScaling,
    check_mesh_sizes,
    gathered,
    logical_sharding,
    make_mesh,
    replicated,
)
from lcrag.policy.decoder import (
    forward,
    hidden_states,
    log_probabilities,
    logits,
    unembed,
    unembed_log_probabilities,
)
from lcrag.policy.hugging_face import load_hugging_face, read_config, save_hugging_face, stored_dtype
from lcrag.policy.loading import check_shape, load_policy, save_policy
from lcrag.policy.parameters import (
    Policy,
    abstract_parameters,
    add_lora,
    compute_parameters,
    initialise,
    join,
    merge_lora,
    param_shardings,
    parameter_count,
    parameter_fingerprint,
    split_trainable,
)
from lcrag.policy.tokenizer import (
    ChatPrompt,
    ChatTemplate,
    TokenIds,
    Tokenizer,
    load_tokenizer,
)

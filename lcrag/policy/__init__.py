"""The policy: a Flax decoder, its weights and its tokenizer. Functions are pure in (config, params)."""

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

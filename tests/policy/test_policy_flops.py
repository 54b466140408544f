"""Operations and bytes by formula, against PyTorch's counter of operations and the sizes of arrays."""

import dataclasses

import jax
import pytest
import torch
import transformers
from support import tiny_config
from torch.utils.flop_counter import FlopCounterMode

from lcrag.policy import Lora, abstract_parameters, empty_cache, read_config, split_trainable
from lcrag.policy.parameters import cache_bytes, decode_bytes, forward_flops, layer_parameters, update_flops

TIME = 16
SHAPES = {
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": False, "head_dim": 24},
    "llama": {"tie_word_embeddings": False},
}


def peer(family, folder):
    """A model of `transformers` and our configuration of it."""
    common = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = transformers.AutoConfig.for_model(family, **common, **heads, **SHAPES[family])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    config.save_pretrained(folder)
    return model, read_config(folder)


def counted(model, backward):
    """Operations as PyTorch counts them; its eager attention computes every pair of positions."""
    tokens = torch.zeros((2, TIME), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        logits = model(tokens, use_cache=False).logits
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("family", SHAPES)
def test_forward_and_update_are_what_pytorch_counts(family, tmp_path):
    model, config = peer(family, tmp_path)
    with torch.no_grad():
        assert counted(model, backward=False) == forward_flops(config, 2 * TIME, attended=TIME)
    assert counted(model, backward=True) == update_flops(config, 2 * TIME, attended=TIME)


def test_only_the_policys_tokens_are_unembedded():
    config = tiny_config()
    fewer = forward_flops(config, 10, attended=5, unembedded=4)
    assert forward_flops(config, 10, attended=5) - fewer == 6 * 2 * 32 * 384
    assert update_flops(config, 10, attended=5, unembedded=4) == 3 * fewer


def test_frozen_weights_have_no_gradient_of_their_own(tmp_path):
    """Against PyTorch's counter with a frozen model, and against the arrays of the adapters."""
    model, config = peer("qwen3", tmp_path)
    inputs = torch.zeros((2, TIME, config.width), requires_grad=True)
    model.requires_grad_(False)
    with FlopCounterMode(display=False) as counter:
        model(inputs_embeds=inputs, use_cache=False).logits.sum().backward()
    lora = Lora(rank=3, targets=("attention/query", "attention/value", "mlp/down"))
    adapted = dataclasses.replace(config, lora=lora)
    adapters, _ = split_trainable(adapted, abstract_parameters(adapted))
    count = sum(leaf.size for leaf in jax.tree.leaves(adapters))
    assert layer_parameters(adapted) == (layer_parameters(config)[0], count)
    assert layer_parameters(config)[1] == 0
    expected = counter.get_total_flops() + 3 * 2 * count * 2 * TIME
    assert update_flops(adapted, 2 * TIME, attended=TIME) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_those_of_the_arrays(dtype):
    config = tiny_config(compute_dtype=dtype)
    cache = sum(leaf.nbytes for leaf in empty_cache(config, 3, 64))
    assert cache_bytes(config, 3, 64) == cache
    leaves = jax.tree.leaves(abstract_parameters(config))
    assert decode_bytes(config, 3, 63) == sum(leaf.size for leaf in leaves) * config.dtype.itemsize + cache
    untied = dataclasses.replace(config, tie_embeddings=False)  # of which only the slots' rows are read
    assert decode_bytes(untied, 3, 63) - decode_bytes(config, 3, 63) == 3 * 32 * config.dtype.itemsize

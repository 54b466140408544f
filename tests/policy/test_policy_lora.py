"""LoRA: fresh adapters that change nothing, the paper's formula by merging, sharding and mistakes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import traverse_util
from support import tiny_config
from support.random_decoders import random_decoder

from lcrag.errors import UserError
from lcrag.policy import (
    Lora,
    add_lora,
    hidden_states,
    initialise,
    join,
    logical_sharding,
    logits,
    make_mesh,
    merge_lora,
    param_shardings,
    parameters,
    split_trainable,
    stored_dtype,
)
from lcrag.policy.config import LINEAR_LAYERS

PLAIN = tiny_config(family="qwen2", tie_embeddings=False)
LORA = Lora(rank=3, alpha=6.0)
TOKENS = jax.random.randint(jax.random.key(3), (2, 9), 0, PLAIN.vocabulary_size)


def flat(tree):
    return traverse_util.flatten_dict(tree, sep="/")


@pytest.fixture(scope="module")
def plain():
    return initialise(PLAIN, jax.random.key(0))


@pytest.fixture(scope="module")
def adapted(plain):
    """(config, parameters) with random adapters on every linear layer."""
    config, params = add_lora(PLAIN, plain, LORA, jax.random.key(1))
    keys = iter(jax.random.split(jax.random.key(5), 2 * len(LINEAR_LAYERS)))
    return config, jax.tree.map_with_path(
        lambda path, leaf: jax.random.normal(next(keys), leaf.shape) / 4 if "lora" in path[-1].key else leaf, params
    )


@pytest.mark.parametrize("base_dtype", ["float32", "bfloat16"])
def test_fresh_adapters_change_nothing(plain, base_dtype):
    base = jax.tree.map(lambda leaf: leaf.astype(base_dtype), plain)
    config, params = add_lora(PLAIN, base, LORA, jax.random.key(1))
    np.testing.assert_array_equal(logits(config, params, TOKENS), logits(PLAIN, base, TOKENS))
    leaves = flat(params)
    assert {leaf.dtype for path, leaf in leaves.items() if "lora" in path} == {jnp.dtype("float32")}
    assert all(leaves[path] is leaf for path, leaf in flat(base).items())
    adapters, frozen = split_trainable(config, params)
    assert flat(adapters).keys() == {f"layers/{at}/lora_{half}" for at in LINEAR_LAYERS for half in "ab"}
    assert flat(frozen).keys() == flat(plain).keys()
    assert flat(join(adapters, frozen)).keys() == flat(params).keys()
    assert split_trainable(PLAIN, plain) == (plain, {})
    halves = leaves["layers/mlp/down/lora_a"]
    assert halves.shape == (2, 48, 3)
    assert not jnp.array_equal(halves[0], halves[1])
    assert 0.9 * 48**-0.5 < jnp.abs(halves).max() <= 48**-0.5


def test_every_layer_matters(adapted, plain):
    config, params = adapted
    for target in LINEAR_LAYERS:
        silent = {path: leaf * (target in path or not path.endswith("lora_b")) for path, leaf in flat(params).items()}
        changed = logits(config, traverse_util.unflatten_dict(silent, sep="/"), TOKENS)
        assert jnp.abs(changed - logits(PLAIN, plain, TOKENS)).max() > 1e-3
    for targets in ((), ("q_proj",)):
        with pytest.raises(UserError, match="choose among attention/query"):
            Lora(targets=targets)


def test_merged_weights_are_w_plus_alpha_by_rank_a_b_and_give_the_same_logits(adapted, plain, monkeypatch):
    config, params = adapted
    merged_config, merged = merge_lora(config, params)
    assert merged_config == PLAIN
    assert flat(merged).keys() == flat(plain).keys()
    np.testing.assert_allclose(logits(merged_config, merged, TOKENS), logits(config, params, TOKENS), atol=2e-5)
    kernels, products = flat(plain), flat(split_trainable(config, params)[0])
    for path, leaf in flat(merged).items():
        if path.endswith("kernel"):
            at = path.removesuffix("kernel")
            expected = kernels[path] + 2.0 * np.matmul(products[f"{at}lora_a"], products[f"{at}lora_b"])
            np.testing.assert_allclose(leaf, expected, atol=1e-5)
        else:
            assert leaf is kernels[path]
    assert merge_lora(PLAIN, plain) == (PLAIN, plain)
    # Processes would otherwise trace different programs, and the compilation cache would never know one again.
    in_order = []
    monkeypatch.setattr(parameters, "_merged", lambda scale, dtype, kernel, *_: in_order.append(kernel) or kernel)
    merge_lora(config, params)
    assert list(map(id, in_order)) == [id(leaf) for path, leaf in flat(params).items() if path.endswith("kernel")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_kernels_may_have_a_dtype_of_their_own(adapted, dtype):
    config, params = adapted
    learned, base = split_trainable(config, params)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), base)
    merged = flat(merge_lora(config, join(learned, half), dtype)[1])
    expected = flat(merge_lora(config, join(learned, jax.tree.map(lambda leaf: leaf.astype("float32"), half)))[1])
    for path, leaf in merged.items():
        if path.endswith("kernel"):
            assert leaf.dtype == dtype
            np.testing.assert_array_equal(leaf, expected[path].astype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_dtype_of_a_folder(tmp_path, dtype):
    random_decoder("qwen2_tied").to(getattr(torch, dtype)).save_pretrained(tmp_path)
    assert stored_dtype(tmp_path) == ("bfloat16" if dtype == "bfloat16" else "float32")


def test_adapters_are_spread_by_the_same_rules(adapted, plain):
    config, params = adapted
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    placed = jax.device_put(plain, param_shardings(PLAIN, mesh))
    _, born = add_lora(PLAIN, placed, LORA, jax.random.key(1), mesh)
    jax.tree.map(lambda leaf, sharding: leaf.sharding == sharding or pytest.fail(), born, param_shardings(config, mesh))
    assert tuple(flat(born)["layers/mlp/up/lora_b"].sharding.spec) == (None, None, "tensor")
    assert tuple(flat(born)["layers/attention/output/lora_a"].sharding.spec) == (None, "tensor", None)
    spread = jax.device_put(params, param_shardings(config, mesh))
    rows = jax.device_put(jnp.tile(TOKENS, (2, 1)), logical_sharding(mesh, "batch", None))
    np.testing.assert_allclose(logits(config, spread, rows)[:2], logits(config, params, TOKENS), atol=2e-5)


def test_dots_keeps_one_array_for_an_adapted_layer(adapted):
    config, params = adapted
    adapters, base = split_trainable(config, params)
    chosen = dataclasses.replace(config, remat="dots")

    def backward(adapters):
        return jax.vjp(lambda a: hidden_states(chosen, join(a, base), TOKENS), adapters)[1]

    kept = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(backward, adapters))]
    assert kept.count((config.layers, TOKENS.size, config.mlp_width)) == len(("gate", "up"))

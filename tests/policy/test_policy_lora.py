"""LoRA: the paper's formula, fresh adapters that change nothing, one rule table, merging, and one clear sentence."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import traverse_util

from lcrag.errors import UserError
from lcrag.policy import (
    Lora,
    add_lora,
    empty_cache,
    forward,
    hidden_states,
    initialise,
    join,
    load_hugging_face,
    logical_sharding,
    logits,
    make_mesh,
    merge_lora,
    param_shardings,
    save_hugging_face,
    split_trainable,
    stored_dtype,
    unembed,
)
from lcrag.policy.config import LINEAR_LAYERS
from lcrag.policy.decoder import Linear
from lcrag.testing import tiny_config
from lcrag.testing.random_decoders import random_decoder

PLAIN = tiny_config(family="qwen2", tie_embeddings=False)
LORA = Lora(rank=3, alpha=6.0)
TOKENS = jax.random.randint(jax.random.key(3), (2, 9), 0, PLAIN.vocabulary_size)


def flat(tree):
    return traverse_util.flatten_dict(tree, sep="/")


class Inner(nn.Module):
    lora: Lora

    @nn.compact
    def __call__(self, x):
        return Linear(5, ("embed", "mlp"), lora=self.lora, name="up")(x)


class OneLayer(nn.Module):
    """The layer "mlp/up" alone: a layer knows itself by its path."""

    lora: Lora

    @nn.compact
    def __call__(self, x):
        return Inner(self.lora, name="mlp")(x)


def random_adapters(config, params, seed=5):
    """The same parameters with adapters that do something."""
    adapters, base = split_trainable(config, params)
    leaves = flat(adapters)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = {
        path: jax.random.normal(key, leaf.shape) / 4 for (path, leaf), key in zip(leaves.items(), keys, strict=True)
    }
    return join(traverse_util.unflatten_dict(drawn, sep="/"), base)


@pytest.fixture(scope="module")
def plain():
    return initialise(PLAIN, jax.random.key(0))


@pytest.fixture(scope="module")
def adapted(plain):
    """(config, parameters) with random adapters on every linear layer."""
    config, params = add_lora(PLAIN, plain, LORA, jax.random.key(1))
    return config, random_adapters(config, params)


def test_a_layer_computes_the_papers_formula():
    """Against PyTorch, written as PEFT writes it: base(x) + lora_B(lora_A(x)) * alpha / rank."""
    draw = np.random.default_rng(0).normal
    weights = {"kernel": draw(size=(4, 5)), "lora_a": draw(size=(4, 2)), "lora_b": draw(size=(2, 5))}
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    x = draw(size=(3, 2, 4)).astype(np.float32)

    base, down, up = (torch.nn.Linear(*shape, bias=False) for shape in ((4, 5), (4, 2), (2, 5)))
    for module, name in ((base, "kernel"), (down, "lora_a"), (up, "lora_b")):
        module.weight.data = torch.from_numpy(weights[name].T.copy())
    inputs = torch.from_numpy(x)
    expected = base(inputs) + up(down(inputs)) * (3.0 / 2)

    lora = Lora(rank=2, alpha=3.0, targets=("mlp/up",))
    found = OneLayer(lora).apply({"params": {"mlp": {"up": weights}}}, jnp.asarray(x))
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("base_dtype", ["float32", "bfloat16"])
def test_fresh_adapters_change_nothing(plain, base_dtype):
    base = jax.tree.map(lambda leaf: leaf.astype(base_dtype), plain)
    config, params = add_lora(PLAIN, base, LORA, jax.random.key(1))
    np.testing.assert_array_equal(logits(config, params, TOKENS), logits(PLAIN, base, TOKENS))
    leaves = flat(params)
    assert {leaf.dtype for path, leaf in leaves.items() if "lora" in path} == {jnp.dtype("float32")}
    assert all(leaves[path] is leaf for path, leaf in flat(base).items())
    halves = leaves["layers/mlp/down/lora_a"]
    assert halves.shape == (2, 48, 3) and not jnp.array_equal(halves[0], halves[1])
    limit = 48**-0.5
    assert 0.9 * limit < jnp.abs(halves).max() <= limit


def test_adapters_are_where_they_are_asked_for(plain):
    config, params = add_lora(PLAIN, plain, Lora(rank=2, targets=("attention/query", "mlp/up")), jax.random.key(1))
    adapters, base = split_trainable(config, params)
    names = ("lora_a", "lora_b")
    assert flat(adapters).keys() == {f"layers/{at}/{n}" for at in ("attention/query", "mlp/up") for n in names}
    assert flat(base).keys() == flat(plain).keys()
    assert split_trainable(PLAIN, plain) == (plain, {})
    assert flat(join(adapters, base)).keys() == flat(params).keys()


@pytest.mark.parametrize("target", LINEAR_LAYERS)
def test_every_layer_has_its_say(adapted, plain, target):
    config, params = adapted
    silent = {path: leaf * (target in path) if path.endswith("lora_b") else leaf for path, leaf in flat(params).items()}
    changed = logits(config, traverse_util.unflatten_dict(silent, sep="/"), TOKENS)
    assert jnp.abs(changed - logits(PLAIN, plain, TOKENS)).max() > 1e-3


def test_merged_weights_give_the_same_logits(adapted, plain):
    config, params = adapted
    merged_config, merged = merge_lora(config, params)
    assert merged_config == PLAIN and flat(merged).keys() == flat(plain).keys()
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


def test_a_merged_policy_is_an_ordinary_folder(adapted, tmp_path):
    config, params = adapted
    with pytest.raises(UserError, match="lora_a has no place in the checkpoint"):
        save_hugging_face(tmp_path, dataclasses.replace(config, lora=None), params)
    save_hugging_face(tmp_path, config, params)
    again, loaded = load_hugging_face(tmp_path)
    np.testing.assert_allclose(logits(again, loaded, TOKENS), logits(config, params, TOKENS), atol=2e-5)


def test_decoding_over_the_cache_uses_the_adapters(adapted):
    config, params = adapted
    cache = empty_cache(config, *TOKENS.shape)
    positions = jnp.broadcast_to(jnp.arange(TOKENS.shape[1]), TOKENS.shape)
    step = jax.jit(forward, static_argnums=0)
    for at in range(0, TOKENS.shape[1], 3):
        here = slice(at, at + 3)
        hidden, cache = step(config, params, TOKENS[:, here], positions[:, here], cache)
        expected = hidden_states(config, params, TOKENS)[:, here]
        np.testing.assert_allclose(unembed(config, params, hidden), unembed(config, params, expected), atol=2e-5)


def test_adapters_are_spread_by_the_same_rules(adapted, plain):
    config, params = adapted
    mesh = make_mesh(data=2, fsdp=2, tensor=2)
    placed = jax.device_put(plain, param_shardings(PLAIN, mesh))
    _, born = add_lora(PLAIN, placed, LORA, jax.random.key(1), mesh)
    jax.tree.map(lambda leaf, sharding: leaf.sharding == sharding or pytest.fail(), born, param_shardings(config, mesh))
    up, out = (flat(born)[f"layers/{at}"].sharding.spec for at in ("mlp/up/lora_b", "attention/output/lora_a"))
    assert tuple(up) == (None, None, "tensor") and tuple(out) == (None, "tensor", None)
    spread = jax.device_put(params, param_shardings(config, mesh))
    rows = jax.device_put(jnp.tile(TOKENS, (2, 1)), logical_sharding(mesh, "batch", None))
    np.testing.assert_allclose(logits(config, spread, rows)[:2], logits(config, params, TOKENS), atol=2e-5)


def test_remat_changes_no_gradient_of_the_adapters(adapted):
    config, params = adapted
    adapters, base = split_trainable(config, params)

    def gradient(remat):
        chosen = dataclasses.replace(config, remat=remat)
        return jax.jit(jax.grad(lambda a: jnp.sum(hidden_states(chosen, join(a, base), TOKENS) ** 2)))(adapters)

    same = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(same, gradient("full"), gradient("none"))


def test_dots_keeps_one_array_for_an_adapted_layer(adapted):
    """Not the adapters' product beside the kernel's."""
    config, params = adapted
    adapters, base = split_trainable(config, params)
    chosen = dataclasses.replace(config, remat="dots")

    def backward(adapters):
        return jax.vjp(lambda a: hidden_states(chosen, join(a, base), TOKENS), adapters)[1]

    kept = [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(backward, adapters))]
    assert kept.count((config.layers, TOKENS.size, config.mlp_width)) == len(("gate", "up"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "adapts nothing"),
        ({"alpha": 0.0}, "adapts nothing"),
        ({"targets": ()}, "no layer is named; choose among attention/query"),
        ({"targets": ("q_proj",)}, "there is no linear layer 'q_proj'; choose among attention/query"),
    ],
    ids=str,
)
def test_a_mistake_is_one_clear_sentence(settings, message):
    with pytest.raises(UserError, match=message):
        Lora(**settings)

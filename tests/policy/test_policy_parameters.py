"""Parameters: LoRA adapters, copies in lanes, and operations and bytes by formula."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import traverse_util
from jax.sharding import Mesh
from support import tiny_config
from support.random_decoders import random_decoder
from torch.utils.flop_counter import FlopCounterMode

from lcrag.errors import UserError
from lcrag.policy import (
    Lora,
    abstract_parameters,
    add_lora,
    compute_parameters,
    empty_cache,
    hidden_states,
    initialise,
    join,
    logical_sharding,
    logits,
    make_mesh,
    merge_lora,
    param_shardings,
    parameters,
    read_config,
    split_trainable,
    stored_dtype,
)
from lcrag.policy.config import LINEAR_LAYERS, MESH_AXES
from lcrag.policy.parameters import (
    cache_bytes,
    decode_bytes,
    forward_flops,
    hand_over,
    lane_config,
    lane_meshes,
    layer_parameters,
    update_flops,
)

# --- Adapters ---

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


def test_fresh_adapters_change_nothing(plain):
    base = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), plain)
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_dtype_of_a_folder(tmp_path, dtype):
    random_decoder("qwen3").to(getattr(torch, dtype)).save_pretrained(tmp_path)
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


# --- Lanes ---


def buffers(params):
    """Addresses of all pieces."""
    leaves = jax.tree.leaves(params)
    return {shard.data.unsafe_buffer_pointer() for leaf in leaves for shard in leaf.addressable_shards}


@pytest.mark.parametrize(
    ("count", "tensor", "lora"),
    [(8, 1, None), (12, 1, None), (2, 2, Lora(rank=2, alpha=4))],
    ids=["a lane a device", "more lanes than devices", "adapters, lanes of several devices"],
)
def test_parameters_arrive_in_every_lane(count, tensor, lora):
    mesh, config = make_mesh(data=1, fsdp=4, tensor=2), tiny_config(compute_dtype="bfloat16", layers=1)
    params = initialise(config, jax.random.key(0), mesh)
    if lora:
        config, params = add_lora(config, params, lora, jax.random.key(1), mesh)
    wanted = jax.device_get(compute_parameters(lane_config(config), merge_lora(config, params)[1]))
    lanes = lane_meshes(mesh, count, tensor)
    for lane, own in zip(lanes, hand_over(config, params, mesh, lanes), strict=True):
        assert {leaf.sharding.mesh for leaf in jax.tree.leaves(own)} == {lane}
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(own), wanted)
        assert not buffers(own) & buffers(params)


def test_the_mesh_may_order_devices_otherwise():
    """As on TPU slices, where the devices of a host are not neighbours in the list of all."""
    devices, config = jax.devices()[:4], tiny_config(layers=1)
    lanes = lane_meshes(make_mesh(devices=devices), 2, 2)
    mesh = make_mesh(data=1, fsdp=2, tensor=2, devices=[devices[place] for place in (0, 2, 1, 3)])
    params = initialise(config, jax.random.key(0), mesh)
    for own in hand_over(config, params, mesh, lanes):
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(own), jax.device_get(params))
        assert not buffers(own) & buffers(params)


@dataclasses.dataclass(frozen=True)
class PretendedDevice:
    """A device of some process."""

    id: int
    process_index: int


def test_lanes_lie_in_one_process_each():
    def lanes(processes, count, tensor):
        devices = np.array([PretendedDevice(number, process) for number, process in enumerate(processes)])
        return lane_meshes(Mesh(devices.reshape(-1, 1, 1), MESH_AXES), count, tensor)

    parts = lanes([0, 0, 1, 1, 0, 0, 1, 1], 2, 2)  # the hosts of a TPU v5e are squares of chips
    assert [[device.id for device in part.devices.flat] for part in parts] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    for processes, count, words in (([0, 0, 1, 1], 1, "lane 0 of 1 would"), ([0, 0, 0, 1, 1, 1], 3, "lane 1 of 3")):
        with pytest.raises(UserError, match=f"{words} .*in processes 0 and 1, .* raise Lanes.count"):
            lanes(processes, count, 1)


# --- Costs, against PyTorch's counter of operations and the sizes of arrays ---

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
    cache = sum(leaf.nbytes for leaf in jax.tree.leaves(empty_cache(config, 3, 64)))
    assert cache_bytes(config, 3, 64) == cache
    windows = dataclasses.replace(config, sliding_window=5, global_layers=(0,))  # of two layers
    assert cache_bytes(windows, 3, 64) == cache * (64 + 5) / (2 * 64)
    leaves = jax.tree.leaves(abstract_parameters(config))
    assert decode_bytes(config, 3, 63) == sum(leaf.size for leaf in leaves) * config.dtype.itemsize + cache
    untied = dataclasses.replace(config, tie_embeddings=False)  # of which only the slots' rows are read
    assert decode_bytes(untied, 3, 63) - decode_bytes(config, 3, 63) == 3 * 32 * config.dtype.itemsize

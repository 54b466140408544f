"""All kernels compute the same attention; the mesh chooses the kernel; programs for TPUs that are not there."""

import dataclasses
import functools
import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import Mesh
from support import tiny_config, tiny_gemma

from lcrag.commands.compile import tpu_devices
from lcrag.errors import UserError
from lcrag.policy import (
    abstract_parameters,
    empty_cache,
    forward,
    hidden_states,
    initialise,
    logical_sharding,
    make_mesh,
    param_shardings,
)
from lcrag.policy import attention as module
from lcrag.policy.attention import Window, attended_positions, attention_kernel, flash_attention, query_blocks
from lcrag.policy.config import MESH_AXES, spread_kv_heads


def plain_attention(queries, keys, values, segments, window=1000):
    """The definition, in NumPy and float64."""
    queries, keys, values = (np.asarray(each, np.float64) for each in (queries, keys, values))
    segments = np.asarray(segments)
    (batch, time, heads, width), group = queries.shape, queries.shape[2] // keys.shape[2]
    out = np.zeros_like(queries)
    for row, head, t in np.ndindex(batch, heads, time):
        seen = [s for s in range(max(0, t + 1 - window), t + 1) if segments[row, s] == segments[row, t]]
        scores = keys[row, seen, head // group] @ queries[row, t, head] / np.sqrt(width)
        weights = np.exp(scores - scores.max())
        out[row, t, head] = weights / weights.sum() @ values[row, seen, head // group]
    return out


def inputs(time: int, batch: int = 2, heads: int = 4, kv_heads: int = 2, width: int = 128, dtype=jnp.float32):
    """Random queries, keys and values, and two texts and some padding a row."""
    shapes = [(batch, time, count, width) for count in (heads, kv_heads, kv_heads)]
    keys = jax.random.split(jax.random.key(time), 3)
    arrays = [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]
    ends = np.arange(time) >= np.array([[time // 3], [time // 2]] * (batch // 2))
    segments = (1 + ends) * (np.arange(time) < time - 5)
    return *arrays, jnp.asarray(segments, jnp.int32)


@pytest.mark.parametrize("size, applies", [(None, False), (1, True), (9, True), (30, True), (9, False)])
@pytest.mark.parametrize("kernel, time", [("xla", 37), ("xla", 210), ("splash", 37)])
def test_kernels_follow_the_definition(kernel, time, size, applies):
    *arrays, segments = inputs(time)
    assert time / 2 < attended_positions(time) <= time / 2 * (1 + 1 / len(query_blocks(time))) + 16
    starts = np.argmax(np.asarray(segments)[:, None] == np.asarray(segments)[..., None], axis=-1)
    positions = jnp.asarray(np.arange(time) - starts)

    @jax.jit
    def attended(applies):
        window = None if size is None else Window(size, applies)
        return flash_attention(kernel, *arrays, segments, None, window, positions)

    expected = plain_attention(*arrays, segments, size if applies else 1000)
    np.testing.assert_allclose(attended(applies), expected, atol=2e-5)


@pytest.mark.parametrize("time, packed, window", [(200, True, None), (130, False, 70)])
def test_splash_and_its_gradient_equal_xla(time, packed, window, monkeypatch):
    monkeypatch.setattr(module, "MAX_TILE", 128)  # several tiles, the last one partly filled
    *arrays, segments = inputs(time)
    within = None if window is None else Window(window, True)
    positions = jnp.broadcast_to(jnp.arange(time), segments.shape)  # only their differences within a text matter

    def loss(kernel, *arrays):
        out = flash_attention(kernel, *arrays, segments if packed else None, None, within, positions)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape))), out

    results = [
        jax.jit(jax.value_and_grad(functools.partial(loss, kernel), argnums=(0, 1, 2), has_aux=True))(*arrays)
        for kernel in ("splash", "xla")
    ]
    jax.tree.map(lambda got, expected: np.testing.assert_allclose(got, expected, atol=2e-4), *results)


def test_the_decoder_on_a_mesh_computes_the_same_with_splash():
    """With windows in some layers, and none in another."""
    config, mesh = tiny_config(remat="dots", **tiny_gemma()), make_mesh(data=2, fsdp=2, tensor=2)
    splash = dataclasses.replace(config, attention="splash")
    params = initialise(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (4, 21), 0, config.vocabulary_size)
    segments = jnp.asarray(np.sort(np.arange(84).reshape(4, 21) % 3))

    def gradient(config, mesh, params, tokens):
        return jax.jit(jax.grad(lambda p: jnp.sum(hidden_states(config, p, tokens, None, segments, mesh) ** 2)))(params)

    placed = jax.device_put(params, param_shardings(config, mesh))
    rows = jax.device_put(tokens, logical_sharding(mesh, "batch", None))
    close = functools.partial(np.testing.assert_allclose, atol=5e-4, rtol=1e-4)
    jax.tree.map(close, gradient(splash, mesh, placed, rows), gradient(config, None, params, tokens))


@dataclasses.dataclass(frozen=True)
class PretendedDevice:
    platform: str
    device_kind: str
    id: int = 0
    process_index: int = 0

    @property
    def mesh(self) -> Mesh:
        return Mesh(np.asarray([self]).reshape(1, 1, 1), MESH_AXES)


def test_the_mesh_chooses_the_kernel_not_the_host():
    config = tiny_config(compute_dtype="bfloat16")
    tpu, nvidia = PretendedDevice("tpu", "TPU v5p").mesh, PretendedDevice("gpu", "NVIDIA H200").mesh
    assert attention_kernel(config, 2048, tpu) == "splash"
    assert attention_kernel(config, 64, tpu) == "xla"
    assert attention_kernel(config, 2048, nvidia) == "cudnn"
    assert attention_kernel(tiny_config(), 2048, nvidia) == "xla"
    assert attention_kernel(tiny_config(compute_dtype="bfloat16", head_width=20), 2048, nvidia) == "xla"
    assert attention_kernel(tiny_config(attention="xla"), 2048, tpu) == "xla"
    for mesh in (PretendedDevice("gpu", "AMD Instinct MI300X").mesh, make_mesh(), None):
        assert attention_kernel(config, 2048, mesh) == "xla"
    for changes, mesh, words in (
        ({"compute_dtype": "float32"}, None, "compute_dtype='float32'"),
        ({"head_width": 20}, None, "heads 20 wide"),
        ({"sliding_window": 4}, None, "sliding windows"),
        ({}, make_mesh(), "a mesh of cpu devices"),
    ):
        with pytest.raises(UserError, match=f"does not support {words}"):
            attention_kernel(tiny_config(**({"compute_dtype": "bfloat16", "attention": "cudnn"} | changes)), 64, mesh)


@pytest.mark.parametrize("packed", [True, False])
def test_cudnn_accepts_what_it_is_given(packed, monkeypatch):
    """Lowered for CUDA on a host without it, as far as JAX goes: its checks of shapes, dtypes and masks pass."""
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    *arrays, segments = inputs(time=33, width=64, dtype=jnp.bfloat16)

    def loss(*arrays):
        return flash_attention("cudnn", *arrays, segments if packed else None).astype(jnp.float32).sum()

    lowered = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*arrays).lower(lowering_platforms=("cuda",))
    name = "ScaleBiasSoftmax" if packed else "Softmax"
    assert f"__cudnn$fmha{name}(" in lowered.as_text()
    assert f"__cudnn$fmha{name}Backward(" in lowered.as_text()


@pytest.mark.parametrize("attention", ["xla", "splash"])
def test_fewer_kv_heads_than_devices_are_shared_out(attention):
    config, mesh = tiny_config(attention=attention), make_mesh(data=2, tensor=4)
    assert (config.kv_heads, spread_kv_heads(config, mesh), spread_kv_heads(config, None)) == (2, 4, 2)
    params = initialise(config, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 9), 0, config.vocabulary_size)
    placed = jax.device_put(params, param_shardings(config, mesh))
    rows = jax.device_put(tokens, logical_sharding(mesh, "batch", None))
    got = jax.jit(functools.partial(hidden_states, config, mesh=mesh))(placed, rows)
    assert got.sharding.is_equivalent_to(logical_sharding(mesh, "batch", None, None), 3)
    expected = jax.jit(hidden_states, static_argnums=0)(tiny_config(), params, tokens)
    np.testing.assert_allclose(got, expected, atol=2e-5)


def on_tpus(test):
    """Marks a test that compiles for absent TPUs; such programs are stored, but not read back without a client."""
    absent = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
    return pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")(absent(test))


TPU_TIME = 1152  # three tiles of 384
TPU_CONFIG = tiny_config(width=256, mlp_width=512, head_width=128, compute_dtype="bfloat16", max_positions=2048)


@pytest.fixture(scope="module")
def chips():
    return np.asarray(tpu_devices("v5e:2x2"))


def abstract(mesh, shape, dtype, *axes):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=logical_sharding(mesh, *axes))


def parameters(config, mesh):
    return jax.tree.map(
        lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at),
        abstract_parameters(config),
        param_shardings(config, mesh),
    )


def kernels(program: str) -> list[str]:
    return sorted(re.findall(r"%(splash_mha_[a-z]+)\S* = .* custom-call\(", program))


@on_tpus
@pytest.mark.parametrize("remat, forwards, sizes", [("full", 2, (1, 2, 2)), ("dots", 1, (1, 1, 4))])
def test_training_attends_by_splash_and_holds_no_matrix_of_scores(chips, remat, forwards, sizes):
    mesh, config = Mesh(chips.reshape(sizes), MESH_AXES), tiny_config(**{**vars(TPU_CONFIG), "remat": remat})
    rows = abstract(mesh, (4, TPU_TIME), jnp.int32, "batch", None)

    def loss(params, tokens, segments):
        return jnp.sum(hidden_states(config, params, tokens, None, segments, mesh).astype(jnp.float32))

    program = jax.jit(jax.grad(loss)).lower(parameters(config, mesh), rows, rows).compile().as_text()
    assert kernels(program) == ["splash_mha_dkv", "splash_mha_dq"] + ["splash_mha_fwd"] * forwards
    assert f"{TPU_TIME},{TPU_TIME}]" not in program


@on_tpus
@pytest.mark.parametrize("tensor", [2, 4])  # there are two key-value heads
def test_decoding_moves_no_cache_between_devices(chips, tensor):
    mesh, slots, positions = Mesh(chips.reshape(4 // tensor, 1, tensor), MESH_AXES), 8, 640
    shared = logical_sharding(mesh, "layers", "slots", "heads", None, None)
    cache = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shared),
        jax.eval_shape(functools.partial(empty_cache, TPU_CONFIG, slots, positions, mesh)),
    )
    step = abstract(mesh, (slots, 1), jnp.int32, "slots", None)
    jitted = jax.jit(functools.partial(forward, TPU_CONFIG), donate_argnums=3)
    program = jitted.lower(parameters(TPU_CONFIG, mesh), step, step, cache).compile().as_text()
    moved = re.findall(r" = (.*?) (?:all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", program)
    assert moved
    assert not [shape for shape in moved if str(positions) in shape]

"""Compiled for TPUs that are not there: splash forward and backward on a mesh, and decoding over a shared cache."""

import functools
import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from support import tiny_config

from lcrag.commands.compile import tpu_devices
from lcrag.policy import abstract_parameters, empty_cache, forward, hidden_states, logical_sharding, param_shardings
from lcrag.policy.sharding import MESH_AXES

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed"),
    # Programs for absent devices are stored, but cannot be read back without a client for them.
    pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry"),
]

TIME = 1152  # three tiles of 384
CONFIG = tiny_config(width=256, mlp_width=512, head_width=128, compute_dtype="bfloat16", max_positions=2048)


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
    """Names of the Pallas kernels that a compiled program calls."""
    return sorted(re.findall(r"%(splash_mha_[a-z]+)\S* = .* custom-call\(", program))


@pytest.mark.parametrize("remat, forwards, sizes", [("full", 2, (1, 2, 2)), ("dots", 1, (1, 1, 4))])
def test_training_attends_by_splash_and_holds_no_matrix_of_scores(chips, remat, forwards, sizes):
    mesh, config = Mesh(chips.reshape(sizes), MESH_AXES), tiny_config(**{**vars(CONFIG), "remat": remat})
    rows = abstract(mesh, (4, TIME), jnp.int32, "batch", None)

    def loss(params, tokens, segments):
        return jnp.sum(hidden_states(config, params, tokens, None, segments, mesh).astype(jnp.float32))

    program = jax.jit(jax.grad(loss)).lower(parameters(config, mesh), rows, rows).compile().as_text()
    assert kernels(program) == ["splash_mha_dkv", "splash_mha_dq"] + ["splash_mha_fwd"] * forwards
    assert f"{TIME},{TIME}]" not in program


@pytest.mark.parametrize("tensor", [2, 4])  # there are two key-value heads
def test_decoding_moves_no_cache_between_devices(chips, tensor):
    mesh, slots, positions = Mesh(chips.reshape(4 // tensor, 1, tensor), MESH_AXES), 8, 640
    shared = logical_sharding(mesh, "layers", "slots", "heads", None, None)
    cache = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=shared),
        jax.eval_shape(functools.partial(empty_cache, CONFIG, slots, positions, mesh)),
    )
    step = abstract(mesh, (slots, 1), jnp.int32, "slots", None)
    jitted = jax.jit(functools.partial(forward, CONFIG), donate_argnums=3)
    program = jitted.lower(parameters(CONFIG, mesh), step, step, cache).compile().as_text()
    moved = re.findall(r" = (.*?) (?:all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", program)
    assert moved
    assert not [shape for shape in moved if str(positions) in shape]

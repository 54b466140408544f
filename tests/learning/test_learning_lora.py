"""Adapters under the update: only they are learned, kept and saved, and the frozen base is what it was."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learning_standin import trajectories
from support import tiny_config

from lcrag.learning import Layout, PolicyGradient, adamw, initial_state, make_score, pack
from lcrag.learning.learners import decoder_functions, policy_update
from lcrag.learning.update import make_gradients
from lcrag.policy import (
    Lora,
    add_lora,
    initialise,
    join,
    make_mesh,
    merge_lora,
    param_shardings,
    parameter_fingerprint,
    split_trainable,
)

PLAIN = tiny_config(vocabulary_size=64)
LORA = Lora(rank=2, alpha=4.0, targets=("attention/query", "attention/value", "mlp/down"))
BATCH = pack(trajectories(count=8, shortest=9, longest=16), Layout(rows=4, row_lengths=(48,)), shares=4)
OPTIMIZER = adamw(learning_rate=1e-2, steps=10)
ALONE = make_mesh(devices=jax.devices()[:1])


@functools.cache
def adapted(base_dtype="float32"):
    """(config, adapters, base)."""
    base = jax.tree.map(lambda leaf: leaf.astype(base_dtype), initialise(PLAIN, jax.random.key(0)))
    config, params = add_lora(PLAIN, base, LORA, jax.random.key(1))
    return config, *split_trainable(config, params)


def copied(tree):
    """Returns a copy that an update may donate."""
    return jax.tree.map(np.array, tree)


@functools.cache
def trained(base_dtype="float32", mesh=ALONE):
    """(config, state, base, metrics of every step) after three steps."""
    config, adapters, base = adapted(base_dtype)
    shardings, base_shardings = split_trainable(config, param_shardings(config, mesh))
    base = jax.device_put(base, base_shardings)
    update = policy_update(config, mesh, PolicyGradient(), OPTIMIZER)
    score = make_score(*decoder_functions(config, mesh), mesh)
    state = initial_state(copied(adapters), OPTIMIZER, mesh, shardings)
    measured = []
    for _ in range(3):
        batch = BATCH.replace(sampling_log_probabilities=np.asarray(score(state.params, BATCH, base)))
        state, metrics = update(state, batch, base)
        measured.append(metrics)
    return config, state, base, measured


@pytest.mark.parametrize("base_dtype", ["float32", "bfloat16"])
def test_only_the_adapters_are_learned(base_dtype):
    before = parameter_fingerprint(adapted(base_dtype)[2])
    config, state, base, measured = trained(base_dtype)
    assert parameter_fingerprint(base) == before
    assert {leaf.dtype for leaf in jax.tree.leaves(base)} == {jnp.dtype(base_dtype)}
    adapters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert adapters == 2 * 2 * ((32 + 32) + (32 + 16) + (48 + 32))
    moments = sum(leaf.size for leaf in jax.tree.leaves(state.optimizer_state) if leaf.ndim)
    assert moments == 2 * adapters
    assert all(jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(state.params))
    assert all(metrics["gradient_norm"] > 0 for metrics in measured)


def test_gradients_are_those_of_the_merged_weights():
    """dA = scale dW Bᵀ and dB = scale Aᵀ dW, with dW from the full update of the merged policy."""
    config, state, base, _ = trained()
    objective = PolicyGradient()
    found, loss, _ = jax.jit(make_gradients(*decoder_functions(config, ALONE), objective))(state.params, BATCH, base)
    plain, merged = merge_lora(config, join(state.params, base))
    full, full_loss, _ = jax.jit(make_gradients(*decoder_functions(plain, ALONE), objective))(merged, BATCH)
    np.testing.assert_allclose(loss, full_loss, rtol=1e-5)
    for room, name in (path.split("/") for path in LORA.targets):
        adapters, gradient = state.params["layers"][room][name], found["layers"][room][name]
        kernel = full["layers"][room][name]["kernel"] * LORA.scale
        down, up = adapters["lora_a"], adapters["lora_b"]
        np.testing.assert_allclose(gradient["lora_a"], kernel @ up.swapaxes(1, 2), rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(gradient["lora_b"], down.swapaxes(1, 2) @ kernel, rtol=1e-3, atol=1e-6)


def test_on_eight_devices_it_is_the_same():
    (_, alone, _, expected), (_, spread, _, found) = (trained(mesh=mesh) for mesh in (ALONE, make_mesh(2, 2, 2)))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["sampling_training_gap"] < 1e-5
        np.testing.assert_allclose(ours["gradient_norm"], theirs["gradient_norm"], rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), spread.params, alone.params)


def test_nothing_is_computed_for_the_frozen_base():
    """The compiled gradient has no room for the base's: not for its kernels, and not for its embedding."""
    config = tiny_config(vocabulary_size=4096, width=64, mlp_width=256)
    config, params = add_lora(config, initialise(config, jax.random.key(0)), LORA, jax.random.key(1))
    adapters, base = split_trainable(config, params)
    layout = pack(trajectories(count=2, shortest=9, longest=16), Layout(rows=1, row_lengths=(32,)))
    lowered = jax.jit(make_gradients(*decoder_functions(config, ALONE), PolicyGradient())).lower(adapters, layout, base)
    memory = lowered.compile().memory_analysis()
    assert memory.output_size_in_bytes < 2 * sum(leaf.nbytes for leaf in jax.tree.leaves(adapters))
    assert memory.temp_size_in_bytes < sum(leaf.nbytes for leaf in jax.tree.leaves(base)) + 8 * 32 * 4096 * 4


def test_a_fingerprint_is_of_every_bit_on_any_mesh():
    base = adapted()[2]
    name = parameter_fingerprint(base)
    assert len(name) == 16
    mesh = make_mesh(2, 2, 2)
    assert parameter_fingerprint(jax.device_put(base, param_shardings(PLAIN, mesh))) == name
    table = base["embedding"]
    changes = (
        table.at[5, 7].set(jnp.nextafter(table[5, 7], jnp.inf)),
        table.at[jnp.array([2, 3])].set(table[jnp.array([3, 2])]),
        table.astype(jnp.bfloat16),
        table.reshape(32, 64),
    )
    names = {parameter_fingerprint(base | {"embedding": changed}) for changed in changes}
    assert len(names | {name, parameter_fingerprint({"other": base})}) == 6

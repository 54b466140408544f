"""Sampling reads its parameters in the compute dtype, which saves bytes and changes no result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lcrag.policy import abstract_parameters, compute_parameters, hidden_states, make_mesh, unembed
from lcrag.sampling import Sampler, SamplerConfig, SamplingParameters
from lcrag.testing import tiny_config, tiny_tokenizer

NARROW = tiny_config(compute_dtype="bfloat16")
ENTRIES = {0: [5, 6, 7, 8], 1: [9, 10]}


def random_parameters(seed: int):
    """Far from their initial values, so that rounding shows."""
    draw = np.random.default_rng(seed).normal
    shapes = abstract_parameters(NARROW)
    return jax.tree.map(lambda leaf: jnp.asarray(draw(0.0, 0.1, leaf.shape), jnp.float32), shapes)


def sampled(sampler: Sampler) -> list:
    sampler.append(ENTRIES)
    sampler.begin({slot: SamplingParameters(max_tokens=8, episode=slot) for slot in ENTRIES})
    done: dict = {}
    while sampler.running:
        done |= sampler.decode()
    sampler.free(ENTRIES)
    return [(done[slot].tokens.tolist(), done[slot].log_probabilities.tolist()) for slot in ENTRIES]


def test_matrices_are_narrow_norms_are_wide_and_results_do_not_change_by_a_bit():
    params = random_parameters(0)
    found = compute_parameters(NARROW, params)
    for path, leaf in jax.tree.leaves_with_path(found):
        assert leaf.dtype == ("float32" if "scale" in jax.tree_util.keystr(path) else "bfloat16")
    tokens = jnp.arange(24).reshape(2, 12)
    logits = jax.jit(lambda each: unembed(NARROW, each, hidden_states(NARROW, each, tokens)))
    np.testing.assert_array_equal(logits(params), logits(found))


@pytest.mark.parametrize("config", [tiny_config(), NARROW], ids=["float32", "bfloat16"])
def test_parameters_that_serve_as_they_are_are_not_copied(config):
    params = compute_parameters(config, random_parameters(0))
    again = compute_parameters(config, params)
    assert all(one is other for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True))


def test_new_masters_replace_the_samplers_copy():
    """A sampler samples from the masters it was last given, on one device and on several."""
    first, second = random_parameters(0), random_parameters(1)
    options = SamplerConfig(slots=2, context=32, block=4, append_tokens=(8,))
    sampler = Sampler(NARROW, first, tiny_tokenizer(), options)
    before = sampled(sampler)
    sampler.set_params(second)
    after = sampled(sampler)
    assert before != after
    assert after == sampled(Sampler(NARROW, second, tiny_tokenizer(), options))
    sampler.set_params(compute_parameters(NARROW, first))
    assert sampled(sampler) == before
    mesh = make_mesh(data=2, fsdp=1, tensor=1, devices=jax.devices()[:2])
    spread = sampled(Sampler(NARROW, first, tiny_tokenizer(), options, mesh))
    assert [tokens for tokens, _ in spread] == [tokens for tokens, _ in before]

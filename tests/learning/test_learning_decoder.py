"""The real decoder under the update: gradients against PyTorch, and packing as a layout on one device and on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import torch
from learning_standin import trajectories
from support import tiny_config, tiny_gemma
from support.products import product_flops
from support.random_decoders import saved_decoder

from lcrag.learning import Layout, PolicyGradient, Trajectory, adamw, initial_state, make_score, pack
from lcrag.learning.learners import decoder_functions, policy_update
from lcrag.learning.update import make_gradients
from lcrag.policy import (
    Lora,
    add_lora,
    initialise,
    join,
    load_hugging_face,
    make_mesh,
    merge_lora,
    param_shardings,
    parameter_fingerprint,
    save_hugging_face,
    split_trainable,
)
from lcrag.policy.attention import attended_positions
from lcrag.policy.parameters import update_flops

CONFIG = tiny_config(vocabulary_size=64)
ALONE = make_mesh(devices=jax.devices()[:1])
TOLERANCE = 1e-4  # of each parameter's gradient, in its Euclidean norm
TEMPERATURE, CLIP_LOW, CLIP_HIGH, KL_COEFFICIENT = 0.8, 0.2, 0.28, 0.1
LENGTHS = (24, 9, 17, 3)


def metrics_of_update(config, batch, mesh):
    shardings, optimizer = param_shardings(config, mesh), adamw(learning_rate=1e-3, steps=1)
    score = make_score(*decoder_functions(config, mesh), mesh, 1.2)
    update = policy_update(config, mesh, PolicyGradient(), optimizer, 1.2)
    state = initial_state(initialise(config, jax.random.key(0), mesh), optimizer, mesh, shardings)
    batch = batch.replace(sampling_log_probabilities=np.asarray(score(state.params, batch)))
    return update(state, batch)[1]


def test_packed_on_eight_devices_equals_padded_on_one():
    """With windows; without them, see the adapters below."""
    config = tiny_config(**(vars(CONFIG) | tiny_gemma()))
    episodes = trajectories(count=8, shortest=9, longest=16)
    alone = pack(episodes, Layout(rows=4, row_lengths=(16,)))
    packed = pack(episodes, Layout(rows=4, row_lengths=(48,), short_row_length=32), shares=4)
    assert (alone.segments.max(), packed.segments.max()) == (1, 4)
    expected = metrics_of_update(config, alone, ALONE)
    found = metrics_of_update(config, packed, make_mesh(2, 2, 2))
    assert all(each["sampling_training_gap"] < 1e-5 for each in (expected, found))
    for name in expected.keys() - {"sampling_training_gap"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_a_micro_batch_executes_what_the_formula_counts():
    """Each policy position is unembedded once, logits are not computed again, and blocks of queries skip later keys.

    Only the scores of attention are computed again, in the backward pass.
    """
    episodes = trajectories(count=12, shortest=20, longest=60)
    batch = pack(episodes, Layout(rows=2, row_lengths=(200,), policy_shares=(0.5, 0.75)))
    optimizer = adamw(learning_rate=1e-3, steps=1)
    state = jax.eval_shape(lambda: initial_state(initialise(CONFIG, jax.random.key(0)), optimizer))
    traced = policy_update(CONFIG, ALONE, PolicyGradient(), optimizer).jitted.trace(state, batch, None)
    sizes = {"tokens": 2 * 200, "attended": attended_positions(200), "unembedded": batch.sources.shape[-1]}
    assert attended_positions(200) < 200
    scores = 2 * CONFIG.layers * CONFIG.heads * CONFIG.head_width * sizes["tokens"] * sizes["attended"]
    assert product_flops(traced.jaxpr) == update_flops(CONFIG, **sizes) + scores


def log_probabilities_in_torch(model, tokens) -> torch.Tensor:
    """Of each token but the first, given those before it."""
    tokens = torch.tensor(tokens, dtype=torch.int64)
    scores = torch.log_softmax(model(tokens[None]).logits[0, :-1] / TEMPERATURE, dim=-1)
    return scores.gather(1, tokens[1:, None])[:, 0]


def reference_of(sampling):
    """Log-probabilities as of a reference policy: near those recorded, never equal."""
    return 1.1 * sampling + 0.05


def grpo_in_torch(model, episodes) -> torch.Tensor:
    """One episode at a time: no padding, no packing, no masks beyond the choice of the policy's own tokens."""
    total = torch.zeros(())
    for episode in episodes:
        own = torch.tensor(episode.by_policy[1:])
        now = log_probabilities_in_torch(model, episode.tokens)[own]
        before = torch.tensor(episode.log_probabilities[1:])[own]
        ratio = torch.exp(now - before)
        bounded = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        gain = torch.minimum(ratio * episode.advantage, bounded * episode.advantage)
        log_ratio = reference_of(before) - now
        divergence = torch.exp(log_ratio) - log_ratio - 1
        total = total + (KL_COEFFICIENT * divergence - gain).mean()
    return total / len(episodes)


def random_episodes(model) -> list[Trajectory]:
    """Texts half of which the policy wrote, a little earlier: some ratios are beyond the clip."""
    random = np.random.default_rng(0)
    episodes = []
    for length in LENGTHS:
        tokens = random.integers(0, model.config.vocab_size, length).astype(np.int32)
        by_policy = random.random(length) < 0.5
        by_policy[0], by_policy[-1] = False, True
        with torch.no_grad():
            now = log_probabilities_in_torch(model, tokens).numpy()
        recorded = np.concatenate([[0.0], now + random.normal(0, 0.3, length - 1)]).astype(np.float32)
        episodes.append(Trajectory(tokens, by_policy, recorded, float(random.normal())))
    return episodes


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma3_capped"])
def test_the_gradient_of_every_parameter(name, tmp_path):
    """Several episodes a row, two micro-batches."""
    model, (config, params) = saved_decoder(tmp_path, name), load_hugging_face(tmp_path)
    episodes = random_episodes(model)
    objective = PolicyGradient(clip_low=CLIP_LOW, clip_high=CLIP_HIGH, kl_coefficient=KL_COEFFICIENT)
    batch = pack(episodes, Layout(rows=1, row_lengths=(32,)))
    assert batch.tokens.shape[0] == 2
    batch = batch.replace(reference_log_probabilities=reference_of(batch.sampling_log_probabilities))
    gradients = jax.jit(make_gradients(*decoder_functions(config, ALONE), objective, TEMPERATURE))
    gradient, value, metrics = gradients(params, batch)
    assert min(metrics["ratio/clipped_low"], metrics["ratio/clipped_high"]) > 0
    model.zero_grad()
    loss = grpo_in_torch(model, episodes)
    loss.backward()
    np.testing.assert_allclose(value, loss.item(), rtol=1e-4)
    save_hugging_face(tmp_path / "gradient", config, jax.device_get(gradient), dtype="float32")
    found = safetensors.numpy.load_file(tmp_path / "gradient" / "model.safetensors")
    expected = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        assert np.linalg.norm(found[name] - exact) <= TOLERANCE * np.linalg.norm(exact), name


# --- Adapters: only they are learned, kept and saved, and the frozen base is what it was.

LORA = Lora(rank=2, alpha=4.0, targets=("attention/query", "attention/value", "mlp/down"))
BATCH = pack(trajectories(count=8, shortest=9, longest=16), Layout(rows=4, row_lengths=(48,)), shares=4)
OPTIMIZER = adamw(learning_rate=1e-2, steps=10)


@functools.cache
def adapted(base_dtype="float32"):
    config, params = add_lora(CONFIG, initialise(CONFIG, jax.random.key(0)), LORA, jax.random.key(1))
    adapters, base = split_trainable(config, params)
    return config, adapters, jax.tree.map(lambda leaf: leaf.astype(base_dtype), base)


@functools.cache
def trained(mesh=ALONE, base_dtype="float32"):
    """(config, state, base, metrics of every step) after three steps."""
    config, adapters, base = adapted(base_dtype)
    shardings, base_shardings = split_trainable(config, param_shardings(config, mesh))
    base = jax.device_put(base, base_shardings)
    update = policy_update(config, mesh, PolicyGradient(), OPTIMIZER)
    score = make_score(*decoder_functions(config, mesh), mesh)
    state = initial_state(jax.tree.map(np.array, adapters), OPTIMIZER, mesh, shardings)
    measured = []
    for _ in range(3):
        batch = BATCH.replace(sampling_log_probabilities=np.asarray(score(state.params, BATCH, base)))
        state, metrics = update(state, batch, base)
        measured.append(metrics)
    return config, state, base, measured


@pytest.mark.parametrize("base_dtype", ["float32", "bfloat16"])
def test_only_the_adapters_are_learned(base_dtype):
    before = parameter_fingerprint(adapted(base_dtype)[2])
    config, state, base, measured = trained(base_dtype=base_dtype)
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
    moments = jax.tree.leaves(spread.optimizer_state[1][0].mu)
    assert [each.sharding for each in moments] == [each.sharding for each in jax.tree.leaves(spread.params)]


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
    assert parameter_fingerprint(jax.device_put(base, param_shardings(CONFIG, mesh))) == name
    table = base["embedding"]
    changes = (
        table.at[5, 7].set(jnp.nextafter(table[5, 7], jnp.inf)),
        table.at[jnp.array([2, 3])].set(table[jnp.array([3, 2])]),
        table.astype(jnp.bfloat16),
        table.reshape(32, 64),
    )
    names = {parameter_fingerprint(base | {"embedding": changed}) for changed in changes}
    assert len(names | {name, parameter_fingerprint({"other": base})}) == 6

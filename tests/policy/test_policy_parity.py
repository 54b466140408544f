"""The decoder against `transformers` on PyTorch, and the checkpoint folders between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from lcrag.errors import UserError
from lcrag.policy import RopeScaling, initialise, load_hugging_face, logits, save_hugging_face
from lcrag.testing import tiny_config

SCALING = RopeScaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=32)
VARIANTS = {
    "qwen3, head wider than its share": {"family": "qwen3", "head_width": 16},
    "qwen2, biases, untied": {"family": "qwen2", "tie_embeddings": False},
    "llama, scaled rotation": {"family": "llama", "rope_scaling": SCALING, "rope_theta": 500_000.0},
}


def random_parameters(config, seed=0):
    """Every parameter random, norms and biases too, so that each one matters."""
    leaves, tree = jax.tree.flatten(initialise(config, jax.random.key(seed)))
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    noise = [leaf + 0.1 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, noise)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_those_of_transformers(tmp_path, changes):
    config = tiny_config(**changes)
    params = random_parameters(config)
    save_hugging_face(tmp_path, config, params)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    tokens = np.random.default_rng(0).integers(0, config.vocabulary_size, (3, 100))
    with torch.no_grad():
        expected = model(torch.tensor(tokens)).logits.numpy()
    got = np.asarray(logits(config, params, jnp.asarray(tokens)))
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    np.testing.assert_array_equal(got.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_round_trip_is_exact(tmp_path, dtype):
    config = tiny_config()
    params = random_parameters(config)
    save_hugging_face(tmp_path / "a", config, params, dtype=dtype)
    read_config, read = load_hugging_face(tmp_path / "a", dtype=dtype)
    assert read_config == config
    save_hugging_face(tmp_path / "b", config, read, dtype=dtype)
    _, again = load_hugging_face(tmp_path / "b", dtype=dtype)
    jax.tree.map(np.testing.assert_array_equal, read, again)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.astype(jnp.float32), rtol=1e-2), params, read)


def test_mistakes_name_the_file_and_the_tensor(tmp_path):
    with pytest.raises(UserError, match="expected the file config.json"):
        load_hugging_face(tmp_path)
    config = tiny_config()
    save_hugging_face(tmp_path, config, initialise(config, jax.random.key(0)))
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(UserError, match="model.layers.2"):
        load_hugging_face(tmp_path)
    path.write_text(path.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 2'))
    path.write_text(path.read_text().replace('"intermediate_size": 48', '"intermediate_size": 64'))
    with pytest.raises(UserError, match="mlp.*has shape"):
        load_hugging_face(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="cannot be read"):
        load_hugging_face(tmp_path)
    weights.unlink()
    with pytest.raises(UserError, match="no weights"):
        load_hugging_face(tmp_path)
    path.write_text(path.read_text().replace('"qwen3"', '"mamba"'))
    with pytest.raises(UserError, match="mamba"):
        load_hugging_face(tmp_path)

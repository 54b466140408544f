"""What a prompt given as text becomes: the tokenizer's beginning, once, and control tokens where they are written."""

import dataclasses

import jax
import numpy as np

from lcrag.policy import initialise
from lcrag.sampling import generate
from lcrag.testing import tiny_config, tiny_tokenizer


def test_a_prompt_begins_once_with_what_the_tokenizer_asks_for():
    [eos] = tiny_tokenizer().eos_ids
    tokenizer = dataclasses.replace(tiny_tokenizer(), beginning_ids=(eos,))
    config = tiny_config(layers=1)
    params = initialise(config, jax.random.key(0))
    prompts = ["EUR", "<eos>EUR", [eos, *tokenizer.encode("EUR")]]
    first, *others = generate(config, params, tokenizer, prompts, max_tokens=6, temperature=0.0)
    for other in others:
        np.testing.assert_array_equal(first.tokens, other.tokens)
        np.testing.assert_allclose(first.log_probabilities, other.log_probabilities, rtol=1e-5)
    [without] = generate(config, params, tiny_tokenizer(), ["EUR"], max_tokens=6, temperature=0.0)
    assert np.abs(first.log_probabilities[:1] - without.log_probabilities[:1]).max() > 1e-4

"""`generate`: greedy generation against `transformers` on PyTorch, stop strings and how prompts begin."""

import dataclasses

import jax
import numpy as np
import pytest
import torch
from support import tiny_config, tiny_tokenizer
from support.random_decoders import DECODERS, saved_decoder

from lcrag.errors import UserError
from lcrag.policy import initialise, load_hugging_face
from lcrag.sampling import generate

TOKENS = 64
PROMPT_LENGTHS = (3, 70, 21, 1, 40)  # more than the slots, so that one is admitted late


def greedy_of_transformers(model, prompts) -> list[list[int]]:
    """Continues each prompt without an end; the prompts form one batch, padded on the left."""
    longest = max(map(len, prompts))
    rows = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        new = model.generate(rows, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return new[:, longest:].tolist()


def until(tokens: list[int], ends: tuple[int, ...]) -> list[int]:
    """The tokens up to and including the first that ends a text."""
    return tokens[: next((place for place, token in enumerate(tokens) if token in ends), TOKENS) + 1]


@pytest.fixture(scope="module", params=DECODERS)
def models(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return saved_decoder(folder, request.param), *load_hugging_face(folder)


def ending(endless: list[list[int]]) -> tuple[int, int]:
    """Returns two ids: one that no text has, and one from the middle of the first text that some other text lacks."""
    here = next(token for token in endless[0][TOKENS // 4 :] if any(token not in text for text in endless[1:]))
    return min(set(range(TOKENS * len(endless) + 1)).difference(*endless)), here


def test_sixty_four_greedy_tokens_and_every_end(models):
    """Two ids end a text; those that hold neither go on to the last token."""
    model, config, params = models
    random = np.random.default_rng(1)
    prompts = [random.integers(0, config.vocabulary_size, length).tolist() for length in PROMPT_LENGTHS]
    endless = greedy_of_transformers(model, prompts)
    ends = ending(endless)
    tokenizer = dataclasses.replace(tiny_tokenizer(), eos_ids=ends)
    results = generate(config, params, tokenizer, prompts, max_tokens=TOKENS, temperature=0.0, slots=4)
    expected = [until(tokens, ends) for tokens in endless]
    assert [result.tokens.tolist() for result in results] == expected
    reasons = ["eos" if tokens[-1] in ends else "length" for tokens in expected]
    assert [result.finish_reason for result in results] == reasons
    assert {"eos", "length"} == set(reasons)


@pytest.fixture(scope="module")
def tiny():
    return tiny_config(), initialise(tiny_config(), jax.random.key(0))


def test_text_ends_with_the_stop_string(tiny):
    prompt = "Hello there"
    [free] = generate(*tiny, tiny_tokenizer(), [prompt], max_tokens=9, temperature=0.0)
    text = tiny_tokenizer().decode(free.tokens[:3])
    [stopped] = generate(*tiny, tiny_tokenizer(), [prompt], (text[-1],), max_tokens=9, temperature=0.0)
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(text[-1]) + 1]


def test_a_model_may_have_more_rows_than_its_tokenizer_has_tokens():
    config = tiny_config(vocabulary_size=tiny_tokenizer().vocabulary_size + 40)
    params = initialise(config, jax.random.key(0))
    params["embedding"] = params["embedding"].at[-40:].multiply(30)  # unused rows are sampled now and then
    [result] = generate(config, params, tiny_tokenizer(), ["abc"], ("zz",), max_tokens=30, temperature=2.0)
    assert len(result.tokens) == 30
    assert result.tokens.max() >= tiny_tokenizer().vocabulary_size


def test_an_empty_or_overlong_prompt_is_refused(tiny):
    with pytest.raises(UserError, match="prompt 1 is empty"):
        generate(*tiny, tiny_tokenizer(), ["a", ""], max_tokens=2)
    with pytest.raises(UserError, match="leaves no room"):
        generate(*tiny, tiny_tokenizer(), ["word " * 300], max_tokens=2)


def test_a_second_call_of_similar_size_compiles_nothing(tiny):
    prompts = ["Hello there", "EUR", "Rome"]
    first = generate(*tiny, tiny_tokenizer(), prompts, max_tokens=9)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
    second = generate(*tiny, tiny_tokenizer(), [*prompts, "a"], max_tokens=11)
    assert not [name for name in compiled if "backend_compile" in name]
    for one, other in zip(first, second, strict=False):
        assert one.tokens.tolist() == other.tokens[: len(one.tokens)].tolist()


def test_a_prompt_begins_once_with_the_beginning_ids(tiny):
    [eos], (config, params) = tiny_tokenizer().eos_ids, tiny
    tokenizer = dataclasses.replace(tiny_tokenizer(), beginning_ids=(eos,))
    prompts = ["EUR", "<eos>EUR", [eos, *tokenizer.encode("EUR")]]
    first, *others = generate(config, params, tokenizer, prompts, max_tokens=6, temperature=0.0)
    for other in others:
        np.testing.assert_array_equal(first.tokens, other.tokens)
        np.testing.assert_allclose(first.log_probabilities, other.log_probabilities, rtol=1e-5)
    [without] = generate(config, params, tiny_tokenizer(), ["EUR"], max_tokens=6, temperature=0.0)
    assert np.abs(first.log_probabilities[:1] - without.log_probabilities[:1]).max() > 1e-4

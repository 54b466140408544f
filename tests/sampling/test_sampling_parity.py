"""Greedy generation against `transformers` on PyTorch: the same tokens, prompt by prompt."""

import dataclasses

import numpy as np
import pytest
import torch

from lcrag.policy import load_hugging_face
from lcrag.sampling import generate
from lcrag.testing import tiny_tokenizer
from lcrag.testing.random_decoders import DECODERS, saved_decoder

TOKENS = 64
PROMPT_LENGTHS = (3, 70, 21, 1, 40)  # more than the slots, so that one is admitted late


def greedy_of_transformers(model, prompts) -> list[list[int]]:
    """What the model continues each prompt with, endlessly; the prompts form one batch, padded on the left."""
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
    """Two ids: one that no text has, and one in the midst of the first text that some other text lacks."""
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

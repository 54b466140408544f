"""A tiny encoder, and passages to search, that the retrieval tests share."""

import pytest
from support import tiny_tokenizer

from lcrag.retrieval import BertConfig, EncoderSettings, Passage, initialise_encoder


@pytest.fixture(scope="session")
def config():
    return BertConfig(
        vocab_size=384,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )


@pytest.fixture(scope="session")
def encoder(config):
    return initialise_encoder(config, EncoderSettings(max_tokens=32), tiny_tokenizer().backend)


@pytest.fixture(scope="session")
def many():
    return [Passage(id=f"p{row}", title=f"Title {row}", text=f"Text of number {row * 7919}.") for row in range(20)]


@pytest.fixture
def passages(many):
    return list(many)

"""The atlas's tokenizer, whose names and values keep their tokens, and its encoder."""

import pathlib

import atlas_weights
import jax.numpy as jnp
import numpy as np
import pytest
from contrastive import ContrastiveConfig, info_nce
from transformers import PreTrainedTokenizerFast

import lcrag.atlas
from lcrag.atlas import build_world
from lcrag.atlas.world import SHIPPED_TOKENIZER, Entry
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.episodes import RETHINK
from lcrag.policy import load_tokenizer
from lcrag.retrieval import load_encoder

WORLD = build_world(seed=0)
FACTS = {fact.id: fact for fact in WORLD.facts}
TOKENIZER = load_tokenizer(SHIPPED_TOKENIZER)


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[start : start + len(part)] == part for start in range(len(whole) - len(part) + 1))


@pytest.mark.parametrize("language", ["en", "ja", "ar", "th"])
def test_a_value_and_a_name_are_the_same_tokens_everywhere(language):
    for question in WORLD.questions("held_out", [language]) + WORLD.questions("unseen", [language]):
        name = TOKENIZER.encode(f" {question.extra['entity']}")
        fact = FACTS[question.id]
        told = WORLD.written_passage("", language, [(fact, Entry(fact.value, 2020)), (fact, Entry(fact.value, None))])
        passage = TOKENIZER.encode(f" {atlas_weights.render_passage(told)}\n")
        value = TOKENIZER.encode(f" {question.answers[0]}")
        assert passage[: len(name)] == name
        assert passage[-1 - len(value) : -1] == value
        assert contains(passage[: -len(value)], value)
        assert contains(TOKENIZER.encode(question.text), name)
        assert TOKENIZER.encode(f"<search> {question.extra['query']}</search>")[1 : 1 + len(name)] == name
        assert TOKENIZER.encode(f"<answer> {question.answers[0]}</answer>")[1:-1] == value


def test_training_again_gives_the_shipped_tokenizer(tmp_path):
    atlas_weights.train_tokenizer(WORLD, [f" {RETHINK.strip()}"] * 500).save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).fingerprint() == TOKENIZER.fingerprint()


def test_the_file_opens_in_transformers():
    fast = PreTrainedTokenizerFast(tokenizer_file=str(SHIPPED_TOKENIZER / "tokenizer.json"))
    text = " France: currency code: EUR\n<answer> EUR</answer>"
    assert fast(text).input_ids == TOKENIZER.encode(text)


ENCODER = pathlib.Path(lcrag.atlas.__file__).parent / "weights" / "encoder"


def test_training_of_an_encoder_runs():
    config = ContrastiveConfig(steps=2, batch=8, tokens=8)
    encoder = atlas_weights.train_atlas_encoder(WORLD, TOKENIZER.backend, config, 0, lambda *_: None)
    assert encoder.encode(["x"]).shape == (1, 128)


@pytest.mark.parametrize("groups", [[0, 1, 2, 3, 4], [0, 0, 1, 1, 2], [0, 0, 0, 0, 0]])
def test_the_contrastive_loss_is_the_plain_one(groups):
    queries, passages = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    expected, scores = 0.0, queries @ passages.T / 0.5
    for matrix in (scores, scores.T):
        for row in range(len(groups)):
            rivals = [column for column in range(len(groups)) if column == row or groups[column] != groups[row]]
            expected -= np.log(np.exp(matrix[row, row]) / np.exp(matrix[row, rivals]).sum())
    loss = info_nce(jnp.asarray(queries), jnp.asarray(passages), jnp.asarray(groups), 0.5)
    np.testing.assert_allclose(loss, expected / (2 * len(groups)), rtol=1e-5)


@pytest.mark.parametrize(
    "languages", [("en", "fi", "zh"), pytest.param(LCRL_LANGUAGES, marks=pytest.mark.slow)], ids=["three", "all"]
)
def test_the_shipped_encoder_finds_held_out_facts(languages):
    encoder = load_encoder(ENCODER)
    assert encoder.fingerprint() in (ENCODER / "README.md").read_text()
    collections = atlas_weights.encode_collections(WORLD, encoder, languages)
    recall = atlas_weights.measure_recall(WORLD, encoder, collections, "held_out", "query")
    native, across = atlas_weights.native_and_cross(recall)
    assert native[0] >= 0.98
    assert across[0] >= 0.9
    assert np.all(recall[..., 1] >= recall[..., 0])
    assert sum(path.stat().st_size for path in ENCODER.rglob("*")) <= 3e6

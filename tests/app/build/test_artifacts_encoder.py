"""The atlas's encoder: what it is trained on, and that the shipped one finds what its card says."""

import itertools
import pathlib

import numpy as np
import pytest

import lcrag.atlas
from lcrag.app.commands.build import encoder as artifact
from lcrag.atlas import build_world
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.policy import load_tokenizer
from lcrag.retrieval import ContrastiveConfig, load_encoder

SHIPPED = pathlib.Path(lcrag.atlas.__file__).parent / "weights" / "encoder"
BATCH = 64


@pytest.fixture(scope="module")
def world():
    return build_world(seed=0)


@pytest.fixture(scope="module")
def pairs(world):
    return list(itertools.islice(artifact.atlas_pairs(world, BATCH, seed=0), 60 * BATCH))


def test_only_training_facts_and_their_own_passages(world, pairs):
    facts = {fact.id: fact for fact in world.facts}
    for pair in pairs:
        assert world.splits[pair.group] == "train"
        told = [world.passage(facts[pair.group], language) for language in LCRL_LANGUAGES]
        assert pair.passage in {f"{passage.title} {passage.text}" for passage in told}


def test_no_name_of_an_unseen_entity_is_asked(world, pairs):
    measured = artifact._measured_questions(world, "unseen", "en")
    unseen = {tuple(question.extra["subject"]) for question in measured}
    assert len(unseen) >= 20
    facts = {fact.id: fact for fact in world.facts}
    asked = {tuple(world.question(facts[pair.group], "en").extra["subject"]) for pair in pairs}
    assert not asked & unseen


def test_a_batch_has_one_collection_language_and_many_asked(world, pairs):
    names = {language: {p.text.split(":")[0] for p in world.passages(language)} for language in LCRL_LANGUAGES}
    for start in range(0, len(pairs), BATCH):
        labels = [pair.passage for pair in pairs[start : start + BATCH]]
        assert any(all(any(name in text for name in names[language]) for text in labels) for language in names)
        groups = [pair.group for pair in pairs[start : start + BATCH]]
        assert len(set(groups)) == BATCH


def test_pairs_are_a_function_of_the_seed(world, pairs):
    again = itertools.islice(artifact.atlas_pairs(world, BATCH, seed=0), 3 * BATCH)
    other = itertools.islice(artifact.atlas_pairs(world, BATCH, seed=1), 3 * BATCH)
    assert list(again) == pairs[: 3 * BATCH] != list(other)


def test_training_runs(world):
    tokenizer = load_tokenizer(artifact.TOKENIZER_FOLDER).backend
    config = ContrastiveConfig(steps=2, batch=8, tokens=8)
    encoder = artifact.train_atlas_encoder(world, tokenizer, config, 0, lambda *_: None)
    assert encoder.encode(["x"]).shape == (1, 128)


@pytest.mark.parametrize(
    "languages", [("en", "fi", "zh"), pytest.param(LCRL_LANGUAGES, marks=pytest.mark.slow)], ids=["three", "all"]
)
def test_the_shipped_encoder_finds_held_out_facts(world, monkeypatch, languages):
    monkeypatch.setattr(artifact, "LCRL_LANGUAGES", languages)
    encoder = load_encoder(SHIPPED)
    assert encoder.fingerprint() in (SHIPPED / "README.md").read_text()
    collections = artifact.encode_collections(world, encoder)
    recall = artifact.measure_recall(world, encoder, collections, "held_out", "query")
    native, across = artifact.native_and_cross(recall)
    assert native[0] >= 0.98
    assert across[0] >= 0.9
    assert np.all(recall[..., 1] >= recall[..., 0])
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) <= 3e6

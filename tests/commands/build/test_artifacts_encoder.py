"""The atlas's encoder: what it is trained on, and that the shipped one finds what its card says."""

import itertools
import pathlib

import numpy as np
import pytest

import lcrag.atlas
from lcrag.atlas import build_world
from lcrag.atlas.fact_sampler import FactSampler
from lcrag.atlas.facts import section_of, subject_of
from lcrag.atlas.oracle import Oracle
from lcrag.commands.build import encoder as artifact
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


def test_only_training_facts_are_told_by_passages_of_their_section(world, pairs):
    sections = {section_of(fact) for fact in world.facts}
    for pair in pairs[: 10 * BATCH]:
        assert pair.group in sections
    titles = {
        language: {world.name(subject_of(fact), language).text for fact in world.facts} for language in LCRL_LANGUAGES
    }
    for start in range(0, 10 * BATCH, BATCH):
        told = [pair.passage for pair in pairs[start : start + BATCH]]
        assert any(all(text.startswith(tuple(names)) for text in told) for names in titles.values())


def test_passages_state_training_facts_only(world):
    generator, facts = np.random.default_rng(0), FactSampler(world)
    for _ in range(200):
        passage = facts.passage(generator, facts.any(generator), "en")
        said = Oracle().readings([f"<information>\n {passage.title}: {passage.text}\n</information>"])
        assert {world.splits[f"{each.relation}/{each.subject}"] for each in said} == {"train"}


def test_no_name_of_an_unseen_entity_is_asked(world, pairs):
    measured = artifact._measured_questions(world, "unseen", "en")
    unseen = {tuple(question.extra["subject"]) for question in measured}
    assert len(unseen) >= 20
    asked = {tuple(pair.group.split("/")[:2]) for pair in pairs}
    assert not asked & unseen


def test_a_batch_asks_about_many_sections(pairs):
    for start in range(0, len(pairs), BATCH):
        groups = {pair.group for pair in pairs[start : start + BATCH]}
        assert BATCH / 4 < len(groups) <= BATCH


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

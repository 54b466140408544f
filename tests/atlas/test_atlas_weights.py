"""The making of the atlas's weights: rows of the pre-tasks, none of them held out; stages that continue."""

import itertools
import re

import atlas_weights
import jax
import numpy as np
import pytest
from atlas_weights import copying_rows, judging_rows, noting_rows, reading_rows, translating_rows
from support import tiny_config

from lcrag.atlas import SPLITS, build_world
from lcrag.atlas.oracle import read_texts
from lcrag.atlas.world import SHIPPED_TOKENIZER
from lcrag.learning import Layout
from lcrag.policy import initialise, load_tokenizer

WORLD, TOKENIZER = build_world(0), load_tokenizer(SHIPPED_TOKENIZER)


def first(rows, count, seed=0):
    return list(itertools.islice(rows(WORLD, TOKENIZER, seed=seed), count))


def wanted_in(row):
    return TOKENIZER.decode(row.tokens[row.by_policy])


def readings_in(*lines):
    return read_texts(f"<information>\n{line}\n</information>" for line in lines)


def facts_in(*lines):
    return {f"{each.relation}/{each.subject}" for each in readings_in(*lines)}


def test_pre_tasks_never_show_a_held_out_fact():
    kept_back = [split for split in SPLITS if split != "train"]
    asked = {question.text for split in kept_back for question in WORLD.questions(split, hops=(1, 2, 3, 4))}
    held_out = {fact.id for fact in WORLD.facts if WORLD.splits[fact.id] in kept_back}
    for rows in (reading_rows, judging_rows, noting_rows, translating_rows):
        for row in first(rows, 100, seed=1):
            lines = TOKENIZER.decode(row.tokens).split("\n")
            assert not asked & set(lines), rows
            assert not facts_in(*lines) & held_out, rows


def test_reading_asks_for_keywords_and_judging_answers_only_what_it_is_shown():
    for row in first(reading_rows, 100, seed=1):
        assert re.fullmatch(r"[^\n]+\n[^\n]+\n", wanted_in(row))
    answered = []
    for row in first(judging_rows, 200):
        answered.append(wanted_in(row).strip() != "?")
        if answered[-1]:
            assert facts_in(*TOKENIZER.decode(row.tokens).split("\n")) & facts_in(wanted_in(row))
    assert 0.4 < np.mean(answered) < 0.9


def fitted(folder, progress):
    config = tiny_config()
    return atlas_weights.fit(
        config,
        initialise(config, jax.random.key(0)),
        itertools.cycle(itertools.islice(copying_rows(config.vocabulary_size, 4, seed=0), 3)),
        steps=12,
        tokens_per_step=256,
        learning_rate=1e-2,
        layout=Layout(rows=2, row_lengths=(128,)),
        progress=progress,
        folder=folder,
    )


def test_fitting_lowers_the_loss_and_an_interrupted_stage_continues(tmp_path, monkeypatch):
    def interrupted(step, metrics):
        if step == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(atlas_weights, "CHECKPOINT_EVERY", 5)
    losses, steps = [], []
    whole = fitted(tmp_path / "whole", lambda step, metrics: losses.append(metrics["loss/supervised"]))
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.5
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "parts", interrupted)
    again = fitted(tmp_path / "parts", lambda step, metrics: steps.append(step))
    assert steps == list(range(6, 13))
    jax.tree.map(np.testing.assert_array_equal, again, whole)

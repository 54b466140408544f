"""What the tiny policy is taught: copying, reading, clean demonstrations and random searches, none of it held out."""

import itertools

import jax
import numpy as np
import pytest

from lcrag.app.commands.build.policy import atlas_decoder, fit
from lcrag.app.commands.build.pretask_rows import COPYING_TOKENS, copying_rows, reading_rows
from lcrag.atlas import build_world
from lcrag.atlas.oracle import FactSampler, Oracle, RandomSearcher
from lcrag.atlas.vocabulary import SHIPPED_FOLDER
from lcrag.atlas.wording import UNKNOWN
from lcrag.curation.oracle_demonstrations import Demonstrator
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.learning import Layout
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.policy import initialise, load_tokenizer, parameter_count
from lcrag.retrieval import Hit
from lcrag.testing import tiny_config


@pytest.fixture(autouse=True)
def few_together(monkeypatch):
    """Demonstrators play few episodes at once: 24 are read."""
    monkeypatch.setattr("lcrag.curation.oracle_demonstrations.TOGETHER", 24)


@pytest.fixture(scope="module")
def world():
    return build_world(0)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(SHIPPED_FOLDER)


def perfect_search(world):
    """The passage of the asked fact where a collection holds one, else one about something else."""
    facts = {fact.id: fact for fact in world.facts}
    asked = {q.extra["query"]: q.id for q in world.questions("train", hops=1)}

    def hit(query: str, language: str) -> Hit:
        fact = facts[asked[query]]
        outdated = fact.id in world.holdings.outdated[language]
        if not outdated and fact.id not in world.holdings.current[language]:
            fact = next(
                f for f in world.facts if f.id in world.holdings.current[language] and f.relation == fact.relation
            )
            outdated = False
        passage = world.passage(fact, language, fact.outdated if outdated else None)
        return Hit(id=passage.id, title=passage.title, text=passage.text, score=1.0, language=language)

    return lambda queries, languages, k: [[hit(q, language)] for q, language in zip(queries, languages, strict=True)]


def program(question):
    return hierarchical_search(
        question, LCRL_LANGUAGES, budget=2, passages=1, prompt="atlas", style="atlas", observation_tokens=190
    )


def test_copied_tokens_have_been_seen_before_in_the_same_surroundings():
    for row in itertools.islice(copying_rows(4096, 4, seed=0), 12):
        assert len(row.tokens) == COPYING_TOKENS
        assert not row.by_policy[0]
        for place in np.flatnonzero(row.by_policy):
            pair = tuple(row.tokens[place - 1 : place + 1])
            before = list(zip(row.tokens[: place - 1], row.tokens[1:place], strict=True))
            assert pair in before


def test_told_facts_keep_their_kind_and_are_mostly_counterfactual(world):
    facts, generator = FactSampler(world), np.random.default_rng(0)
    drawn = [facts.any(generator) for _ in range(400)]
    told = [facts.often_counterfactual(generator, fact) for fact in drawn]
    assert all(world.splits[fact.id] == "train" for fact in drawn)
    assert all(a.id == b.id and a.relation == b.relation for a, b in zip(drawn, told, strict=True))
    assert 0.4 < np.mean([a.value != b.value for a, b in zip(drawn, told, strict=True)]) < 0.8


def test_reading_never_shows_a_held_out_fact(world, tokenizer):
    held_out = {q.text for split in ("held_out", "unseen") for q in world.questions(split, hops=1)}
    for row in itertools.islice(reading_rows(world, tokenizer, seed=1), 300):
        lines = tokenizer.decode(row.tokens).split("\n")
        assert not held_out & set(lines)
        wanted = tokenizer.decode(row.tokens[row.by_policy])
        assert wanted.endswith("\n")
        assert wanted.count("\n") == 2


def test_demonstrations_are_clean_and_tell_policy_from_environment(world, tokenizer):
    questions = world.questions("train", languages=LCRL_TRAINING[:3], hops=1)
    demonstrator = Demonstrator(world, questions, program, perfect_search(world), tokenizer, Oracle(budget=2))
    searches = []
    for row in itertools.islice(demonstrator.stream(0), 24):
        by_policy, by_environment = (tokenizer.decode(row.tokens[row.by_policy == side]) for side in (True, False))
        assert by_policy.startswith("<search> ")
        assert by_policy.endswith("</answer>")
        assert "<answer>" not in by_environment
        assert "<search>" not in by_environment
        searches.append(by_policy.count("<search>"))
    assert set(searches) == {1, 2}
    again = next(Demonstrator(world, questions, program, perfect_search(world), tokenizer, Oracle(budget=2)).stream(0))
    np.testing.assert_array_equal(next(demonstrator.stream(0)).tokens, again.tokens)


def test_random_searches_are_kept_with_wrong_answers(world, tokenizer):
    questions = world.questions("train", hops=1)
    texts = []
    for only_correct in (False, True):
        player = RandomSearcher(budget=2)
        demonstrator = Demonstrator(
            world, questions, program, perfect_search(world), tokenizer, player, only_correct=only_correct
        )
        texts.append([tokenizer.decode(row.tokens) for row in itertools.islice(demonstrator.stream(0), 24)])
    unknown = [f"<answer> {word}</answer>" for word in UNKNOWN.values()]
    assert any(text.endswith(tuple(unknown)) for text in texts[0])
    assert not any(text.endswith(tuple(unknown)) for text in texts[1])


def test_fitting_lowers_the_loss():
    config, losses = tiny_config(), []
    rows = itertools.cycle(itertools.islice(copying_rows(config.vocabulary_size, 4, seed=0), 2))
    fit(
        config,
        initialise(config, jax.random.key(0)),
        rows,
        steps=12,
        tokens_per_step=256,
        learning_rate=1e-2,
        layout=Layout(rows=2, row_lengths=(128,)),
        progress=lambda step, metrics: losses.append(metrics["loss/supervised"]),
    )
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.5


def test_the_tiny_policy_is_plain_qwen3_of_a_million_parameters():
    config = atlas_decoder(4096)
    assert config.family == "qwen3"
    assert parameter_count(config) == 1_312_128

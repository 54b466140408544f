"""Episodes over the real sampler: a random tiny model, and log-probabilities that training agrees with."""

import jax
import numpy as np
import pytest
from episode_scripts import lcrl_programs, search, slow
from support import tiny_config, tiny_tokenizer

from lcrag.episodes import Generate, Observe, Outcome, Retrieve, Runner, information
from lcrag.policy import initialise, log_probabilities
from lcrag.sampling import Sampler, SamplerConfig


@pytest.fixture(scope="module")
def params():
    return initialise(tiny_config(), jax.random.key(0))


def rollout(params, *, slots: int, search=search):
    tokenizer = tiny_tokenizer()
    sampler = Sampler(
        tiny_config(), params, tokenizer, SamplerConfig(slots=slots, context=192, block=8, append_tokens=(64,))
    )
    runner = Runner(sampler=sampler, tokenizer=tokenizer, search=search, max_tokens=12, seed=3)
    return runner.run([(asked, read_twice(asked), number) for asked, _, number in lcrl_programs(10)])


def read_twice(asked):
    """A random model never writes a tag, so this program searches on its behalf."""
    yield Observe(asked.text + "\n")
    texts = []
    for _ in range(2):
        texts.append((yield Generate(stop=(" a", "e"))))
        found = yield Retrieve((texts[-1],), ("en", "fr"), 1)
        yield Observe(information(found, "atlas", 60))
    return Outcome(answer=texts[-1], extra={"texts": texts})


@pytest.fixture(scope="module")
def records(params):
    return rollout(params, slots=4)


def assert_scored_by(params, record, mine):
    """The log-probabilities of some tokens of a record are those of one forward pass over its whole context."""
    tokens = np.pad(record.tokens, (0, 192 - len(record.tokens)))[None]  # one shape, one program
    expected = np.asarray(log_probabilities(tiny_config(), params, tokens[:, :-1], tokens[:, 1:]))[0]
    places = np.flatnonzero(mine)
    np.testing.assert_allclose(record.log_probabilities[places], expected[places - 1], atol=1e-4)


def test_a_token_s_log_probability_is_the_trainers(params, records):
    for record in records[:4]:
        assert_scored_by(params, record, record.by_policy)


def test_slots_and_timing_change_no_token(params, records):
    for one, two in zip(records, rollout(params, slots=8, search=slow(0.005)), strict=True):
        np.testing.assert_array_equal(one.tokens, two.tokens)
        np.testing.assert_allclose(one.log_probabilities, two.log_probabilities, atol=1e-5)
        assert one.turns == two.turns
    assert len({record.outcome.answer for record in records}) > 5

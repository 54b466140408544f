"""Drafts: what is looked up, and that verification changes no token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import SENTENCES, tiny_config, tiny_tokenizer

from lcrag.policy import initialise
from lcrag.sampling import Sampler, SamplerConfig, SamplingParameters
from lcrag.sampling.drafts import PAUSE_BLOCKS, TRIAL_PASSES, DraftSwitch, drafted

TEMPERATURES = (0.0, 0.3, 1.0, 0.0)
SETTINGS = SamplerConfig(slots=4, context=96, block=8, windows=(48,), append_rows=(4,), append_tokens=(16,))


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ([1, 2, 3, 9, 8, 1, 2, 3], [9, 8]),
        ([1, 2, 3, 9, 5, 2, 3, 7, 6, 1, 2, 3], [9, 5]),  # the longer occurrence, not the later one
        ([4, 7, 6, 4, 5, 8, 4], [5, 8]),  # the later of two
        ([3, 1, 5, 1, 5], [1, 5]),
        ([3, 1, 5, 5], [5, 5]),  # beyond its end the occurrence repeats itself
    ],
)
def test_drafts_continue_the_latest_longest_occurrence(context, expected):
    history = np.zeros((1, 16), np.int32)
    history[0, : len(context)] = context
    lengths = jnp.array([len(context)], jnp.int32)
    assert drafted(jnp.asarray(history), lengths, 2)[0].tolist() == expected


@pytest.fixture(scope="module")
def model():
    config = tiny_config()
    return config, initialise(config, jax.random.key(0))


def generations(model, stop=("e", "</search>"), **options) -> tuple[dict, Sampler]:
    """Two turns in four slots, each with its own temperature; greedy slots soon repeat themselves."""
    sampler = Sampler(*model, tiny_tokenizer(), dataclasses.replace(SETTINGS, **options))
    done: dict = {}
    for turn, length in ((0, 40), (1, 19)):
        sampler.append({slot: tiny_tokenizer().encode(SENTENCES[slot])[:14] for slot in range(4)})
        sampler.begin(
            {
                slot: SamplingParameters(max_tokens=length, temperature=temperature, stop=stop, episode=slot)
                for slot, temperature in enumerate(TEMPERATURES)
            }
        )
        while sampler.running:
            done |= {(turn, slot): each for slot, each in sampler.decode().items()}
    return done, sampler


@pytest.fixture(scope="module", params=[(), ("e", "</search>")], ids=["to the limit", "to a stop string"])
def stop_and_reference(request, model):
    return request.param, generations(model, request.param)[0]


@pytest.mark.parametrize(
    ("options", "unroll_layers"),
    [({"drafts": 4}, False), ({"drafts": 2, "block": 3, "decode_rows": (1, 2), "windows": ()}, True)],
)
def test_drafts_change_no_token(model, stop_and_reference, options, unroll_layers):
    stop, reference = stop_and_reference
    config = dataclasses.replace(model[0], unroll_layers=unroll_layers)
    found, sampler = generations((config, model[1]), stop, **options)
    assert found.keys() == reference.keys()
    for name, each in reference.items():
        assert found[name].tokens.tolist() == each.tokens.tolist()
        assert found[name].finish_reason == each.finish_reason
        np.testing.assert_allclose(found[name].log_probabilities, each.log_probabilities, atol=1e-4)
    assert sampler.statistics.sampled_tokens == sum(len(each.tokens) for each in reference.values())


def test_accepted_drafts_save_steps(model):
    steps = {drafts: generations(model, (), drafts=drafts)[1].statistics for drafts in (0, 4)}
    assert steps[4].accepted_drafts > 20
    assert steps[4].accepted_drafts < steps[4].drafted_tokens
    assert steps[4].sampled_tokens == steps[0].sampled_tokens


def test_the_end_of_a_text_ends_drafts(model):
    """A text ends at its first end token, whatever was drafted after it."""
    ended = dataclasses.replace(tiny_tokenizer(), eos_ids=tuple(range(100, 384)))
    results = []
    for drafts in (0, 3):
        sampler = Sampler(*model, ended, dataclasses.replace(SETTINGS, drafts=drafts))
        sampler.append({0: [7, 8, 9, 7, 8]})
        sampler.begin({0: SamplingParameters(max_tokens=40, temperature=0.0)})
        while sampler.running:
            results += [(each.tokens.tolist(), each.finish_reason) for each in sampler.decode().values()]
    assert results[0] == results[1]


def test_drafts_pause_where_too_few_are_right():
    switch = DraftSwitch(4, least_tokens=1.5)
    assert switch.next() == 4
    switch.record(passes=TRIAL_PASSES, tokens=TRIAL_PASSES)
    assert [switch.next() for _ in range(PAUSE_BLOCKS + 1)] == [0] * PAUSE_BLOCKS + [4]
    switch.record(passes=TRIAL_PASSES, tokens=2 * TRIAL_PASSES)
    assert switch.next() == 4

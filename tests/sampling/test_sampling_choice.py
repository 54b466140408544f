"""Inverse-CDF sampling against NumPy, and the stop automaton against a plain search in the decoded bytes."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from support import tiny_tokenizer
from support.tokenizer_families import FAMILIES

from lcrag.errors import UserError
from lcrag.policy import make_mesh, replicated
from lcrag.sampling import choice
from lcrag.sampling.choice import (
    FOUND,
    NEVER,
    StopTable,
    byte_automaton,
    streams,
    text_until_stop,
    token_table,
    uniforms,
)

VOCABULARY = 97
sample_token, inverse_cdf, nucleus = map(jax.jit, (choice.sample_token, choice.inverse_cdf, choice.nucleus))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_inverse_cdf_agrees_with_searchsorted(seed):
    generator = np.random.default_rng(seed)
    weights = generator.random((5, VOCABULARY)) ** 6 * (generator.random((5, VOCABULARY)) < 0.5)
    weights[:, 3] += 1e-3
    uniform = generator.random(5)
    got = np.asarray(inverse_cdf(jnp.asarray(weights, jnp.float32), jnp.asarray(uniform, jnp.float32)))
    cumulative = np.cumsum(weights, axis=1)
    for row, index in enumerate(got):
        assert weights[row, index] > 0
        target = uniform[row] * cumulative[row, -1]
        below = cumulative[row, index - 1] if index else 0.0
        assert below - 1e-5 <= target <= cumulative[row, index] + 1e-5
    one = jnp.zeros((3, VOCABULARY)).at[:, 40].set(1e-30)  # a token of weight zero is never chosen
    assert inverse_cdf(one, jnp.array([0.0, 0.5, 1 - 2**-24])).tolist() == [40] * 3


def test_frequencies_follow_the_distribution():
    logits = jax.random.normal(jax.random.key(0), (VOCABULARY,)) * 2
    draws = 20_000
    keys = streams(jnp.zeros(draws, jnp.uint32), jnp.arange(draws, dtype=jnp.uint32))
    uniform = uniforms(keys, jnp.full(draws, 7))
    tokens, log_probabilities = sample_token(
        jnp.tile(logits, (draws, 1)), uniform, jnp.full(draws, 1.5), jnp.ones(draws)
    )
    expected = np.asarray(jax.nn.softmax(logits / 1.5), np.float64)
    counts = np.bincount(np.asarray(tokens), minlength=VOCABULARY)
    assert scipy.stats.chisquare(counts, expected / expected.sum() * draws).pvalue > 1e-3
    np.testing.assert_allclose(log_probabilities, np.log(expected)[np.asarray(tokens)], atol=1e-5)


def test_unscaled_scores_are_at_temperature_one_and_change_no_choice():
    logits = jax.random.normal(jax.random.key(1), (4, VOCABULARY)) * 2
    uniform, temperatures = jnp.array([0.1, 0.5, 0.9, 0.3]), jnp.array([0.1, 1.0, 1.5, 0.1])
    plain, scaled = sample_token(logits, uniform, temperatures, jnp.ones(4))
    wanted = jnp.array([True, True, True, False])
    tokens, scores = sample_token(logits, uniform, temperatures, jnp.ones(4), wanted)
    np.testing.assert_array_equal(tokens, plain)
    at_one = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(scores, jnp.where(wanted, at_one, scaled), atol=1e-5)
    assert np.abs(scaled - at_one).max() > 0.1


def test_greedy_takes_the_largest_at_temperature_one_log_probability():
    logits = jax.random.normal(jax.random.key(1), (3, VOCABULARY))
    tokens, log_probabilities = sample_token(logits, jnp.array([0.1, 0.5, 0.9]), jnp.zeros(3), jnp.ones(3))
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    np.testing.assert_allclose(log_probabilities, jax.nn.log_softmax(logits).max(-1), rtol=1e-5)
    together, _ = sample_token(logits[:2], jnp.array([0.3, 0.3]), jnp.array([0.0, 1.2]), jnp.array([1.0, 0.9]))
    alone, _ = sample_token(logits[1:2], jnp.array([0.3]), jnp.array([1.2]), jnp.array([0.9]))
    assert together.tolist() == [int(logits[0].argmax()), int(alone[0])]


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_nucleus_keeps_what_sorting_keeps(seed, kinds):
    """Weights are multiples of 1/1024 and sums exact, so the sets are equal, ties and zeros included."""
    generator = np.random.default_rng(seed)
    weights = generator.choice(generator.integers(0, 1025, kinds), (6, VOCABULARY)) / 1024
    weights[:, 5] = 1.0
    top_ps = np.array([1 / 64, *generator.integers(1, 64, 4) / 64, 1.0])
    kept = nucleus(jnp.asarray(weights, jnp.float32), jnp.asarray(top_ps, jnp.float32))
    for row, top_p, found in zip(weights, top_ps, np.asarray(kept), strict=True):
        descending = np.sort(row)[::-1]
        before = np.cumsum(descending) - descending
        lightest = descending[before < top_p * row.sum()][-1]
        np.testing.assert_array_equal(found, np.where((row >= lightest) | (top_p == 1), row, 0))


def test_only_sums_of_a_sharded_vocabulary_cross_between_devices():
    mesh, slots, vocabulary = make_mesh(tensor=4, devices=jax.devices()[:4]), 2, 4 * 1216
    spread, everywhere = NamedSharding(mesh, PartitionSpec(None, "tensor")), replicated(mesh)
    logits = jax.random.normal(jax.random.key(4), (slots, vocabulary)) * 4
    arguments = logits, jnp.array([0.2, 0.7]), jnp.array([1.0, 0.9]), jnp.array([0.8, 1.0])
    sharded = jax.jit(sample_token, in_shardings=(spread, everywhere, everywhere, everywhere), out_shardings=everywhere)
    program = sharded.lower(*arguments).compile().as_text()
    moved = re.findall(r" = (.*?) (?:all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", program)
    assert moved
    shapes = [shape for types in moved for shape in re.findall(r"\[([\d,]*)\]", types)]
    assert max(math.prod(map(int, filter(None, shape.split(",")))) for shape in shapes) < slots * vocabulary / 12
    for found, expected in zip(sharded(*arguments), sample_token(*arguments), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_top_p_of_one_slot_changes_no_other():
    draws = 2000
    logits = jnp.tile(jax.random.normal(jax.random.key(3), (VOCABULARY,)) * 8, (draws, 1))
    uniform, temperatures = jnp.linspace(0, 1 - 2**-24, draws), jnp.ones(draws)
    alone, _ = sample_token(logits, uniform, temperatures, jnp.ones(draws))
    with_one_narrow, _ = sample_token(logits, uniform, temperatures, jnp.ones(draws).at[-1].set(0.5))
    np.testing.assert_array_equal(alone[:-1], with_one_narrow[:-1])
    assert int(alone[-1]) != int(with_one_narrow[-1])


# --- Stop strings ---

STOP = ("</search>", "</answer>")


def run(table: np.ndarray, start: int, tokens) -> int | None:
    """Index of the token that completes a stop string, by the automaton."""
    state = start
    for index, token in enumerate(tokens):
        state = table[state, token]
        if state == FOUND:
            return index
    return None


def expected(token_bytes, tokens, stop) -> int | None:
    """The same by a plain search."""
    content = b""
    for index, token in enumerate(tokens):
        content += token_bytes[token]
        if any(each.encode() in content for each in stop):
            return index
    return None


@given(st.text(alphabet="ab<>/sn円é", max_size=40), st.sampled_from([("ab", "bab", "abb"), ("a",), ("円é", "é<")]))
@settings(max_examples=200, deadline=None)
def test_overlapping_stop_strings(text, stop):
    transitions, state = byte_automaton(stop), 0
    for length, byte in enumerate(text.encode(), 1):
        state = transitions[state, byte]
        assert (state < 0) == text.encode()[:length].endswith(tuple(each.encode() for each in stop))
        if state < 0:
            break


def test_a_tag_is_found_however_it_is_split():
    tag = b"</search>"
    for cuts in range(2 ** (len(tag) - 1)):
        places = [0, *(place for place in range(1, len(tag)) if cuts >> (place - 1) & 1), len(tag)]
        pieces = [tag[i:j] for i, j in zip(places, places[1:], strict=False)]
        for vocabulary in ([b"x<", *pieces], [*pieces[:-1], pieces[-1] + b" tail </sea"]):
            stops = StopTable(vocabulary)
            start = stops.start(("</search>",))
            assert run(stops.table, start, range(len(vocabulary))) == len(vocabulary) - 1


def test_sets_share_one_table_and_keep_their_places():
    stops = StopTable(tiny_tokenizer().token_bytes, capacity=8)
    assert stops.start(()) == NEVER
    assert (stops.table[NEVER] == NEVER).all()
    first = stops.start(STOP)
    before = stops.table[first].copy()
    assert stops.start(("円",)) != first
    assert stops.start(STOP[::-1]) == first
    np.testing.assert_array_equal(stops.table[first], before)


@pytest.mark.parametrize(("stop", "clue"), [(("", "a"), "is empty"), (("<" * 300,), "303 automaton states")])
def test_stop_strings_that_no_table_holds_are_refused(stop, clue):
    with pytest.raises(UserError, match=clue):
        StopTable(tiny_tokenizer().token_bytes).start(stop)


def test_empty_tokens_do_not_move_the_automaton():
    table = token_table(("ab",), tuple([b"", b"a", b"b"]))
    np.testing.assert_array_equal(table, [[0, 1, 0], [1, 1, -1], [2, 1, 0]])


def test_a_table_is_made_once_for_equal_vocabularies():
    tokens = [b"x", b"yz", b""]
    first = token_table(("z",), tuple(tokens))
    assert token_table(("z",), tuple(list(tokens))) is first
    assert token_table(("z",), tuple([b"xy", b"z", b""])) is not first  # the same bytes, cut elsewhere
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=60)
def test_tokens_of_every_family_are_stopped(family, data):
    tokenizer = FAMILIES[family]()
    stop = data.draw(st.sampled_from([STOP, ("円",), ("aa", "aba"), ("EUR", "UR s", "R")]))
    stops = StopTable(tokenizer.token_bytes)
    start = stops.start(stop)
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=40))
    tokens += tokenizer.encode_ordinary(data.draw(st.sampled_from([*stop, "Paris </search", "a"])), continues=True)
    assert run(stops.table, start, tokens) == expected(tokenizer.token_bytes, tokens, stop)


@given(before=st.text(max_size=30), after=st.text(max_size=30))
def test_text_ends_with_the_first_stop(before, after):
    before = before.replace("<", "")
    assert text_until_stop(f"{before}</answer>{after}</search>".encode(), STOP) == f"{before}</answer>"
    assert text_until_stop(before.encode(), STOP) == before

"""The stop automaton against a plain search in the decoded bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny_tokenizer
from support.tokenizer_families import FAMILIES

from lcrag.sampling.choice import FOUND, NEVER, StopTable, byte_automaton, text_until_stop, token_table

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

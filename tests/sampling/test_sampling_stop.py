"""The stop automaton against a plain text search on the decoded bytes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lcrag.sampling.stop import FOUND, NEVER, StopTable, byte_automaton, text_until_stop, token_table
from lcrag.testing import tiny_tokenizer

STOP = ("</search>", "</answer>")


def run(table: np.ndarray, start: int, tokens) -> int | None:
    """Index of the token that completes a stop string."""
    state = start
    for index, token in enumerate(tokens):
        state = table[state, token]
        if state == FOUND:
            return index
    return None


def expected(token_bytes, tokens, stop) -> int | None:
    content = b""
    for index, token in enumerate(tokens):
        content += token_bytes[token]
        if any(each.encode() in content for each in stop):
            return index
    return None


@given(
    st.lists(st.integers(0, 383), max_size=60), st.sampled_from([STOP, ("円",), ("aa", "aba"), ("EUR", "UR s", "R")])
)
@settings(max_examples=200, deadline=None)
def test_random_tokens_agree_with_a_text_search(tokens, stop):
    tokenizer = tiny_tokenizer()
    stops = StopTable(tokenizer.token_bytes)
    start = stops.start(stop)
    assert run(stops.table, start, tokens) == expected(tokenizer.token_bytes, tokens, stop)


@given(st.text(alphabet="ab<>/sn円é", max_size=40), st.sampled_from([("ab", "bab", "abb"), ("a",), ("円é", "é<")]))
@settings(max_examples=200, deadline=None)
def test_overlapping_stop_strings(text, stop):
    transitions, state, found = byte_automaton(stop), 0, None
    content = text.encode()
    for index, byte in enumerate(content):
        state = transitions[state, byte]
        if state < 0:
            found = index + 1
            break
    ends = [i for i in range(len(content) + 1) if any(content[:i].endswith(each.encode()) for each in stop)]
    assert found == (ends[0] if ends else None)


def test_a_tag_is_found_however_it_is_split():
    tag = b"</search>"
    for cuts in range(2 ** (len(tag) - 1)):
        pieces, piece = [], tag[:1]
        for index in range(1, len(tag)):
            if cuts >> (index - 1) & 1:
                pieces.append(piece)
                piece = b""
            piece += tag[index : index + 1]
        pieces.append(piece)
        vocabulary = [b"x<", b"> and more", *pieces]
        stops = StopTable(vocabulary)
        start = stops.start(("</search>",))
        assert run(stops.table, start, [0, *range(2, len(vocabulary))]) == len(pieces)
        glued = [*pieces[:-1], pieces[-1] + b" tail </sea"]
        stops = StopTable(glued)
        start = stops.start(("</search>",))
        assert run(stops.table, start, range(len(glued))) == len(glued) - 1


def test_without_stop_strings_nothing_stops():
    stops = StopTable(tiny_tokenizer().token_bytes)
    assert stops.start(()) == NEVER
    assert (stops.table[NEVER] == NEVER).all()


def test_sets_share_one_table_and_keep_their_places():
    stops = StopTable(tiny_tokenizer().token_bytes, capacity=8)
    first = stops.start(STOP)
    before = stops.table[first].copy()
    assert stops.start(("円",)) != first
    assert stops.start(STOP[::-1]) == first
    np.testing.assert_array_equal(stops.table[first], before)


def test_empty_tokens_do_not_move_the_automaton():
    table = token_table(byte_automaton(("ab",)), [b"", b"a", b"b"], 2)
    np.testing.assert_array_equal(table[:, 0], [2, 3, 4])


@given(st.text(max_size=30), st.text(max_size=30))
def test_text_ends_with_the_first_stop(before, after):
    before = before.replace("</answer>", "")
    assert text_until_stop((before + "</answer>" + after).encode(), STOP).startswith(before + "</answer>"[:1]) or after
    assert text_until_stop(("q</search>" + after).encode(), STOP) == "q</search>"

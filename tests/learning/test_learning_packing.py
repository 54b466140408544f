"""Packing loses nothing, repeats nothing, and keeps to the declared shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_standin import trajectory

from lcrag.errors import UserError
from lcrag.learning import Layout, Trajectory, pack
from lcrag.learning.sequence_packing import arrange, first_fit_decreasing


def unpack(batch):
    """Read a batch back into (context before the token, token, log-probability, advantage) of each policy token."""
    return [token for part in batch.by_row_length() for token in unpack_rows(part)]


def unpack_rows(batch):
    found = []
    for micro, episode, place in np.argwhere(batch.mask):
        share, column = divmod(int(batch.index[micro, episode, place]), batch.sources.shape[-1])
        source = batch.sources[micro, share, column]
        rows, time = batch.tokens.shape[1:]
        row, source = share * (rows // batch.sources.shape[1]) + source // time, source % time
        own = batch.segments[micro, row] == batch.segments[micro, row, source]
        positions = batch.positions[micro, row]
        context = batch.tokens[micro, row][own & (positions <= positions[source])]
        log_probability = batch.sampling_log_probabilities[micro, episode, place]
        target = batch.targets[micro, share, column]
        found.append((context.tolist(), target, log_probability, batch.advantages[micro, episode]))
    return found


def policy_tokens(episodes):
    return [
        (e.tokens[:place].tolist(), e.tokens[place], e.log_probabilities[place], np.float32(e.advantage))
        for e in episodes
        for place in np.flatnonzero(e.by_policy)
    ]


@given(
    st.lists(st.tuples(st.integers(1, 24), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=30),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([(24,), (8, 16, 32), (24, 64)]),
    st.sampled_from([None, 12, 20]),
    st.integers(0, 100),
)
def test_every_policy_token_appears_exactly_once(shapes, rows_of_a_share, shares, row_lengths, short, seed):
    random = np.random.default_rng(seed)
    episodes = [trajectory(random, length, share) for length, share in shapes]
    layout = Layout(rows=rows_of_a_share * shares, row_lengths=row_lengths, short_row_length=short)
    batch = pack(episodes, layout, shares)
    assert sorted(unpack(batch), key=repr) == sorted(policy_tokens(episodes), key=repr)
    parts = batch.by_row_length()
    assert sum((part.segments > 0).sum() for part in parts) == sum(length for length, _ in shapes)
    names = batch.index[batch.mask] + batch.sources[0].size * np.argwhere(batch.mask)[:, 0]
    assert len(set(names.tolist())) == len(names)

    for part in parts:
        assert not part.tokens[part.segments == 0].any()
        assert not part.positions[part.segments == 0].any()
    assert not batch.index[~batch.mask].any()
    assert not batch.sampling_log_probabilities[~batch.mask].any()

    time = batch.tokens.shape[-1]
    assert time in row_lengths
    assert [part.tokens.shape[-1] for part in parts] == ([time] if short is None or short >= time else [time, short])
    for part, used in zip(parts, batch.used, strict=True):
        assert part.tokens.shape[:2] == (layout.micro_batches(used), layout.rows)
        assert (part.segments[:used] > 0).any(axis=(1, 2)).all()
    assert batch.sources.shape[1] == shares
    assert batch.sources.shape[-1] in layout.policy_lengths(rows_of_a_share * time)
    assert batch.index.shape[-1] in layout.policy_lengths(time)
    assert np.log2(batch.index.shape[1] / layout.rows) % 2 == 0


@given(st.lists(st.integers(1, 24), min_size=1, max_size=30), st.integers(1, 4))
def test_short_rows_compute_no_more_positions(lengths, rows):
    episodes = [trajectory(np.random.default_rng(0), length) for length in lengths]
    one, two = (pack(episodes, Layout(rows=rows, row_lengths=(24,), short_row_length=n)) for n in (None, 16))
    assert two.filled >= one.filled
    assert sum(two.used) == sum(one.used)


def test_episodes_of_more_than_half_a_row_lie_in_short_rows():
    episodes = [trajectory(np.random.default_rng(0), length) for length in [16] * 7 + [24]]
    batch = pack(episodes, Layout(rows=1, row_lengths=(24,), short_row_length=16))
    assert batch.used == [1, 7]
    assert batch.filled == 1


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40))
def test_rows_are_filled_well(lengths):
    rows = first_fit_decreasing(np.array(lengths), 20)
    assert sorted(item for row in rows for item in row) == list(range(len(lengths)))
    fills = [sum(lengths[item] for item in row) for row in rows]
    assert max(fills) <= 20
    assert sum(fill <= 10 for fill in fills) <= 1


def test_every_share_unembeds_about_as_much():
    """Rows of the policy's text and rows of retrieved text are mixed."""
    random = np.random.default_rng(0)
    episodes = [trajectory(random, 16, share) for share in [1.0] * 8 + [0.1] * 8]
    layout = Layout(rows=4, row_lengths=(16,))
    written = np.array([each.by_policy.sum() for each in episodes])
    _, _, arranged = arrange(np.full(16, 16), written, layout, shares=2)
    totals = [written[np.concatenate(share)].sum() for shares in arranged[0] for share in shares]
    assert len(totals) == 8
    assert max(totals) <= written.sum() / 8 + 2


def test_user_errors():
    random, layout = np.random.default_rng(0), Layout(rows=2, row_lengths=(8, 16), policy_shares=(0.25, 0.5))
    wordy, unprompted = np.arange(8) > 2, np.arange(8) >= 0
    for episodes, message in (
        ([trajectory(random, 17)], "17 tokens.*holds 16"),
        ([], "no trajectory"),
        ([Trajectory(np.arange(8), unprompted, np.zeros(8, np.float32))], "begins with a token of the policy"),
        ([Trajectory(np.arange(8), wordy, np.zeros(8, np.float32))], "wrote 5 of 8 tokens .*policy_shares"),
    ):
        with pytest.raises(UserError, match=message):
            pack(episodes, layout)

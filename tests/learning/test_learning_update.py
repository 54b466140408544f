"""Packing and one update: invariances, non-finite steps, schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_standin import (
    batch_of_step,
    hidden,
    new_params,
    new_state,
    optimizer,
    plain_update,
    trajectories,
    trajectory,
    unembed,
)

from lcrag.errors import UserError
from lcrag.learning import Layout, PolicyGradient, Supervised, Trajectory, adamw, make_score, make_update, pack
from lcrag.learning.learners import packed
from lcrag.learning.sequence_packing import arrange, first_fit_decreasing
from lcrag.learning.update import make_gradients, place_batch
from lcrag.policy import make_mesh

# --- Packing ---


def unpack(batch):
    """Read rows of one length back into (context, token, log-probability, advantage) of each policy token."""
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
    found = [token for part in batch.by_row_length() for token in unpack(part)]
    assert sorted(found, key=repr) == sorted(policy_tokens(episodes), key=repr)
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
    # episodes of more than half a row lie in short rows
    episodes = [trajectory(np.random.default_rng(0), length) for length in [16] * 7 + [24]]
    batch = pack(episodes, Layout(rows=1, row_lengths=(24,), short_row_length=16))
    assert (batch.used, batch.filled) == ([1, 7], 1)


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
    layout = Layout(rows=2, row_lengths=(8, 16), policy_shares=(0.25, 0.5))
    unprompted, wordy = (Trajectory(np.arange(8), np.arange(8) >= n, np.zeros(8, np.float32)) for n in (0, 3))
    for episodes, name in (
        *(([trajectory(np.random.default_rng(0), 17)], "row_lengths"), ([], "trajectory")),
        *(([unprompted], "trajectory 0"), ([wordy], "policy_shares")),
    ):
        with pytest.raises(UserError, match=name):
            pack(episodes, layout)
    for build in (
        lambda: batch_of_step(0, rows=3, shares=4),
        lambda: place_batch(batch_of_step(0, shares=2), make_mesh(2, 2, 2)),
    ):
        with pytest.raises(UserError, match="4"):
            build()
    with pytest.raises(UserError, match="short_row_length is 0"):
        Layout(rows=1, row_lengths=(8,), short_row_length=0)


# --- Updates ---


def equal(one, other, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, other)


@pytest.mark.parametrize(
    "objective",
    [
        PolicyGradient(ratio="sequence", clip_low=3e-2, clip_high=4e-2),
        PolicyGradient(aggregation="token_mean", clip_high=0.28, entropy_coefficient=0.1),
        Supervised(),
    ],
    ids=["gspo", "dapo", "sft"],
)
def test_packing_and_accumulation_are_only_a_layout(objective):
    episodes = trajectories(count=8, shortest=9, longest=16)
    gradients = jax.jit(make_gradients(hidden, unembed, objective, temperature=1.3))
    alone = pack(episodes, Layout(rows=8, row_lengths=(16,)))
    packed = pack(episodes, Layout(rows=1, row_lengths=(32,)))
    two_lengths = pack(episodes, Layout(rows=2, row_lengths=(48,), short_row_length=32), shares=2)
    assert (alone.segments.max(), len(alone.tokens)) == (1, 1)
    assert min(packed.segments.max(), len(packed.tokens)) > 1
    expected = gradients(new_params(), alone)
    equal(gradients(new_params(), packed), expected, rtol=1e-5, atol=1e-6)
    assert min(two_lengths.used) > 0
    equal(gradients(new_params(), two_lengths), expected, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 9), st.integers(1, 3), st.sampled_from((None, 6)), st.integers(0, 2**31))
def test_as_many_episodes_have_one_shape_however_well_they_pack(count, rows, short, seed):
    """The update would be compiled again for each number of micro-batches."""
    layout = Layout(rows=rows, row_lengths=(12,), short_row_length=short, policy_shares=(1.0,), min_episodes=16)
    lengths = np.random.default_rng(seed).integers(2, 13, size=(2, count))
    batches = [
        packed([Trajectory(np.ones(n, np.int32), np.arange(n) > 0, np.zeros(n)) for n in each], layout, 1)
        for each in lengths
    ]
    shapes = [[leaf.shape for leaf in jax.tree.leaves(batch)] for batch in batches]
    assert shapes[0] == shapes[1]
    assert sum(batches[0].used) <= len(batches[0].mask)


def test_the_entropy_bonus_is_aggregated_like_the_loss():
    def of(coefficient):
        objective = PolicyGradient(aggregation="token_mean", entropy_coefficient=coefficient)
        return jax.jit(make_gradients(hidden, unembed, objective))(new_params(), batch_of_step(0, rows=2))

    (plain, loss, metrics), (with_bonus, lower, measured) = of(0.0), of(0.1)
    np.testing.assert_allclose([lower - loss, measured["loss/entropy"]], -0.1 * metrics["entropy"], rtol=1e-4)
    assert optax.global_norm(jax.tree.map(jnp.subtract, with_bonus, plain)) > 1e-3


def test_scores_close_the_gap_and_serve_as_reference():
    batch = batch_of_step(0, rows=2)
    score = make_score(hidden, unembed, temperature=1.2)
    recorded = np.asarray(score(new_params(), batch))
    np.testing.assert_array_equal(recorded < 0, batch.mask)
    batch = batch.replace(sampling_log_probabilities=recorded, reference_log_probabilities=score(new_params(1), batch))
    with_kl = make_update(hidden, unembed, PolicyGradient(kl_coefficient=0.1), optimizer(), temperature=1.2)
    state, metrics = with_kl(new_state(), batch)
    assert 0 < metrics["entropy"] < np.log(17)
    _, second = with_kl(state, batch)
    assert second["loss/policy"] < metrics["loss/policy"]
    assert metrics["sampling_training_gap"] < 1e-5 < second["sampling_training_gap"]
    assert min(metrics["loss/kl"], metrics["reference_kl"], metrics["gradient_norm"]) > 0
    np.testing.assert_allclose(metrics["ratio/mean"], 1, atol=1e-5)
    _, own = plain_update()(new_state(), batch)
    assert own["sampling_training_gap"] > 1e-2


def test_the_state_is_donated_and_compiles_once():
    update, state = plain_update(), new_state()
    state, _ = update(state, batch_of_step(0))
    compiled, before, batch = [], jax.tree.leaves(state), batch_of_step(1)

    def listen(event, seconds, **_):
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    with jax.transfer_guard("disallow"):
        state, _ = update(state, batch)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert all(leaf.is_deleted() for leaf in before)
    assert not any("compile" in event for event in compiled)


@pytest.mark.parametrize(
    ("field", "poison"), [("advantages", np.nan), ("advantages", np.inf), ("sampling_log_probabilities", np.nan)]
)
def test_what_is_not_finite_changes_nothing_and_is_counted(field, poison):
    update, state = plain_update(), new_state()
    good = batch_of_step(0)
    values = np.array(getattr(good, field))
    values[tuple(np.argwhere(good.mask)[0][: values.ndim])] = poison
    bad = good.replace(**{field: values})
    state, _ = update(state, good)
    kept = jax.tree.map(np.asarray, (state.params, state.optimizer_state))
    for times in (1, 2):
        state, metrics = update(state, bad)
        assert metrics["update/non_finite_in_a_row"] == metrics["update/skipped"] == times
    jax.tree.map(np.testing.assert_array_equal, (state.params, state.optimizer_state), kept)
    state, metrics = update(state, good)
    assert metrics["update/non_finite_in_a_row"] == 0
    assert metrics["update/skipped"] == 2
    assert int(state.step) == 4
    np.testing.assert_allclose(metrics["learning_rate"], 0.01, rtol=1e-6)
    for part in ("params", "optimizer_state"):  # damaged weights and moments
        poisoned = jax.tree.map(lambda leaf: leaf * (jnp.nan if leaf.ndim else 1), getattr(state, part))
        kept = jax.tree.map(np.asarray, state.replace(**{part: poisoned}))
        after, metrics = update(jax.tree.map(jnp.asarray, kept), good)
        assert metrics["update/non_finite_in_a_row"] == 1
        for each in ("params", "optimizer_state"):
            jax.tree.map(np.testing.assert_array_equal, getattr(after, each), getattr(kept, each))


def test_optimizer_warms_up_decays_and_spares_norms():
    def rates(updates, **settings):
        return jax.jit(adamw(learning_rate=1.0, **settings).learning_rate)(jnp.array(updates))

    np.testing.assert_allclose(rates([0, 1, 2, 3, 7], steps=8, warmup_share=0.5), [0.25, 0.5, 0.75, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(rates([4, 6, 8], steps=8, warmup_share=0.5, decay="cosine"), [1, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(rates([0, 1], steps=4, warmup_share=0.25), [1, 1])

    params = new_params()
    transformation = adamw(learning_rate=0.1, steps=1, weight_decay=0.5).transformation
    nothing = jax.tree.map(jnp.zeros_like, params)
    updated = jax.jit(lambda p: optax.apply_updates(p, transformation.update(nothing, transformation.init(p), p)[0]))
    moved = updated(params)
    np.testing.assert_allclose(moved["layer"]["kernel"], 0.95 * params["layer"]["kernel"], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, moved["norm"], params["norm"])
    for settings in ({"decay": "linear"}, {"warmup_share": 1.5}):
        with pytest.raises(UserError):
            adamw(learning_rate=1.0, steps=4, **settings)


def test_a_schedule_without_steps_spans_the_run():
    settings = {"learning_rate": 1.0, "warmup_share": 0.3, "decay": "cosine"}
    of_run, bound = adamw(**settings, steps=None), adamw(**settings, steps=5)
    for update in range(10):
        rate = of_run.with_updates(2, 5).learning_rate(update)
        assert rate == bound.with_updates(2, 9).learning_rate(update) == bound.with_updates(2).learning_rate(update)

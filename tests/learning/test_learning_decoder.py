"""The real decoder under the update: packing is only a layout there too, on one device and on eight."""

import jax
import numpy as np
from learning_standin import trajectories

from lcrag.app.commands.compile.hlo import Program
from lcrag.app.commands.compile.work import work_of
from lcrag.learning import Layout, PolicyGradient, adamw, initial_state, make_score, pack
from lcrag.learning.learners import decoder_functions, policy_update
from lcrag.policy import initialise, make_mesh, param_shardings
from lcrag.policy.attention import attended_positions
from lcrag.policy.flops import update_flops
from lcrag.testing import tiny_config

CONFIG = tiny_config(vocabulary_size=64)
ALONE = make_mesh(devices=jax.devices()[:1])


def metrics_of_update(batch, mesh):
    shardings, optimizer = param_shardings(CONFIG, mesh), adamw(learning_rate=1e-3, steps=1)
    score = make_score(*decoder_functions(CONFIG, mesh), mesh, 1.2)
    update = policy_update(CONFIG, mesh, PolicyGradient(), optimizer, 1.2)
    state = initial_state(initialise(CONFIG, jax.random.key(0), mesh), optimizer, mesh, shardings)
    batch = batch.replace(sampling_log_probabilities=np.asarray(score(state.params, batch)))
    return update(state, batch)[1]


def test_packed_on_eight_devices_equals_padded_on_one():
    episodes = trajectories(count=8, shortest=9, longest=16)
    alone = pack(episodes, Layout(rows=4, row_lengths=(16,)))
    packed = pack(episodes, Layout(rows=4, row_lengths=(48,), short_row_length=32), shares=4)
    assert alone.segments.max() == 1
    assert packed.segments.max() > 2
    expected = metrics_of_update(alone, ALONE)
    found = metrics_of_update(packed, make_mesh(2, 2, 2))
    assert expected["sampling_training_gap"] < 1e-5
    assert found["sampling_training_gap"] < 1e-5
    for name in expected.keys() - {"sampling_training_gap"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_a_micro_batch_executes_what_the_formula_counts():
    """Each policy position is unembedded once, logits are not computed again, and blocks of queries skip later keys."""
    episodes = trajectories(count=12, shortest=20, longest=60)
    batch = pack(episodes, Layout(rows=2, row_lengths=(200,), policy_shares=(0.5, 0.75)))
    optimizer = adamw(learning_rate=1e-3, steps=1)
    state = jax.eval_shape(lambda: initial_state(initialise(CONFIG, jax.random.key(0)), optimizer))
    compiled = policy_update(CONFIG, ALONE, PolicyGradient(), optimizer).lower(state, batch).compile()
    sizes = {"tokens": 2 * 200, "attended": attended_positions(200), "unembedded": batch.sources.shape[-1]}
    assert attended_positions(200) < 200
    assert work_of(Program.of(compiled.as_text()))[0].flops == update_flops(CONFIG, **sizes)

"""Operations of a step by formula, their share of a known peak, and device memory."""

import types

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_parts import record_of
from support import tiny_config, tiny_tokenizer

from lcrag.data.questions import Question
from lcrag.episodes import Outcome
from lcrag.evaluation.tables import PARTS, wall_time_table
from lcrag.learning import Trajectory
from lcrag.policy import Policy, make_mesh
from lcrag.policy.config import accelerator_named
from lcrag.policy.parameters import causal_mean, forward_flops, update_flops
from lcrag.train import metrics as step_metrics
from lcrag.train.metrics import has_no_signal, learning_flops, memory_metrics, rate_metrics, rollout_flops, wall_time

CONFIG = tiny_config()


def record_of_tokens(tokens, by_policy=None, *, answer=None, **changes):
    by_policy = np.ones(len(tokens), bool) if by_policy is None else np.array(by_policy, bool)
    zeros = np.zeros(len(tokens), np.int32)
    arrays = {"tokens": np.array(tokens, np.int32), "by_policy": by_policy, "turn": zeros}
    arrays |= {"log_probabilities": zeros.astype(np.float32), "outcome": Outcome(answer=answer)}
    asked = Question(id="q", dataset="atlas", language="fi", text="?", answers=("Helsinki",))
    return record_of(asked, **arrays | changes)


def record(prompt, prompt_tokens, policy_tokens):
    turn = np.repeat(np.array([-1, 0], np.int32), [prompt_tokens, policy_tokens])
    return record_of_tokens(np.zeros(len(turn)), turn == 0, turn=turn, prompt=prompt)


def policy(devices):
    return Policy("tiny", CONFIG, {}, tiny_tokenizer(), make_mesh(devices=jax.devices()[:devices]))


def trajectory(length, learned):
    return Trajectory(np.zeros(length, np.int32), np.arange(length) >= length - learned, np.zeros(length, np.float32))


def test_a_prompt_shared_by_samples_is_counted_once():
    alone = forward_flops(CONFIG, 14, attended=causal_mean(14), unembedded=4)
    continued = forward_flops(CONFIG, 4, attended=(11 + 14) / 2, unembedded=4)
    assert rollout_flops(CONFIG, [record("a", 10, 4)]) == alone
    assert rollout_flops(CONFIG, [record("a", 10, 4), record("a", 10, 4)]) == alone + continued
    assert rollout_flops(CONFIG, [record("a", 10, 4), record("b", 10, 4)]) == 2 * alone


def test_learning_is_a_forward_and_backward_pass_of_every_trajectory():
    one, other = (update_flops(CONFIG, n, attended=causal_mean(n), unembedded=4) for n in (14, 20))
    assert learning_flops(CONFIG, [trajectory(14, 4), trajectory(20, 4)], passes=2) == 2 * (one + other)


def test_utilisation_is_the_share_of_all_devices_peak(monkeypatch):
    accelerator = accelerator_named("v5e")
    monkeypatch.setattr(step_metrics, "accelerator_of", lambda device: accelerator)
    measured = rate_metrics("rollout", policy(devices=4), 1e12, 0.5)
    assert measured["flops_per_second/rollout"] == 2e12
    assert measured["mfu/rollout"] == pytest.approx(2e12 / (4 * 197e12))


def test_a_step_without_differing_rewards_has_no_signal():
    equal = {"groups/without_variance": 0.5, "groups/of_one": 0.25, "groups/below_floor": 0.25}
    assert has_no_signal(equal)
    assert not has_no_signal(equal | {"groups/of_one": 0.0})
    assert not has_no_signal(equal | {"critic/gradient_norm": 1.0})


def test_memory_is_that_of_the_fullest_device(monkeypatch):
    statistics = [{"bytes_in_use": 5, "peak_bytes_in_use": 9}, {"bytes_in_use": 7, "peak_bytes_in_use": 8}, None]
    devices = [types.SimpleNamespace(memory_stats=lambda stats=stats: stats) for stats in statistics]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert memory_metrics() == {"device/memory_bytes": 7, "device/memory_peak_bytes": 9}
    monkeypatch.setattr(jax, "local_devices", lambda: devices[2:])
    assert memory_metrics() == {}


MEASURED = {
    "step": 10.0,
    "rollout": 6.0,
    "append": 1.0,
    "decode": 3.0,
    "retrieval_wait": 1.5,
    "rewards": 0.5,
    "update": 3.0,
}


def test_the_parts_of_a_step_add_up_to_its_wall_time():
    measured = {f"seconds/{name}": seconds for name, seconds in MEASURED.items()}
    left = wall_time(measured)
    assert left == {"seconds/programs": 0.5, "seconds/rest": 0.5}
    assert sum((measured | left)[f"seconds/{part}"] for part, *_ in PARTS) == 10


def test_a_report_shows_the_steps_after_the_one_that_compiles():
    measured = {f"seconds/{name}": seconds for name, seconds in MEASURED.items()}
    steps = np.arange(3)
    log = {name: (steps, np.array([99.0, each, each])) for name, each in (measured | wall_time(measured)).items()}
    table = wall_time_table(log | {"slots/occupancy": (steps, np.array([0.1, 0.8, 0.8]))})
    cells = {row[0].text: [cell.text for cell in row[1:]] for section in table.sections for row in section}
    assert cells["devices: sampling"] == ["3.000", "30%", "20%"]
    assert cells["step"] == ["10.000", "100%", ""]
    assert wall_time_table({"loss/policy": (steps, steps.astype(float))}) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40), st.integers(1, 5))
def test_repetition_is_the_plain_count(pairs, size):
    tokens, own = [token for token, _ in pairs], [by_policy for _, by_policy in pairs]
    starts = [start for start in range(len(tokens) - size + 1) if all(own[start : start + size])]
    grams = [tuple(tokens[start : start + size]) for start in starts]
    expected = 1 - len(set(grams)) / len(grams) if grams else 0
    assert step_metrics.repetition([record_of_tokens(tokens, own)], size)[0] == pytest.approx(expected)


def test_repetition_by_hand():
    loop, varied, short = map(record_of_tokens, ([1, 2, 3, 4] * 5, range(20), [1, 1, 1]))
    assert step_metrics.repetition([loop, varied, short]).tolist() == [1 - 4 / 17, 0, 0]


def test_wrong_language_is_the_complement_of_correct_language():
    episodes = [record_of_tokens((), answer=answer) for answer in ("Helsinki", "Хельсинки", None, "1952")]
    np.testing.assert_array_equal(step_metrics.wrong_language(episodes, ("fi", "ru")), [0, 1, np.nan, np.nan])

"""A method's groups, rewards and advantages, and the metrics of a step."""

import dataclasses
import types
from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_parts import question, record_of
from support import tiny_config, tiny_tokenizer

from lcrag.data.questions import Question
from lcrag.episodes import Outcome
from lcrag.errors import UserError
from lcrag.evaluation.tables import PARTS, wall_time_table
from lcrag.methods.lcrl import language_coupled
from lcrag.policy import Policy, make_mesh
from lcrag.policy.config import accelerator_named
from lcrag.policy.parameters import causal_mean, forward_flops
from lcrag.rewards import Term, TermSum
from lcrag.train import steps as step_metrics
from lcrag.train.method import Method, extremes, values_of
from lcrag.train.steps import episode_metrics, memory_metrics, rate_metrics, rollout_flops


def answered(asked, answer="Lima", **extra):
    return record_of(asked, outcome=Outcome(answer=answer, extra=extra))


FAILED = record_of(question(0), failure="late")
FINITE = {"update/non_finite_in_a_row": 0}


def rewarding(values):
    return TermSum(terms=(Term("given", lambda episodes: np.array(values[: len(episodes.answers)], float)),))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, np.inf], "mine returned inf for question 'q 1'"),
        ([0.5, 1e39], "mine returned 1e+39 for question 'q 1'"),
        *[([0.5, value], f"mine returned {value!r} for question 'q 1'") for value in (None, "yes", "0.5", [1.0], 1j)],
        *[(values, "for 2 episodes: return one number for each") for values in ([1.0], np.ones(3), None, "ab", 0.5)],
        (np.array([1.0, -np.inf]), "mine returned -inf for question 'q 1'"),
        (np.ones((2, 1)), "mine returned [1.0] for"),
        ({"a": 1, "b": 2}, "for 2 episodes"),
        (ZeroDivisionError("oh"), "mine raised ZeroDivisionError: oh ("),
    ],
)
@pytest.mark.parametrize("as_term", [True, False])
def test_what_is_no_reward_is_a_mistake_at_its_first_occurrence(values, message, as_term):
    def mine(episodes):
        if isinstance(values, Exception):
            raise values
        return values

    bare = lambda episodes: {"total": mine(episodes)}  # noqa: E731
    records = [answered(dataclasses.replace(question(n), text=f"q {n}")) for n in range(2)]
    with pytest.raises(UserError) as raised:
        method(TermSum(terms=(Term("mine", mine),)) if as_term else bare).score(records, 0)
    assert (message if as_term else message.replace("mine", "total")) in str(raised.value)


def test_a_reward_without_a_total_or_with_an_infinite_weight_or_turn_is_a_mistake():
    records = [answered(question(n)) for n in range(2)]
    with pytest.raises(UserError, match="the reward returned array"):
        method(lambda episodes: np.ones(2)).score(records, 0)
    for weight in (np.nan, lambda step: np.inf):
        with pytest.raises(UserError, match="the weight of the reward term mine is"):
            method(TermSum(terms=(Term("mine", lambda episodes: np.ones(2), weight),))).score(records, 0)
    with pytest.raises(UserError, match="the reward term mine, in its weight, raised KeyError"):
        method(TermSum(terms=(Term("mine", lambda episodes: np.ones(2), {1: 1.0}.__getitem__),))).score(records, 0)
    given = rewarding([1.0, 1.0])
    for adjusted in (None, np.ones(2), (None, {}), (np.ones(1), {}), (np.ones(2), None), (np.ones(2), {"mine": None})):
        with pytest.raises(UserError, match="returned"):
            method(dataclasses.replace(given, adjustments=(mock.Mock(return_value=adjusted),))).score(records, 0)
    given = dataclasses.replace(given, turn_rewards=lambda episodes: [{0: 1.0}, {0: np.inf}])
    with pytest.raises(UserError, match="of single turns returned inf"):
        method(given).score(records, 0)


def test_episodes_without_a_score_are_named_on_the_console():
    records = [answered(question(0)), answered(question(1)), FAILED]
    episodes = method(rewarding([1.0, np.nan])).score(records, 0)
    said = []
    notices = step_metrics.Notices(said.append)
    notices(0, FINITE, episodes[::2])
    assert said == []
    for step in (1, 2):
        notices(step, FINITE, episodes)
    (notice,) = said
    assert notice.startswith("step 1: 1 of 3 episodes have no score")
    assert "given returned NaN" in notice


@pytest.mark.parametrize(("empty", "said"), [(0, ""), (2, ""), (3, "6 of 8 turns of the policy have no text")])
def test_a_policy_that_writes_nothing_is_named(empty, said):
    counts = {"generations": 4, "empty_turns": empty}
    records = [dataclasses.replace(answered(question(n)), counts=counts) for n in range(2)]
    notices = []
    step_metrics.Notices(notices.append)(0, FINITE, method(rewarding([1.0, 0.0])).score(records, 0))
    assert [notice.split(":")[1].strip() for notice in notices] == ([said] if said else [])


def method(reward, **settings):
    return Method(name="LcRL", program=lambda *_: None, reward=reward, **{"samples": 2} | settings)


def scored(reward, records, **settings):
    of = method(reward, coupling="independent", **settings)
    episodes = of.score(records, 0)
    of.set_advantages(episodes)
    return episodes


def test_a_failed_episode_is_in_no_baseline_no_update_and_no_mean():
    records = [answered(question(0)), answered(question(0)), FAILED]
    found = scored(rewarding([0.0, 1.0]), records)
    np.testing.assert_allclose([each.advantage for each in found], [-0.707, 0.707, 0], atol=1e-3)
    measured = episode_metrics(found, ("en",))
    assert measured["reward/total"] == 0.5
    assert [measured[f"episode/{name}"] for name in ("scored", "failed", "unscored")] == [2, 1, 1]
    assert not any(np.isnan(value) for value in measured.values())
    rows = [each.json() for each in found]
    assert [row["rewards"]["total"] for row in rows] == [0.0, 1.0, None]
    assert rows[2]["advantage"] is None
    assert rows[2]["failure"] == "late"


def test_the_extremes_of_the_groups_that_differ_most_are_kept():
    records = [dataclasses.replace(answered(question(place // 3)), episode=place) for place in range(12)]
    found = scored(rewarding([1, 1, 1, 0, 1, 0.5, 0.5, 0, 0.5, np.nan, np.nan, np.nan]), records, samples=3)
    assert extremes(found, 8) == [found[place] for place in (0, 3, 4, 6, 7)]
    rows = [each.json() for each in extremes(found, 1)]
    assert [row["episode"] for row in rows] == [3, 4]
    np.testing.assert_allclose([row["advantage"] for row in rows], [-1, 1], atol=1e-3)
    assert [found[place].json(advantage=False)["advantage"] for place in (3, 9)] == [None, None]


def test_adjustments_see_only_scored_episodes():
    seen = []

    def adjust(episodes, total):
        seen.append((episodes.answers, total.tolist()))
        return total + 1, {"named": total}

    reward = dataclasses.replace(rewarding([1.0, np.nan]), adjustments=(adjust,))
    found = scored(reward, [answered(question(0), "a"), answered(question(0), "b")])
    assert seen == [(["a"], [1.0])]
    np.testing.assert_array_equal(values_of(found, "total"), [2, np.nan])
    np.testing.assert_array_equal(values_of(found, "named"), [1, np.nan])


def test_a_rollout_without_any_score_ends_the_run():
    with pytest.raises(UserError, match="late"):
        scored(rewarding([]), [FAILED] * 2)
    with pytest.raises(UserError, match="no scores"):
        scored(rewarding([np.nan, np.nan]), [answered(question(0))] * 2)


def test_groups_of_one_and_near_ties_are_reported():
    records = [answered(question(number)) for number in (0, 0, 1, 1, 2, 2, 3, 3)]
    found = scored(rewarding([1.0, np.nan, 0.5, 0.51, 0.0, 1.0, 1.0, 1.0]), records, min_std=0.1)
    measured = episode_metrics(found, (), min_std=0.1)
    assert measured["groups/of_one"] == 0.25
    assert measured["groups/below_floor"] == 0.25
    assert measured["groups/without_variance"] == 0.25
    np.testing.assert_allclose([each.advantage for each in found[2:4]], [-0.05, 0.05], atol=1e-3)


def test_a_coupling_of_languages_needs_questions_in_several():
    alone = [question(0, "fi"), question(1, "ru")]
    with pytest.raises(UserError, match="one language"):
        method(language_coupled()).table(alone)
    assert len(method(language_coupled()).table([*alone, question(1, "fi")])) == 2
    assert len(method(language_coupled(), coupling="independent").table(alone)) == 2
    assert len(method(rewarding([])).table(alone)) == 2


# --- Metrics of a step ---


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


def test_a_prompt_shared_by_samples_is_counted_once():
    alone = forward_flops(CONFIG, 14, attended=causal_mean(14), unembedded=4)
    continued = forward_flops(CONFIG, 4, attended=(11 + 14) / 2, unembedded=4)
    assert rollout_flops(CONFIG, [record("a", 10, 4)]) == alone
    assert rollout_flops(CONFIG, [record("a", 10, 4), record("a", 10, 4)]) == alone + continued
    assert rollout_flops(CONFIG, [record("a", 10, 4), record("b", 10, 4)]) == 2 * alone


def test_utilisation_is_the_share_of_all_devices_peak(monkeypatch):
    accelerator = accelerator_named("v5e")
    monkeypatch.setattr(step_metrics, "accelerator_of", lambda device: accelerator)
    measured = rate_metrics("rollout", policy(devices=4), 1e12, 0.5)
    assert measured["flops_per_second/rollout"] == 2e12
    assert measured["mfu/rollout"] == pytest.approx(2e12 / (4 * 197e12))


def test_a_step_without_differing_rewards_has_no_signal():
    equal = {"groups/without_variance": 0.75, "groups/of_one": 0.25, "groups/below_floor": 0.25}
    varied = {"groups/of_one": 0.0}
    said = []
    notices = step_metrics.Notices(said.append)
    for step, more in enumerate((varied, {"critic/gradient_norm": 1.0}, *[{}] * 10, varied, {})):
        notices(step, FINITE | equal | more)
    assert [notice.partition(",")[0] for notice in said] == [
        "step 2: no reward varied within a group",
        "step 11: no reward varied within a group for 10 steps",
        "step 13: no reward varied within a group",
    ]


def test_memory_is_that_of_the_fullest_device(monkeypatch):
    statistics = [{"bytes_in_use": 5, "peak_bytes_in_use": 9}, {"bytes_in_use": 7, "peak_bytes_in_use": 8}, None]
    devices = [types.SimpleNamespace(memory_stats=lambda stats=stats: stats) for stats in statistics]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert memory_metrics() == {"device/memory_bytes": 7, "device/memory_peak_bytes": 9}
    monkeypatch.setattr(jax, "local_devices", lambda: devices[2:])
    assert memory_metrics() == {}


SECONDS = {"step": 10.0, "rollout": 6.0, "append": 1.0, "decode": 3.0, "retrieval_wait": 1.5, "programs": 0.5}
SECONDS |= {"rewards": 0.5, "update": 3.0, "rest": 0.5}


def test_a_report_shows_the_steps_after_the_one_that_compiles():
    assert sum(SECONDS[part] for part, *_ in PARTS) == SECONDS["step"]
    steps = np.arange(3)
    log = {f"seconds/{name}": (steps, np.array([99.0, each, each])) for name, each in SECONDS.items()}
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


def test_wrong_language_is_the_share_of_the_answers_whose_language_is_known():
    answers = ("Helsinki", "Хельсинки", None, "1952")
    episodes = scored(rewarding([1.0, 0.0, 1.0, 0.0]), [record_of_tokens((), answer=answer) for answer in answers])
    assert episode_metrics(episodes, ("fi", "ru"))["episode/wrong_language"] == 0.5

"""A method's groups, rewards and advantages: what couples, what is left out of a baseline, and what is reported."""

import dataclasses

import numpy as np
import pytest
import rollout_parts
from rollout_parts import question

from lcrag.episodes import Outcome
from lcrag.errors import UserError
from lcrag.methods.lcrl import language_coupled
from lcrag.methods.r_search import r_search_reward
from lcrag.rewards import Term, TermSum
from lcrag.train.method import Method, extremes, kept_for_update, values_of
from lcrag.train.metrics import episode_metrics


def record_of(asked, answer="Lima", **extra):
    return rollout_parts.record_of(asked, outcome=Outcome(answer=answer, extra=extra))


FAILED = rollout_parts.record_of(question(0), failure="late")


def given(values):
    """A reward that gives these values in turn."""
    return TermSum(terms=(Term("given", lambda episodes: np.array(values[: len(episodes.answers)], float)),))


def method(reward, **settings):
    return Method(name="LcRL", program=lambda *_: None, reward=reward, **{"samples": 2} | settings)


def scored(reward, records, **settings):
    of = method(reward, coupling="independent", **settings)
    episodes = of.score(records, 0)
    of.set_advantages(episodes)
    return episodes


def test_a_failed_episode_is_in_no_baseline_no_update_and_no_mean():
    records = [record_of(question(0)), record_of(question(0)), FAILED]
    found = scored(given([0.0, 1.0]), records)
    np.testing.assert_allclose([each.advantage for each in found], [-0.707, 0.707, 0], atol=1e-3)
    measured = episode_metrics(found)
    assert measured["reward/total"] == 0.5
    assert [measured[f"episode/{name}"] for name in ("scored", "failed", "unscored")] == [2, 1, 1]
    assert not any(np.isnan(value) for value in measured.values())
    rows = [each.json() for each in found]
    assert [row["rewards"]["total"] for row in rows] == [0.0, 1.0, None]
    assert rows[2]["advantage"] is None
    assert rows[2]["failure"] == "late"
    assert kept_for_update(found, dynamic_sampling=False).tolist() == [True, True, False]


def test_the_extremes_of_the_groups_that_differ_most_are_kept():
    records = [dataclasses.replace(record_of(question(place // 3)), episode=place) for place in range(12)]
    found = scored(given([1, 1, 1, 0, 1, 0.5, 0.5, 0, 0.5, np.nan, np.nan, np.nan]), records, samples=3)
    assert extremes(found, 8) == [0, 3, 4, 6, 7]
    assert extremes(found, 1) == [3, 4]
    rows = [found[place].json() for place in (3, 4)]
    assert [row["episode"] for row in rows] == [3, 4]
    np.testing.assert_allclose([row["advantage"] for row in rows], [-1, 1], atol=1e-3)
    assert [found[place].json(advantage=False)["advantage"] for place in (3, 9)] == [None, None]


def test_a_reader_that_fails_leaves_its_episode_without_a_score():
    reward = r_search_reward(lambda questions, evidences: ["Lima", None])
    extra = {"evidence": "Lima is it.", "valid_searches": 1, "well_formed_answer": True}
    found = scored(reward, [record_of(question(0), **extra), record_of(question(0), **extra)])
    assert np.isnan(values_of(found, "total")).tolist() == [False, True]
    assert np.isnan(values_of(found, "evidence")).tolist() == [False, True]
    assert episode_metrics(found)["episode/failed"] == 0
    assert episode_metrics(found)["episode/unscored"] == 1


def test_adjustments_see_only_scored_episodes():
    seen = []

    def adjust(episodes, total):
        seen.append((episodes.answers, total.tolist()))
        return total + 1, {"named": total}

    reward = dataclasses.replace(given([1.0, np.nan]), adjustments=(adjust,))
    found = scored(reward, [record_of(question(0), "a"), record_of(question(0), "b")])
    assert seen == [(["a"], [1.0])]
    np.testing.assert_array_equal(values_of(found, "total"), [2, np.nan])
    np.testing.assert_array_equal(values_of(found, "named"), [1, np.nan])


def test_a_rollout_without_any_score_ends_the_run():
    with pytest.raises(UserError, match="late"):
        scored(given([]), [FAILED] * 2)
    with pytest.raises(UserError, match="a model of the reward gave no scores"):
        scored(given([np.nan, np.nan]), [record_of(question(0))] * 2)


def test_groups_of_one_and_near_ties_are_reported():
    records = [record_of(question(number)) for number in (0, 1, 1, 2, 2, 3, 3)]
    found = scored(given([1.0, 0.5, 0.51, 0.0, 1.0, 1.0, 1.0]), records, min_std=0.1)
    measured = episode_metrics(found, 0.1)
    assert measured["groups/of_one"] == 0.25
    assert measured["groups/below_floor"] == 0.25
    assert measured["groups/without_variance"] == 0.25
    np.testing.assert_allclose([each.advantage for each in found[1:3]], [-0.05, 0.05], atol=1e-3)
    with pytest.raises(UserError, match="Method.min_std"):
        method(given([]), min_std=-1.0)


def test_a_coupling_of_languages_needs_questions_in_several():
    alone = [question(0, "fi"), question(1, "ru")]
    with pytest.raises(UserError, match="one language"):
        method(language_coupled()).table(alone)
    assert len(method(language_coupled()).table([*alone, question(1, "fi")])) == 2
    assert len(method(language_coupled(), coupling="independent").table(alone)) == 2
    assert len(method(given([])).table(alone)) == 2

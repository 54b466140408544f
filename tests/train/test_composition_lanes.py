"""Rollouts shared out over lanes: who samples what, and that all of it comes back in order."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import gin
import jax
import numpy as np
import pytest
from joined_processes import free_port
from lane_parts import GROUPS, STEALING, digest, make_lanes, question, rows, searching
from lcrag.train.lane_episodes import all_lanes, in_order, packed_lanes
from lcrag.train.lane_plan import GroupQueue, assigned_lanes, lane_sampler
from support import tiny_config

from lcrag.episodes import episode_json
from lcrag.errors import UserError
from lcrag.policy import initialise, make_mesh
from lcrag.sampling import SamplerConfig

PROCESS = """
import sys

process, port, folder = sys.argv[1:]
sys.path.insert(0, folder)
from joined_processes import join

join(process, 2, port)
from lane_parts import GROUPS, STEALING, digest, make_lanes

print(digest(make_lanes(2, 2)))
stealing = make_lanes(2, 2, bindings=STEALING)
for step in range(2):
    print([record.episode for record in stealing.roll_out(GROUPS, 20, policy_version=0, step=step).records])
"""


@pytest.fixture
def lanes():
    """Makes lanes of a tiny policy on some devices."""
    yield make_lanes
    gin.clear_config()


def test_two_processes_sample_what_one_does(lanes):
    port = str(free_port())
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    line = [sys.executable, "-c", PROCESS]
    running = [subprocess.Popen([*line, process, port, str(Path(__file__).parent)], **options) for process in "01"]
    here = digest(lanes(2, 2))
    there = [process.communicate(timeout=600) for process in running]
    for output, errors in there:  # then groups that lanes took from a queue: each once
        assert output.splitlines()[-3:] == [here, *2 * (str(list(range(20, 32))),)], errors


def test_groups_are_dealt_whole_and_evenly():
    assert assigned_lanes([(question(number),) for number in range(7)], 3) == [0, 1, 2, 0, 1, 2, 0]
    assert assigned_lanes([GROUPS[1], GROUPS[0], *GROUPS[2:4]], 2) == [1, 0, 1, 0]  # the largest first
    assert assigned_lanes([GROUPS[1], GROUPS[2], GROUPS[1]], 2) == [0, 1, 0]  # a question that is drawn twice


def test_a_queue_hands_out_each_group_once_and_no_more_than_there_is_room_for():
    asked = question(0)
    programs = [[(asked, searching(asked, ()), 2 * number + sample) for sample in range(2)] for number in range(5)]
    shared = GroupQueue(programs, 2, "one process")
    taken = [[number for *_, number in shared.take(room)] for room in (3, 0, 9, 1)]
    assert taken == [[0, 1, 2, 3], [], [4, 5, 6, 7, 8, 9], []]


def test_a_lane_takes_the_groups_for_which_a_slow_one_has_no_room(lanes, monkeypatch):
    """The second lane decodes its first block when no group is left, the first one when the second has begun."""
    own, begun, empty, take = lanes(2, bindings=STEALING), threading.Event(), threading.Event(), GroupQueue.take

    def watched(self, room):
        taken = take(self, room)
        if room > 0 and not taken:
            empty.set()
        return taken

    def waiting(decode, event, reached):
        def waited():
            reached.set()
            assert event.wait(60)
            return decode()

        return waited

    monkeypatch.setattr(GroupQueue, "take", watched)
    first, second = (lane.sampler for lane in own.local)
    monkeypatch.setattr(first, "decode", waiting(first.decode, begun, threading.Event()))
    monkeypatch.setattr(second, "decode", waiting(second.decode, empty, begun))
    share = own.sample(GROUPS, 0, policy_version=0, step=0)
    assert [len(each.records) for each in share.lanes] == [8, 4]
    records, _ = in_order(share.lanes)
    assert [record.episode for record in records] == list(range(12))
    dealt_out = lanes(2).roll_out(GROUPS, 0, policy_version=0, step=0).records
    assert [each.tokens.tolist() for each in records] == [each.tokens.tolist() for each in dealt_out]


def test_a_lane_has_its_share_of_slots_and_rows():
    shared = lane_sampler(SamplerConfig(slots=12, append_rows=(5, 12), decode_rows=(3,)), 4)
    assert (shared.slots, shared.append_rows, shared.decode_rows) == (3, (2, 3), (1,))
    with pytest.raises(UserError, match="Sampler.slots is 12, which 5 lanes cannot share evenly"):
        lane_sampler(SamplerConfig(slots=12), 5)


@pytest.mark.parametrize(("count", "devices"), [(1, 1), (3, 1), (2, 4)])
def test_all_episodes_come_in_the_order_of_the_prompts(lanes, count, devices):
    own = lanes(count, devices)
    shown = []
    scored = own.roll_out(GROUPS, 20, policy_version=2, step=1, progress=lambda *done: shown.append(done))
    asked = [(each.question.key, each.episode, each.policy_version) for each in scored.records]
    keys = [each.key for group in GROUPS for each in group for _ in range(2)]
    assert asked == [(key, number, 2) for number, key in enumerate(keys, 20)]
    assert shown[-1] == (12, 12)
    assert own.statistics.sampled_tokens == sum(int(each.by_policy.sum()) for each in scored.records)
    np.testing.assert_allclose(scored.rewards["total"].reshape(-1, 2)[2:].sum(axis=1), 0, atol=1e-6)
    assert abs(scored.rewards["total"][:4].sum()) < 1e-6  # the coupled question in both languages


def test_lanes_sample_what_one_samples_and_again_with_other_parameters(lanes):
    """What an episode samples depends on its number, not on its lane; after the first update they still agree."""
    found = []
    for count in (1, 2):
        own = lanes(count)
        first = own.roll_out(GROUPS, 0, policy_version=0, step=0)
        params = initialise(tiny_config(layers=1), jax.random.key(1), make_mesh(devices=jax.devices()[:1]))
        own.set_params(params)
        if count > 1:  # lanes have copies
            jax.tree.map(lambda leaf: leaf.delete(), params)
        found.append([first, own.roll_out(GROUPS, 0, policy_version=1, step=1)])
    for one, two in zip(*found, strict=True):
        assert [each.tokens.tolist() for each in one.records] == [each.tokens.tolist() for each in two.records]
        np.testing.assert_array_equal(one.advantages, two.advantages)
    assert rows(found[0][0]) != rows(found[0][1])


def test_what_other_processes_sampled_arrives(lanes, monkeypatch):
    own = lanes(2)
    share = own.sample(GROUPS, 0, policy_version=0, step=0)
    here, there = ([each] for each in share.lanes)
    whole = in_order(share.lanes)
    contents = [packed_lanes(here), packed_lanes(there)]
    for process, kept in enumerate((here, there)):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        share.lanes = kept
        records, rewards = in_order(all_lanes(share, contents))
        assert [episode_json(each) for each in records] == [episode_json(each) for each in whole[0]]
        for name, values in whole[1].values.items():
            np.testing.assert_array_equal(rewards.values[name], values)


def test_a_value_that_one_lane_lacks_is_unknown_there(lanes):
    first, second = lanes(2).sample(GROUPS, 0, policy_version=0, step=0).lanes
    del second.rewards.values["length"]
    records, rewards = in_order([first, second])
    unknown = np.array([each.episode for each in records])[np.isnan(rewards.values["length"])]
    assert set(unknown) == {record.episode for record in second.records}


def test_fewer_groups_than_lanes(lanes):
    assert len(lanes(4).roll_out(GROUPS[1:3], 0, policy_version=0, step=0).records) == 4


def test_a_failure_of_one_lane_ends_all_of_them(lanes):
    def breaking(asked, languages):
        if asked.id == "3":
            raise UserError("there is no third capital")
        return searching(asked, languages)

    own = lanes(2, program=breaking)
    with pytest.raises(UserError, match="there is no third capital"):
        own.roll_out(GROUPS, 0, policy_version=0, step=0)


def test_an_abandoned_rollout_is_a_failure(lanes):
    own = lanes(2)
    own.abandon()
    assert isinstance(own.sample(GROUPS, 0, policy_version=0, step=0).failure, Exception)


def test_no_scored_episode_in_one_lane_is_no_mistake(lanes):
    def unknown(episodes):
        return {"total": np.array([np.nan if "fi" in episodes.languages else 1.0 for _ in episodes.answers])}

    scored = lanes(2, reward=unknown).roll_out(GROUPS, 0, policy_version=0, step=0)
    assert 0 < scored.scored.sum() < len(scored.records)


@pytest.mark.parametrize(
    ("bindings", "clue"),
    [
        (("Lanes.count = 3",), "Lanes.count is 3, which does not divide the 4 devices of the mesh"),
        (("Lanes.count = 2", "Lanes.tensor = 3"), "Lanes.tensor is 3, .* choose among 1, 2"),
        (("Lanes.count = 8", "Sampler.slots = 4"), "Sampler.slots is 4, which 8 lanes cannot share"),
        (("Lanes.count = 0",), "count must be 1 or more"),
        (("Lanes.count = 1", "Lanes.stealing = True"), "Lanes.stealing is True, but Lanes.count is 1"),
    ],
)
def test_lanes_that_do_not_fit_are_refused(lanes, bindings, clue):
    with pytest.raises(UserError, match=clue):
        lanes(2, 4, bindings=bindings)

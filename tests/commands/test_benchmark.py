"""`lcrag benchmark`: what it times, the floors it compares with, and the comparison with an earlier run."""

import copy
import json

import gin
import jax
import numpy as np
import pytest
from support import tiny_config

from lcrag import main
from lcrag.commands import benchmark as benchmarking
from lcrag.commands.benchmark import Machine, check_as_fast, drawn_episodes, measured_machine, read_result, timed
from lcrag.errors import UserError
from lcrag.policy import make_mesh
from lcrag.policy.parameters import causal_mean, forward_flops

TINY = """compile.decoder=@DecoderConfig() DecoderConfig.vocabulary_size=384 DecoderConfig.width=32
DecoderConfig.layers=2 DecoderConfig.heads=4 DecoderConfig.kv_heads=2 DecoderConfig.head_width=8
DecoderConfig.mlp_width=48 DecoderConfig.max_positions=256 Sampler.slots=8 Sampler.context=48 Sampler.block=4
Sampler.windows=(16,) Sampler.decode_rows=() Sampler.append_rows=(4,) Sampler.append_tokens=(16,) Layout.rows=8
Layout.row_lengths=(64,) benchmark.repeats=2""".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmark")
    gin.clear_config()
    line = ["benchmark", "--gin_file=quickstart.gin", f"--output_dir={output}", *(f"--gin.{each}" for each in TINY)]
    with pytest.MonkeyPatch.context() as patch:  # how good the rates are is no subject of the tests
        patch.setitem(benchmarking.COPIED_BYTES, "cpu", 1 << 20)
        patch.setitem(benchmarking.MATRIX_WIDTH, "cpu", 64)
        assert main.run(line) == 0
    return output


@pytest.fixture(scope="module")
def result(folder):
    return json.loads((folder / "benchmark.json").read_text())


def test_the_phases_of_a_step_are_timed(folder, result):
    names = [row["work"] for row in result["rows"]]
    assert names == ["append 4 x 16", "decode 8 slots at 16", "decode 8 slots at 48", "update on 8 episodes"]
    assert [row["tokens"] for row in result["rows"][:3]] == [4 * 16, 8 * 4, 8 * 4]
    assert all(len(row["seconds"]) == 2 for row in result["rows"])
    table = (folder / "benchmark.md").read_text()
    assert all(f"| {name} |" in table for name in names)


def test_the_floor_is_the_work_by_formula_over_the_measured_rates(result):
    config = tiny_config(vocabulary_size=384, width=32, layers=2, heads=4, kv_heads=2, head_width=8, mlp_width=48)
    flops = forward_flops(config, 4 * 16, attended=causal_mean(16), unembedded=0)
    append = result["rows"][0]
    assert append["floor_seconds"] == pytest.approx(flops / result["machine"]["flops_per_second"])
    assert append["share_of_floor"] == pytest.approx(append["floor_seconds"] / append["median_seconds"])


def test_a_slower_phase_fails_the_check(folder, result):
    before = read_result(str(folder / "benchmark.json"))
    check_as_fast(result, before, 0.0, "before.json")
    slower = copy.deepcopy(result)
    slower["rows"][1]["share_of_floor"] *= 0.8
    with pytest.raises(UserError, match="decode 8 slots at 16"):
        check_as_fast(slower, before, 0.1, "before.json")
    check_as_fast(slower, before, 0.3, "before.json")
    with pytest.raises(UserError, match="configuration"):
        check_as_fast(result | {"mesh": {"data": 2}}, before, 0.1, "before.json")
    (folder / "broken.json").write_text('{"rows": []}')
    for name in ("broken.json", "missing.json"):
        with pytest.raises(UserError, match=name):
            read_result(str(folder / name))


def test_the_longer_of_computing_and_moving_is_the_floor():
    machine = Machine(name="", bytes_per_second=10.0, flops_per_second=100.0)
    assert [machine.floor_seconds(200, moved) for moved in (10, 50)] == [2, 5]
    calls = []
    assert len(timed(lambda: calls.append(1), 3)) == len(calls) - 1, "the call that compiles is not timed"


def test_rates_are_of_all_devices_of_the_mesh(monkeypatch):
    monkeypatch.setattr(benchmarking, "timed", lambda work, repeats: [0.5, 1.0, 7.0])
    rates = measured_machine(make_mesh(data=2, devices=jax.devices()[:2]), np.dtype(np.float32), 3)
    assert rates.flops_per_second == 2 * 2 * benchmarking.MATRIX_WIDTH["cpu"] ** 3
    assert rates.bytes_per_second == 2 * 2 * benchmarking.COPIED_BYTES["cpu"]


def test_drawn_episodes_fit_a_row_and_end_with_the_policy():
    episodes = drawn_episodes(50, 64, 384)
    lengths = [len(each.tokens) for each in episodes]
    assert 16 <= min(lengths) <= max(lengths) <= 64
    assert all(each.by_policy[-1] for each in episodes)
    assert not any(each.by_policy[0] for each in episodes)

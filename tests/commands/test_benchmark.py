"""`lcrag benchmark`: what it times, the floors it compares with, and the comparison with an earlier run."""

import contextlib
import copy
import json

import gin
import jax
import numpy as np
import pytest
from experiment_parts import assert_mistake
from support import tiny_config

import lcrag.composition.commands  # noqa: F401  registers what the files name
from lcrag import main
from lcrag.commands.benchmark import growth, machine
from lcrag.commands.benchmark.benchmarking import check_as_fast, read_result
from lcrag.commands.benchmark.machine import Machine, measured_machine, seconds_of
from lcrag.commands.benchmark.workloads import drawn_episodes
from lcrag.commands.compile.lowering import CompilePlan
from lcrag.composition.stand_ins import standing_in
from lcrag.errors import UserError
from lcrag.learning import Layout, PolicyGradient, adamw
from lcrag.policy import make_mesh
from lcrag.policy.flops import causal_mean, forward_flops
from lcrag.sampling import SamplerConfig

TINY = """compile.decoder=@DecoderConfig() DecoderConfig.vocabulary_size=384 DecoderConfig.width=32
DecoderConfig.layers=2 DecoderConfig.heads=4 DecoderConfig.kv_heads=2 DecoderConfig.head_width=8
DecoderConfig.mlp_width=48 DecoderConfig.max_positions=256 Sampler.slots=8 Sampler.context=48 Sampler.block=4
Sampler.windows=(16,) Sampler.decode_rows=() Sampler.append_rows=(4,) Sampler.append_tokens=(16,) Layout.rows=8
Layout.row_lengths=(64,) benchmark.repeats=2""".split()
MACHINE = Machine(name="1 x cpu", bytes_per_second=10.0, flops_per_second=100.0)


def benchmark(*bindings, output=None):
    gin.clear_config()
    line = ["benchmark", "--gin_file=quickstart.gin", *(f"--gin.{each}" for each in (*TINY, *bindings))]
    return main.run(line + ([f"--output_dir={output}"] if output else []))


@contextlib.contextmanager
def small_machine():
    """Measures its rates in little time; how good they are is no subject of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(machine.COPIED_BYTES, "cpu", 1 << 20)
        patch.setitem(machine.MATRIX_WIDTH, "cpu", 64)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmark")
    # the first of the eight pretended devices
    with small_machine(), standing_in({"mesh": lambda call: make_mesh(devices=jax.devices()[:1])}):
        assert benchmark(output=output) == 0
    return output


@pytest.fixture(scope="module")
def result(folder):
    return json.loads((folder / "benchmark.json").read_text())


def test_the_phases_of_a_step_are_timed(result):
    names = [row["work"] for row in result["rows"]]
    assert names == ["append 4 x 16", "decode 8 slots at 16", "decode 8 slots at 48", "update on 8 episodes"]
    assert [row["tokens"] for row in result["rows"][:3]] == [4 * 16, 8 * 4, 8 * 4]
    assert all(len(row["seconds"]) == 2 for row in result["rows"])


def test_the_floor_is_the_work_by_formula_over_the_measured_rates(result):
    config = tiny_config(vocabulary_size=384, width=32, layers=2, heads=4, kv_heads=2, head_width=8, mlp_width=48)
    flops = forward_flops(config, 4 * 16, attended=causal_mean(16), unembedded=0)
    append = result["rows"][0]
    assert append["floor_seconds"] == pytest.approx(flops / result["machine"]["flops_per_second"])
    assert append["share_of_floor"] == pytest.approx(append["floor_seconds"] / append["median_seconds"])


def test_the_table_has_a_row_a_phase(folder, result):
    table = (folder / "benchmark.md").read_text()
    assert [row["work"] for row in result["rows"] if f"| {row['work']} |" not in table] == []


def test_the_same_speed_passes_the_check(folder, result):
    check_as_fast(result, result, 0.0, "before.json")


def test_a_slower_phase_fails_the_check(result):
    slower = copy.deepcopy(result)
    slower["rows"][1]["share_of_floor"] *= 0.8
    with pytest.raises(UserError, match=r"by more than 10%: decode 8 slots at 16 reaches"):
        check_as_fast(slower, result, 0.1, "before.json")
    check_as_fast(slower, result, 0.3, "before.json")


def test_another_configuration_cannot_be_compared(result):
    with pytest.raises(UserError, match=r"before\.json is of another configuration"):
        check_as_fast(result | {"mesh": {"data": 2}}, result, 0.1, "before.json")


@pytest.mark.parametrize(
    ("text", "problem"), [("{", "is not a benchmark.json"), ('{"rows": []}', "is not a"), (None, "cannot read")]
)
def test_a_result_that_cannot_be_read(tmp_path, text, problem):
    if text is not None:
        (tmp_path / "b.json").write_text(text)
    with pytest.raises(UserError, match=problem):
        read_result(str(tmp_path / "b.json"))


@pytest.mark.parametrize(("flops", "moved", "seconds", "bound"), [(200, 10, 2, "operations"), (200, 50, 5, "memory")])
def test_the_longer_of_computing_and_moving_is_the_floor(flops, moved, seconds, bound):
    assert MACHINE.floor_seconds(flops, moved) == seconds
    assert MACHINE.bound_by(flops, moved) == bound


def test_the_call_that_compiles_is_not_timed():
    calls = []
    assert len(seconds_of(lambda: calls.append(1) or jax.numpy.zeros(1), 3)) == 3
    assert len(calls) == 4


def test_rates_are_of_all_devices_of_the_mesh(monkeypatch):
    monkeypatch.setattr(machine, "seconds_of", lambda work, repeats: [0.5, 1.0, 7.0])
    rates = measured_machine(make_mesh(data=2, devices=jax.devices()[:2]), np.dtype(np.float32), 3)
    assert rates.flops_per_second == 2 * 2 * machine.MATRIX_WIDTH["cpu"] ** 3
    assert rates.bytes_per_second == 2 * 2 * machine.COPIED_BYTES["cpu"]


def test_drawn_episodes_fit_a_row_and_end_with_the_policy():
    episodes = drawn_episodes(50, 64, 384)
    lengths = [len(each.tokens) for each in episodes]
    assert min(lengths) >= 16
    assert max(lengths) <= 64
    assert all(each.by_policy[-1] for each in episodes)
    assert not any(each.by_policy[0] for each in episodes)


@pytest.mark.parametrize(
    ("binding", "words"),
    [
        ('compile.topology="v5e:4x4"', "runs on the devices present"),
        ('benchmark.check="nowhere.json"', "cannot read nowhere.json"),
        ("benchmark.growth=True", "--growth needs a folder"),
    ],
)
def test_mistakes(capsys, binding, words):
    assert benchmark(binding) == 2
    assert_mistake(capsys, words)


@pytest.fixture
def square(monkeypatch):
    """Two series whose seconds are the square of their sizes; returns the sizes that are measured."""
    measured = []

    def seconds(plan, size, repeats):
        measured.append(size)
        return 1e-3 * size**2

    monkeypatch.setattr(growth, "SIZES", {"slots": (1, 2, 4), "turns": (1, 3)})
    monkeypatch.setattr(growth, "MEASURES", dict.fromkeys(growth.SIZES, seconds))
    return measured


def grown(folder, most_seconds=60.0, **sizes):
    plan = CompilePlan(
        config=tiny_config(**sizes),
        mesh=make_mesh(devices=jax.devices()[:1]),
        objective=PolicyGradient(),
        optimizer=adamw(learning_rate=1e-3, steps=1),
        layout=Layout(rows=1, row_lengths=(64,)),
        sampler=SamplerConfig(),
    )
    return growth.growth(plan, "1 x cpu", folder, 1, most_seconds, print)


def test_growth_fits_exponents_and_draws_them(tmp_path, square):
    result = grown(tmp_path)
    assert result["exponents"] == {"slots": 2.0, "turns": None}
    assert json.loads((tmp_path / "growth-1_x_cpu.json").read_text()) == result
    assert (tmp_path / "growth-1_x_cpu.png").stat().st_size > 0
    assert growth.exponents_text(result) == [
        "slots: 3 of 3 sizes, exponent 2.0",
        "turns: 2 of 2 sizes, exponent unknown",
    ]


def test_growth_continues_where_it_was_interrupted(tmp_path, square):
    path = tmp_path / "growth-1_x_cpu.json"
    whole = grown(tmp_path)
    del whole["points"]["turns"]["3"]
    path.write_text(json.dumps(whole))
    square.clear()
    grown(tmp_path)
    assert square == [3]


def test_a_series_ends_before_a_point_that_would_take_too_long(tmp_path, square):
    assert grown(tmp_path, most_seconds=0.0)["points"].keys() == {"slots", "turns"}
    assert square == [1, 1]


def test_points_of_another_model_are_not_mixed(tmp_path, square):
    grown(tmp_path)
    with pytest.raises(UserError, match="holds points of .* name another --output_dir"):
        grown(tmp_path, layers=1)


def test_growth_of_a_configuration_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "SIZES", {"context": (32,), "turns": (1,), "collection": (50,)})
    with standing_in({"mesh": lambda call: make_mesh(devices=jax.devices()[:1])}):
        assert benchmark("benchmark.growth=True", output=tmp_path) == 0
    [path] = tmp_path.glob("growth-*.json")
    points = json.loads(path.read_text())["points"]
    assert {name: list(own) for name, own in points.items()} == {
        "context": ["32"],
        "turns": ["1"],
        "collection": ["50"],
    }

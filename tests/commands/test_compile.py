"""`lcrag compile`, of the devices present and of TPUs that are not, and `lcrag benchmark`: phases and their floors."""

import importlib.util
import json
import math
import re
import types

import gin
import jax
import numpy as np
import pytest
from experiment_parts import assert_mistake
from support import tiny_config, tiny_tokenizer

from lcrag import main
from lcrag.commands import benchmark as benchmarking
from lcrag.commands.benchmark import Machine, drawn_episodes, measured_machine, timed
from lcrag.commands.compile import AbstractRun, device_bytes, lower
from lcrag.config import configure
from lcrag.learning import Layout, PolicyGradient, adamw, initial_state, largest_batch
from lcrag.learning.learners import policy_update
from lcrag.learning.update import batch_shares, place_batch
from lcrag.policy import Lora, initialise, join, make_mesh, param_shardings, parameter_count, split_trainable
from lcrag.policy.config import GIB, accelerator_of
from lcrag.policy.parameters import causal_mean, forward_flops, hand_over, lane_config, lane_meshes
from lcrag.retrieval.collections import memory_bytes
from lcrag.sampling import Sampler, SlotSampler
from lcrag.train.rollout import Lanes

TINY = """compile.decoder=@DecoderConfig() DecoderConfig.vocabulary_size=384 DecoderConfig.width=32
DecoderConfig.layers=2 DecoderConfig.heads=4 DecoderConfig.kv_heads=2 DecoderConfig.head_width=8
DecoderConfig.mlp_width=48 DecoderConfig.max_positions=256 Computation.unroll_layers=False Sampler.slots=8
Sampler.context=64 Sampler.block=4 Sampler.append_rows=(4,) Sampler.append_tokens=(16,) Layout.rows=8
Layout.row_lengths=(64,) mesh.fsdp=2 mesh.tensor=2""".split()
PHASES = "mesh.fsdp=1 mesh.tensor=1 Sampler.context=48 Sampler.windows=(16,) Sampler.decode_rows=() benchmark.repeats=2"
LAYOUT = Layout(rows=8, row_lengths=(64,))
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
# What is compiled for absent devices is stored, but cannot be read back without a client for them.
stored = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")


def compile_tiny(*words, bindings=(), output=None):
    gin.clear_config()
    line = ["compile", *words, "--gin_file=quickstart.gin", *(f"--gin.{each}" for each in (*TINY, *bindings))]
    return main.run(line + ([f"--output_dir={output}"] if output else []))


def reported(output):
    report = json.loads((output / "compile.json").read_text())
    return report, {each["program"]: each for each in report["programs"]}


def run_of(mesh, *, gather=False, kl=0.0, layers="auto", context=64, lanes=1, **changes):
    sizes = {"slots": 8, "context": context, "block": 4, "append_rows": (4,), "append_tokens": (16,)}
    return AbstractRun(
        tiny_config(compute_dtype="bfloat16", **changes),
        mesh,
        Lanes(
            sampler=Sampler(**sizes, gather_parameters=gather, layers=layers),
            runner=print,
            count=lanes,
            tensor=2 if lanes > 1 else 1,
        ),
        objective=PolicyGradient(kl_coefficient=kl),
        optimizer=adamw(learning_rate=1e-3, steps=5),
        layout=LAYOUT,
    )


def described(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), tree)


def trained_and_frozen(config, mesh):
    trained, frozen = split_trainable(config, initialise(config, jax.random.key(0), mesh))
    return trained, jax.tree.map(lambda leaf: leaf.astype(config.dtype), frozen)


def test_the_devices_present(tmp_path, capsys):
    assert compile_tiny(output=tmp_path) == 0
    report, programs = reported(tmp_path)
    assert report["mesh"] == {"data": 2, "fsdp": 2, "tensor": 2}
    assert set(programs) == {"update", "append", "decode"}
    for program in programs.values():
        assert program["memory"]["arguments"] > 0
        assert program["fits"] == (program["needed_bytes"] <= program["available_bytes"])
        assert program["available_bytes"] < memory_bytes() / 8  # which the devices share with the process
    assert "qwen3 of 2 layers, 32 wide, 384 tokens" in capsys.readouterr().out


def test_one_program_and_too_little_memory(tmp_path, capsys):
    assert compile_tiny("decode", bindings=("compile.memory_gib=1e-5",), output=tmp_path) == 2
    assert_mistake(capsys, "the decode does not fit", "Sampler.slots")
    _, programs = reported(tmp_path)
    assert set(programs) == {"decode"}
    assert programs["decode"]["fits"] is False


def test_abstract_arrays_are_those_of_a_run():
    """The update traced for them is, to the letter, the one that training runs; and they have a run's sizes."""
    mesh = make_mesh(fsdp=2, tensor=2)
    run = run_of(mesh, kl=0.01, lora=Lora(rank=2))
    update = policy_update(run.config, mesh, run.objective, run.optimizer, temperature=1.0)
    trained, frozen = trained_and_frozen(run.config, mesh)
    shardings, _ = split_trainable(run.config, param_shardings(run.config, mesh))
    state = initial_state(trained, run.optimizer, mesh, shardings)
    batch = largest_batch(LAYOUT, batch_shares(mesh))
    batch = batch.replace(reference_log_probabilities=batch.sampling_log_probabilities)
    assert described(run.train_state) == described(state)
    assert update.lower(state, place_batch(batch, mesh), frozen).as_text() == lower(run, "update")[0].as_text()
    on_a_device = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state)]
    assert run.residents["train state"] == sum(on_a_device)


def test_abstract_slots_are_those_of_a_sampler():
    mesh = make_mesh(fsdp=2, tensor=4)  # more shares than key-value heads
    run = run_of(mesh, layers="stacked")
    sampler = SlotSampler(run.config, join(*trained_and_frozen(run.config, mesh)), tiny_tokenizer(), run.lane, mesh)
    assert described(run.slots) == described(sampler._state)
    assert described(run.sampling_parameters) == described(sampler._params)


def test_abstract_lanes_are_those_of_a_run():
    mesh = make_mesh(data=1, fsdp=4, tensor=2)
    run = run_of(mesh, gather=True, lora=Lora(rank=2), layers="apart", lanes=4)
    lanes = lane_meshes(mesh, 4, 2)
    handed = hand_over(run.config, join(*trained_and_frozen(run.config, mesh)), mesh, lanes)[0]
    sampler = SlotSampler(lane_config(run.config), handed, tiny_tokenizer(), run.lane, lanes[0])
    assert run.lane.slots == 2
    assert described(run.slots) == described(sampler._state)
    assert described(run.sampling_parameters) == described(sampler._params)
    assert run.residents["slots"] == device_bytes(sampler._state)


def test_appending_and_decoding_move_no_cache():
    """Each device extends its own slots: nothing that crosses is as long as a context."""
    run = run_of(make_mesh(data=2, fsdp=2, tensor=2), context=200)
    for name in ("append", "decode"):
        program = lower(run, name)[0].compile().as_text()
        moved = re.findall(r" = (.*?) (?:all-gather|all-reduce|all-to-all|collective-permute)(?:-start)?\(", program)
        assert moved
        assert not [shape for shape in moved if "200" in shape]


def test_resident_arrays_are_arguments_or_held_meanwhile():
    run = run_of(make_mesh(fsdp=2, tensor=2), gather=True, kl=0.1)
    held = run.residents
    masters = held["train state"] / 3  # two moments
    assert masters / 2 < held["reference policy"] < 0.6 * masters  # bfloat16, the scales of norms float32
    sampling = device_bytes(run.sampling_parameters)
    shared = sampling - held["sampler's own parameters"]
    assert lower(run, "decode")[1] == sum(held.values()) - sampling - held["slots"]
    assert lower(run, "update")[1] == sum(held.values()) - held["train state"]
    assert 0 < shared < held["sampler's own parameters"]  # the scales of norms, which stay float32


@needs_libtpu
@stored
def test_a_tpu_that_is_not_there(tmp_path):
    bindings = ("mesh.data=1", "Computation.compute_dtype='bfloat16'", "Sampler.gather_parameters=True")
    assert compile_tiny("decode", "--topology", "v5e:2x2", bindings=bindings, output=tmp_path) == 0
    report, programs = reported(tmp_path)
    assert report["target"] == "v5e:2x2"
    assert programs["decode"]["fits"]
    assert 0 < programs["decode"]["needed_bytes"] < programs["decode"]["available_bytes"] == 15.75 * GIB


@pytest.mark.parametrize(
    ("kind", "name"),
    [("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v5p", "v5p"), ("NVIDIA H100 80GB HBM3", "h100"), ("cpu", None)],
)
def test_accelerators_are_identified(kind, name):
    device = types.SimpleNamespace(device_kind=kind, memory_stats=lambda: {"bytes_limit": 123 * GIB})
    found = accelerator_of(device)
    assert (found and (found.name, found.memory_bytes)) == (name and (name, 123 * GIB))


MODELS = {"qwen2_5_3b": 3_085_938_688, "qwen3_4b": 4_022_468_096, "qwen3_8b": 8_190_735_360,
          "qwen2_5_7b": 7_615_616_512}  # fmt: skip
PLATFORMS = [("tpu_v5e_16", "qwen2_5_3b", 16), ("tpu_v5p_64", "qwen3_8b", 64), ("h200", "qwen2_5_3b", 1),
             ("h100_8", "qwen2_5_3b", 8), ("gpu_80gb", "qwen2_5_3b", 1), ("tpu_v5e_8", "qwen2_5_3b", 8)]  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_have_as_many_parameters_as_published(name):
    configure([f"model/{name}.gin"], ())
    assert parameter_count(gin.get_configurable("DecoderConfig")()) == MODELS[name]


@pytest.mark.parametrize(("platform", "model", "devices"), PLATFORMS)
def test_platforms_divide_their_work(platform, model, devices):
    configure(["compile.gin", f"model/{model}.gin", f"platform/{platform}.gin"], ())
    sizes = gin.get_bindings("mesh")
    assert math.prod(sizes.values()) == devices
    shares, sampler, layout = sizes["data"] * sizes["fsdp"], gin.get_bindings("Sampler"), gin.get_bindings("Layout")
    assert sampler["slots"] % shares == layout["rows"] % shares == 0
    assert max(layout["row_lengths"]) >= sampler["context"]


# --- The benchmark.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    output = tmp_path_factory.mktemp("benchmark")
    gin.clear_config()
    line = [
        "benchmark",
        "--gin_file=quickstart.gin",
        f"--output_dir={output}",
        *(f"--gin.{each}" for each in (*TINY, *PHASES.split())),
    ]
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
    # The floor is the work by formula over the measured rates.
    config = tiny_config(vocabulary_size=384, width=32, layers=2, heads=4, kv_heads=2, head_width=8, mlp_width=48)
    flops = forward_flops(config, 4 * 16, attended=causal_mean(16), unembedded=0)
    append = result["rows"][0]
    assert append["floor_seconds"] == pytest.approx(flops / result["machine"]["flops_per_second"])
    assert append["share_of_floor"] == pytest.approx(append["floor_seconds"] / append["median_seconds"])


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

"""The folder of a run: continued, refused, torn, never losing what was written."""

import json

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lcrag.app.runs import is_writer, open_run, read_metrics
from lcrag.app.runs.metrics import MetricsLog
from lcrag.app.runs.same_run import first_difference
from lcrag.errors import UserError

CONFIG = "# Parameters for train:\ntrain.steps = 3\ntrain.sampler = @Sampler()\nSampler.slots = 4\n"
ABOUT = {"seed": 0, "command": ["lcrag", "train"]}


def steps_of(folder):
    return [record["step"] for record in read_metrics(folder)]


def test_a_new_run_then_the_same_run(tmp_path):
    with open_run(tmp_path / "a" / "b", config=CONFIG, about=ABOUT) as run:
        assert "continued" not in json.loads((run.path / "run.json").read_text())
        run.write_episodes(1, [{"answer": "東京"}])
    with open_run(run.path, config=CONFIG.replace("3", "6"), about=ABOUT, may_change=("train.steps",)):
        pass
    assert "東京" in (run.path / "episodes" / "step_1.jsonl").read_text()
    assert len(json.loads((run.path / "run.json").read_text())["continued"]) == 1
    assert "steps = 6" in (run.path / "config.gin").read_text()


def test_of_several_processes_the_first_one_writes(tmp_path, monkeypatch):
    with open_run(tmp_path / "run", config=CONFIG, about=ABOUT) as run, run.metrics() as log:
        log.write(0, {"loss": 1.0})
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        assert is_writer(), "one process alone is the writer, and JAX's devices are left alone"
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
        with open_run(run.path, config=CONFIG, about=ABOUT) as other, other.metrics(0) as unwritten:
            unwritten.write(1, {"loss": 0.5})
            other.write_episodes(1, [{"answer": "東京"}])
            other.write_rows([{"answer": "東京"}])
            assert other.checkpoints == run.checkpoints
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("config", "about", "part"),
    [
        (CONFIG.replace("4", "8"), ABOUT, "Sampler.slots is 4 there and 8 here"),
        (CONFIG.replace("@Sampler", "@Other"), ABOUT, "train.sampler is @Sampler"),
        (CONFIG + "train.more = 1\n", ABOUT, "train.more is not set there"),
        (CONFIG, {**ABOUT, "seed": 1}, "seed is 0 there and 1 here"),
    ],
)
def test_another_run_is_refused_and_left_alone(tmp_path, config, about, part):
    with open_run(tmp_path, config=CONFIG, about=ABOUT):
        pass
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=part), open_run(tmp_path, config=config, about=about):
        pass
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_content_that_must_not_change(tmp_path):
    about = {**ABOUT, "hashes": {"rows": "a", "policy": "b"}}
    with open_run(tmp_path, config=CONFIG, about=about, same_hashes=("rows",)):
        pass
    other_policy = {**about, "hashes": {"rows": "a", "policy": "c"}}
    with open_run(tmp_path, config=CONFIG, about=other_policy, same_hashes=("rows",)):
        pass
    other_rows = {**about, "hashes": {"rows": "c", "policy": "b"}}
    with (
        pytest.raises(UserError, match="the content of its rows is another one than here"),
        open_run(tmp_path, config=CONFIG, about=other_rows, same_hashes=("rows",)),
    ):
        pass


def test_a_folder_of_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="thesis.tex"), open_run(tmp_path, config=CONFIG, about=ABOUT):
        pass
    with pytest.raises(UserError, match="cannot write"), open_run(tmp_path / "thesis.tex", config=CONFIG, about=ABOUT):
        pass


def test_two_processes_cannot_share_a_folder(tmp_path):
    """A lock belongs to an open file, so a second opening stands for a second process."""
    with (
        open_run(tmp_path, config=CONFIG, about=ABOUT),
        pytest.raises(UserError, match="another process"),
        open_run(tmp_path, config=CONFIG, about=ABOUT),
    ):
        pass


def test_long_values_compare_by_meaning():
    wrapped = "train.languages = \\\n    ('en',\n     'fi')\n"
    assert first_difference(wrapped, "train.languages = ('en', 'fi')\n") is None


def test_metrics_continue_without_doubles(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in range(5):
            log.write(step, {"reward/total": np.float32(step), "loss/policy": float("nan")})
    with MetricsLog(tmp_path, after_step=2) as log:
        log.write(3, {"reward/total": 30.0})
    assert steps_of(tmp_path) == [0, 1, 2, 3]
    assert read_metrics(tmp_path)[1] == {"step": 1, "reward/total": 1.0, "loss/policy": None}
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("reward/total")
    assert [(event.step, event.value) for event in events] == [(0, 0), (1, 1), (2, 2), (3, 30)]


@pytest.mark.parametrize("torn", ['{"step": 2, "rew', '{"step": 2}garbage\n', '{"step": 2, "x": "\udce2'])
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    with MetricsLog(tmp_path) as log:
        log.write(0, {"x": 1.0})
        log.write(1, {"x": 2.0})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(torn.encode("utf-8", "surrogateescape"))
    assert steps_of(tmp_path) == [0, 1]
    with MetricsLog(tmp_path, after_step=1) as log:
        log.write(2, {"x": 3.0})
    assert steps_of(tmp_path) == [0, 1, 2]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\nnonsense\n{"step": 2}\n')
    with pytest.raises(UserError, match="metrics.jsonl:2"):
        read_metrics(tmp_path)


def test_a_step_is_written_once(tmp_path):
    with MetricsLog(tmp_path) as log:
        log.write(4, {})
        with pytest.raises(ValueError, match="already"):
            log.write(4, {})

"""On a full disk, each writer names its file in the error, keeps the earlier content and removes its partial files."""

import errno
import resource
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny_config

from lcrag.evaluation import Row, write_rows
from lcrag.evaluation.plots import draw_training_curves, write_report
from lcrag.files import full_disk
from lcrag.learning.checkpoints import Checkpoints, abstract_state
from lcrag.policy import initialise, load_hugging_face, save_hugging_face
from lcrag.runs import Journal, MetricsLog, read_metrics, write_json, write_json_lines

LONG = "x" * 100_000
LIMIT = 20_000


@pytest.fixture
def full(monkeypatch):
    """From here on no file grows over 20,000 bytes: the kernel refuses to write as it does on a full disk."""
    monkeypatch.setattr(
        sys, "dont_write_bytecode", True
    )  # Python would keep what it could write of a module's bytecode
    _, hard = soft_and_hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, soft_and_hard)


def rows(count):
    of = dict(method="m", model="m", dataset="d", split="s", language="en", value=1.0, count=1, seed=0)
    return [Row(metric=f"metric {number}", **of) for number in range(count)]


def report(folder, text):
    return write_report(folder, title="T", summary=text, command="c", versions={}, tables=(), reading="r")


def figure(path, size):
    draw_training_curves({"reward/total": (np.arange(5), np.arange(5.0))}, path, "T")
    path.write_bytes(b"the last one")  # which the first call, with room, writes after it has imported Matplotlib


WRITERS = {
    "run.json": lambda path, size: write_json(path, {"a": LONG[:size]}),
    "rows.jsonl": lambda path, size: write_json_lines(path, [{"a": LONG[:size]}]),
    "evaluation.json": lambda path, size: write_rows(path, rows(size // 50)),
    "report.md": lambda path, size: report(path.parent, LONG[:size]),
    "training.png": figure,
    "journal.jsonl": lambda path, size: Journal(path).append([{"a": LONG[:size]}]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_named_and_keeps_its_content(name, tmp_path, full):
    path = tmp_path / name
    WRITERS[name](path, 50)
    before = path.read_bytes()
    full()
    with pytest.raises(OSError) as failure:
        WRITERS[name](path, len(LONG))
    assert failure.value.errno == errno.EFBIG
    assert failure.value.filename == str(path)
    if name == "journal.jsonl":
        assert len(Journal(path).rows) == 1
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_metrics_keep_their_complete_lines(tmp_path, full):
    with pytest.raises(OSError, match="File too large"), MetricsLog(tmp_path) as log:
        log.write(0, {"loss": 1.0})
        full()
        log.write(1, {f"metric/{number}": 1.0 for number in range(2000)})
    assert [record["step"] for record in read_metrics(tmp_path)] == [0]
    resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1:] * 2)
    with MetricsLog(tmp_path, after_step=0) as log:
        log.write(1, {"loss": 0.5})
    assert [record["step"] for record in read_metrics(tmp_path)] == [0, 1]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_policy_is_replaced_or_kept(tmp_path, full):
    config = tiny_config()
    params = initialise(config, jax.random.key(0))
    save_hugging_face(tmp_path, config, params)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    full()
    with pytest.raises(OSError) as failure:
        save_hugging_face(tmp_path, config, jax.tree.map(lambda leaf: leaf + 1, params))
    assert full_disk(failure.value).filename.endswith("model.safetensors")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    load_hugging_face(tmp_path)


def test_a_checkpoint_is_named_and_the_one_before_it_stays(tmp_path, full):
    small, large = {"a": jnp.zeros(3)}, {"a": jax.random.normal(jax.random.key(0), (200, 200))}
    with pytest.raises(OSError) as failure, Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, small)
        checkpoints.wait()
        full()
        checkpoints.save(2, large)
        checkpoints.wait()
    assert full_disk(failure.value).errno == errno.EFBIG
    assert failure.value.filename == str(tmp_path / "2")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    with Checkpoints(tmp_path) as checkpoints:
        step, _ = checkpoints.continue_from(small)
        assert (step, abstract_state(small)["a"].shape) == (1, (3,))

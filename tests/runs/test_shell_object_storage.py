"""Runs whose folder is in object storage: what is there after each checkpoint, and what continues."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from object_store import object_store

from lcrag.errors import UserError
from lcrag.files import is_remote, local_files, remote_path
from lcrag.learning.checkpoints import Checkpoints
from lcrag.runs import open_run
from lcrag.runs.folder import local_copy, stored, upload_copies

CONFIG = "train.steps = 4\n"
ABOUT = {"seed": 0, "hashes": {}}


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    with object_store(tmp_path / "store", monkeypatch) as address:
        yield Path(address), tmp_path / "store" / "bucket"


@pytest.mark.parametrize(
    ("place", "remote"),
    [
        ("gs://bucket/run", True),
        (Path("gs://bucket/run"), True),
        ("runs/first", False),
        ("a:b/c", False),
        ("gs:", False),
    ],
)
def test_addresses_are_told_from_folders(place, remote):
    assert is_remote(place) == remote
    assert not remote or str(remote_path(place)) == "gs://bucket/run"


def test_a_checkpoint_is_saved_and_restored(bucket):
    address, objects = bucket
    state = {"params": {"w": jnp.arange(6.0)}, "step": jnp.asarray(1)}
    with Checkpoints(address / "run", keep=1) as checkpoints:
        checkpoints.save(1, state, validation_loss=0.5)
        checkpoints.save(2, state, validation_loss=0.7)
        checkpoints.wait()
    assert (objects / "run" / "2" / "default" / "manifest.ocdbt").is_file()
    (objects / "run" / "3").mkdir()  # of a killed process
    with Checkpoints(address / "run") as checkpoints:
        assert checkpoints.best_step() == 1
        step, restored = checkpoints.continue_from(state | {"params": {"w": jnp.zeros(6)}})
        assert step == 2
        np.testing.assert_array_equal(restored["params"]["w"], np.arange(6.0))
        checkpoints.save(3, restored)
        checkpoints.wait()
        assert checkpoints.latest_step() == 3


def test_what_was_written_before_a_checkpoint_is_there_and_continues(bucket):
    address, objects = bucket
    run = address / "run"
    with pytest.raises(RuntimeError), local_copy(run) as local:
        with open_run(local, config=CONFIG, about=ABOUT) as opened, opened.metrics() as log:
            log.write(0, {"reward": 1.0})
            opened.write_episodes(0, [{"question_id": "a"}])
            upload_copies()
            before = (objects / "run" / "metrics.jsonl").read_text()
            log.write(1, {"reward": 2.0})
            assert (objects / "run" / "metrics.jsonl").read_text() == before
            assert stored(opened.path / "x") == opened.checkpoints.parent / "x" == run / "x"
        raise RuntimeError("the run ends")
    assert (objects / "run" / "metrics.jsonl").read_text().count("\n") == 2
    assert (objects / "run" / "episodes" / "step_0.jsonl").exists()
    assert not local.exists()
    with local_copy(run) as local, open_run(local, config=CONFIG, about=ABOUT) as opened, opened.metrics(0) as log:
        log.write(1, {"reward": 3.0})
    assert (objects / "run" / "metrics.jsonl").read_text().count("\n") == 2
    assert "3.0" in (objects / "run" / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match="gs://bucket/run holds another run"), local_copy(run) as local:
        with open_run(local, config="train.steps = 5\n", about=ABOUT):
            pass


def test_inputs_are_copied_once(bucket, tmp_path, monkeypatch):
    address, objects = bucket
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (objects / "policy" / "deep").mkdir(parents=True)
    (objects / "policy" / "config.json").write_text("{}")
    (objects / "policy" / "deep" / "x").write_text("y")
    local_files.cache_clear()
    local = local_files("gs://bucket/policy")
    assert local == tmp_path / "cache" / "lcrag" / "objects" / "gs" / "bucket" / "policy"
    assert (local / "deep" / "x").read_text() == "y"
    copied = (local / "config.json").stat().st_ino
    (objects / "policy" / "deep" / "x").write_text("longer")
    local_files.cache_clear()
    assert (local_files("gs://bucket/policy") / "deep" / "x").read_text() == "longer"
    assert (local / "config.json").stat().st_ino == copied
    assert local_files("gs://bucket/policy/config.json").read_text() == "{}"


def test_what_is_not_there_or_without_rights_is_refused_in_a_line(bucket):
    address, objects = bucket
    with pytest.raises(UserError, match="gs://bucket/nowhere"):
        local_files("gs://bucket/nowhere")
    (objects / "run").write_text("a file")
    with pytest.raises(UserError, match="gs://bucket/run: [^\n]+$"), local_copy(address / "run"):
        pass

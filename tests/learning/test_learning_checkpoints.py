"""Checkpoints: which are kept, and one clear line for each way a folder can be wrong."""

import re
import shutil

import jax
import numpy as np
import pytest
from learning_standin import new_state

from lcrag.errors import UserError
from lcrag.files import damage
from lcrag.learning.checkpoints import UNCOMMITTED, Checkpoints, abstract_state


@pytest.mark.parametrize("name", ["lr[1]", "[!x]a*?", "per%20 cent {a,b}.", "gs:", "語" * 80])
def test_a_folder_of_any_name_holds_checkpoints(name, tmp_path):
    """Orbax takes a path for a pattern: it would find nothing in `lr[1]`, and also other runs in `lr*`."""
    folder = tmp_path / name / "checkpoints"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(1, new_state(1))
    with Checkpoints(folder, read_only=True) as checkpoints:
        _, params = checkpoints.restore_params(abstract_state(new_state().params))
    jax.tree.map(np.testing.assert_array_equal, params, new_state(1).params)


def test_a_first_checkpoint_that_cannot_be_read_ends_the_training(tmp_path, monkeypatch):
    async def nothing(*_, **__):
        """Does what Orbax does where it finds none of its files."""

    monkeypatch.setattr("orbax.checkpoint._src.serialization.ocdbt_utils.merge_ocdbt_per_process_files", nothing)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError, match="first checkpoint, .*/1, cannot be read back, .*plain name"):
            checkpoints.save(1, new_state())
        with pytest.raises(UserError, match="step 1: manifest.json is missing"):
            checkpoints.continue_from(new_state())


def kept_steps(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def test_the_last_few_are_kept_and_the_one_of_the_lowest_validation_loss(tmp_path):
    state = new_state()
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest_step() is checkpoints.best_step() is None
        for step, loss in enumerate((3.0, 1.0, 1.0, 2.0, 4.0), start=1):
            checkpoints.save(step, state, loss)
            assert checkpoints.best_step() == min(step, 2)  # the first of equal ones
    assert not any(path.suffix in (".pkl", ".pickle") for path in tmp_path.rglob("*"))
    assert kept_steps(tmp_path) == [2, 4, 5]
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.best_step() == 2
        checkpoints.save(6, state)
        checkpoints.save(7, state, 0.5)
        assert (checkpoints.best_step(), checkpoints.latest_step()) == (7, 7)
        checkpoints.wait()
        assert kept_steps(tmp_path) == [6, 7]


def test_wrong_folders(tmp_path):
    state = new_state()
    layer = {"kernel": state.params["layer"]["kernel"][:4], "bias": jax.numpy.zeros(8)}
    smaller, fewer = state.params | {"layer": layer}, {name: state.params[name] for name in ("embedding", "layer")}
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError):
            checkpoints.restore_params(abstract_state(state.params))
        checkpoints.save(2, state)
        checkpoints.wait()
        for params, step, message in (
            (state.params, 1, r"step 1 .*\[2\]"),
            (smaller, None, r"params/layer/kernel is float32\(8, 8\) there and float32\(4, 8\) here"),
            (jax.tree.map(lambda leaf: leaf.astype("bfloat16"), state.params), None, "float32.* there and bfloat16"),
        ):
            with pytest.raises(UserError, match=message):
                checkpoints.restore_params(abstract_state(params), step)
        with pytest.raises(UserError, match="params/norm/scale .* absent here"):
            checkpoints.continue_from(jax.tree.map(jax.numpy.copy, state.replace(params=fewer)))


def damage_file(path, change):
    """Flips a bit in the middle, or removes the second half, all content or the file; returns the former content."""
    content, middle = path.read_bytes(), path.stat().st_size // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.unlink()
    if change != "removed":
        path.write_bytes({"flipped": flipped, "half": content[:middle], "empty": b""}[change])
    return content


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of steps 1 to 4; the validation losses of 2 and 3 are the lowest."""
    folder = tmp_path_factory.mktemp("saved")
    with Checkpoints(folder, keep=4) as checkpoints:
        for step, loss in enumerate((3.0, 1.0, 2.0, 4.0), start=1):
            checkpoints.save(step, new_state(step), loss)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def assert_state(restored, seed):
    jax.tree.map(np.testing.assert_array_equal, restored, new_state(seed))


def assert_latest(folder, seed):
    with Checkpoints(folder) as checkpoints:
        assert_state(checkpoints.continue_from(new_state())[1], seed)


def test_damage_of_any_file_is_noticed(copy):
    """Orbax reads only the folder of arrays: damage to other files does not matter."""
    folder = copy / "4"
    files = [path for path in sorted((folder / "default").rglob("*")) if path.is_file()]
    assert {"_METADATA", "manifest.ocdbt"} <= {path.name for path in files}
    assert damage(folder) is None
    for path in [*files, folder / "manifest.json"]:
        for change in ("flipped", "half", "empty", "removed"):
            content = damage_file(path, change)
            assert damage(folder) is not None, (path, change)
            path.write_bytes(content)
    (folder / "_CHECKPOINT_METADATA").unlink()
    (folder / "commit_success.txt").unlink()
    assert_latest(copy, 4)


@pytest.mark.parametrize(("where", "change"), [("default/d/*", "flipped"), ("manifest.json", "empty")])
def test_the_newest_intact_checkpoint_is_restored(copy, capsys, where, change):
    for path in (copy / "4").glob(where):
        damage_file(path, change)
    with Checkpoints(copy) as checkpoints:
        step, restored = checkpoints.continue_from(new_state())
        assert step == 3
        assert_state(restored, 3)
        checkpoints.save(4, new_state(7))  # the step runs again
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(r"/4 .*damaged_4_1.* step 3 ", error)
    assert_latest(copy, 7)
    assert (copy / "damaged_4_1").is_dir()
    assert not capsys.readouterr().err


def test_too_little_memory_is_no_damage(copy, monkeypatch):
    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr("orbax.checkpoint.Checkpointer.restore", exhausted)
    with Checkpoints(copy) as checkpoints, pytest.raises(MemoryError):
        checkpoints.continue_from(new_state())


def test_the_next_best_intact_checkpoint_is_restored(copy, capsys):
    damage_file(next((copy / "2" / "default" / "d").iterdir()), "flipped")
    with Checkpoints(copy) as checkpoints:
        assert checkpoints.best_step() == 2
        step, params = checkpoints.restore_params(abstract_state(new_state().params), best=True)
        assert step == checkpoints.best_step() == 3
    jax.tree.map(np.testing.assert_array_equal, params, new_state(3).params)
    assert "that of step 3 is restored instead" in capsys.readouterr().err


def test_reading_changes_nothing(copy, capsys):
    (copy / f"5{UNCOMMITTED}").mkdir()  # a run may be saving at this time
    damage_file(copy / "4" / "default" / "_METADATA", "half")
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    with Checkpoints(copy, read_only=True) as checkpoints:
        step, _ = checkpoints.restore_params(abstract_state(new_state().params))
        assert step == 3
        assert "/4 is damaged (" in capsys.readouterr().err
        with pytest.raises(UserError, match="step 4: default/_METADATA"):
            checkpoints.restore_params(abstract_state(new_state().params), 4)
    assert before == {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    with Checkpoints(copy):
        pass
    assert not (copy / f"5{UNCOMMITTED}").exists()


def test_none_intact_is_one_line_that_names_each(copy):
    for step in range(1, 5):
        damage_file(copy / str(step) / "manifest.json", "flipped")
    with Checkpoints(copy) as checkpoints, pytest.raises(UserError, match="step 4: .*step 3: .*step 1: .*manifest"):
        checkpoints.continue_from(new_state())
    assert {"1", "2", "3", "4"} <= {path.name for path in copy.iterdir()}

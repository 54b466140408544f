"""Checkpoints: bitwise resume, kept count, and one clear line for each way a folder can be wrong."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from learning_standin import batch_of_step, new_state, plain_update

from lcrag.errors import UserError
from lcrag.learning.checkpoints import Checkpoints, abstract_state


def train(state, steps):
    update = plain_update()
    for step in steps:
        state, _ = update(state, batch_of_step(step))
    return state


def test_six_steps_equal_three_and_three(tmp_path):
    straight = train(new_state(), range(6))
    with Checkpoints(tmp_path) as checkpoints:
        half = train(new_state(), range(3))
        checkpoints.save(3, half)
        train(half, range(3, 4))  # donates the state while it may still be on its way to the disk
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore(abstract_state(new_state(seed=1)))
    assert int(restored.step) == 3
    jax.tree.map(np.testing.assert_array_equal, train(restored, range(3, 6)), straight)


def test_the_last_few_are_kept(tmp_path):
    state = new_state()
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest_step() is None
        for step in (1, 2, 5):
            checkpoints.save(step, state)
        checkpoints.wait()
        assert checkpoints.latest_step() == 5
        assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [2, 5]
        assert not any(path.suffix in (".pkl", ".pickle") for path in tmp_path.rglob("*"))
        checkpoints.restore(abstract_state(state), step=2)
        with pytest.raises(UserError, match=r"no checkpoint of step 1 .*\[2, 5\]"):
            checkpoints.restore(abstract_state(state), step=1)


def test_the_lowest_validation_loss_is_kept_in_addition_to_the_last_few(tmp_path):
    state = new_state()
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.best_step() is None
        for step, loss in enumerate((3.0, 1.0, 1.0, 2.0, 4.0), start=1):
            checkpoints.save(step, state, loss)
            assert checkpoints.best_step() == min(step, 2)  # the first of equal ones
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.best_step() == 2
        checkpoints.save(6, state)
        assert checkpoints.best_step() == 2
        checkpoints.save(7, state, 0.5)
        assert checkpoints.best_step() == 7
        checkpoints.wait()
        assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [6, 7]


def test_wrong_folders(tmp_path):
    state = new_state()
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError, match="there is no checkpoint in"):
            checkpoints.restore(abstract_state(state))
        checkpoints.save(1, state)
        checkpoints.save(2, state)
        checkpoints.wait()
        smaller = state.params | {"layer": {"kernel": state.params["layer"]["kernel"][:4], "bias": np.zeros(8)}}
        with pytest.raises(UserError, match=r"another model.*params/layer/kernel is \(8, 8\) there and \(4, 8\) here"):
            checkpoints.restore(abstract_state(state.replace(params=jax.device_put(smaller))))
        fewer = {name: leaf for name, leaf in state.params.items() if name != "norm"}
        with pytest.raises(UserError, match="params/norm/scale .* absent here"):
            checkpoints.restore(abstract_state(state.replace(params=fewer)))


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [lambda content: content[:10], flip, lambda content: None], ids=["cut", "flip", "gone"]
)
@pytest.mark.parametrize("where", ["d/*", "_METADATA"])
def test_damaged_checkpoints(tmp_path, damage, where):
    state = new_state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        checkpoints.save(2, state)
    for path in (tmp_path / "2").rglob(where):
        content = damage(path.read_bytes())
        path.unlink() if content is None else path.write_bytes(content)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(UserError, match="/2 cannot be read.*resume from step 1 by deleting it"):
            checkpoints.restore(abstract_state(state))
        jax.tree.map(np.testing.assert_array_equal, checkpoints.restore(abstract_state(state), step=1), state)


ENDLESS_SAVES = """
import sys
from learning_standin import new_state
from lcrag.learning.checkpoints import Checkpoints
checkpoints, state = Checkpoints(sys.argv[1], keep=2), new_state()
for step in range(1, 10**6):
    checkpoints.save(step, state.replace(step=state.step + step))
    print(step, flush=True)
"""


def test_a_killed_save_leaves_the_one_before_it(tmp_path):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parent)}
    arguments = [sys.executable, "-c", ENDLESS_SAVES, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(arguments, env=environment, cwd=root, stdout=subprocess.PIPE, text=True) as child:
        while int(child.stdout.readline()) < 4:
            pass
        time.sleep(0.02)  # the fourth save is under way
        child.send_signal(signal.SIGKILL)
    with Checkpoints(tmp_path) as checkpoints:
        latest = checkpoints.latest_step()
        assert latest >= 3
        assert int(checkpoints.restore(abstract_state(new_state())).step) == latest

"""One tiny world of files for all experiments."""

import pytest
from experiment_parts import build_tiny_collections, run, save_tiny_policy


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with `policy` and `collections`; tests that damage something copy it first."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_policy(folder / "policy")
    build_tiny_collections(folder / "collections")
    return folder


@pytest.fixture(scope="session")
def finished(tiny, tmp_path_factory):
    """The output folder of a whole run, evaluations included; not to be changed."""
    output = tmp_path_factory.mktemp("finished") / "run"
    assert run("train", tiny, "STEPS=2", "train.checkpoint_every=1", output=output) == 0
    return output

"""One tiny world of files for all experiments."""

import pytest
from experiment_parts import build_tiny_collections, run, save_tiny_policy

from lcrag.app.runs import stopping
from lcrag.evaluation import plots

draw_training_curves = plots.draw_training_curves


@pytest.fixture(autouse=True, scope="module")
def brief():
    """Runs draw no figures, a third of their time, except that of `finished`; oracles play few episodes at once.

    Signals may be handled late on a busy machine, and what would end the command ends the tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping, "PATIENCE_SECONDS", 600.0)
        patch.setattr("lcrag.curation.oracle_demonstrations.TOGETHER", 24)
        patch.setattr("lcrag.evaluation.plots.draw_training_curves", lambda *about: None)
        yield


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw_training_curves", draw_training_curves)
        assert run("train", tiny, "STEPS=2", "train.checkpoint_every=1", output=output) == 0
    return output

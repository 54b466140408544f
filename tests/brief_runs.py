"""Shortens the runs of commands in tests."""

import pytest

from lcrag.evaluation import plots
from lcrag.runs import processes

draw_training_curves = plots.draw_training_curves
CURVES = "Reward, penalty, searches per episode: curves over the training steps"  # what it returns of `finished`


@pytest.fixture(autouse=True, scope="module")
def brief():
    """Runs draw no figures, a third of their time, except that of `finished`; oracles play few episodes at once.

    Signals may be handled late on a busy machine, and what would end the command ends the tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "PATIENCE_SECONDS", 600.0)
        patch.setattr("lcrag.curation.rows.TOGETHER", 24)
        patch.setattr("lcrag.evaluation.plots.draw_training_curves", lambda *about: CURVES)
        yield

"""Trackers get what `metrics.jsonl` gets, continue with the run, and neither slow nor break it."""

import importlib.util
import threading
import time

import pytest
from lcrag.runs.sinks import Sinks

from lcrag.errors import UserError
from lcrag.runs import MetricsLog, sinks

RECORDS = [{"reward/total": 0.25, "loss/kl": float("nan")}, {"reward/total": 0.5, "loss/kl": 0.0}]


class FakeRun:
    """What a tracker was told; `opened` holds (folder, settings, id to continue)."""

    def __init__(self, folder, settings, run_id):
        self.opened, self.id = (folder, settings, run_id), run_id or "new"
        self.records, self.closed = [], False

    def write(self, step, values):
        self.records.append((step, values))

    def close(self):
        self.closed = True


@pytest.fixture
def opened(monkeypatch):
    """The runs of a tracker "fake" that were opened."""
    runs = []

    def open_run(*arguments):
        runs.append(FakeRun(*arguments))
        return runs[-1]

    monkeypatch.setattr(sinks, "TRACKERS", {"fake": open_run})
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: name)
    return runs


def log(folder, settings, records=RECORDS, first=0):
    with MetricsLog(folder, after_step=first - 1, settings=settings) as written:
        for step, record in enumerate(records, start=first):
            written.write(step, record)


def test_a_tracker_gets_every_step(tmp_path, opened):
    log(tmp_path, Sinks(sinks=("fake",)), RECORDS[1:], first=1)
    [run] = opened
    assert run.records == [(1, RECORDS[1])]
    assert run.closed
    assert not list(tmp_path.glob("events.*"))


def test_tensorboard_is_the_usual_sink(tmp_path):
    log(tmp_path, Sinks())
    assert len(list(tmp_path.glob("events.*"))) == 1


def test_a_continued_run_continues_the_trackers(tmp_path, opened):
    settings = Sinks(sinks=("fake",))
    log(tmp_path, settings)
    log(tmp_path, settings, RECORDS[:1], first=2)
    assert [run.opened for run in opened] == [(tmp_path, settings, None), (tmp_path, settings, "new")]


@pytest.mark.parametrize("part", ["__init__", "write", "close"])
def test_a_failure_is_one_warning(tmp_path, opened, part, monkeypatch, capsys):
    def fail(self, *arguments):
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(FakeRun, part, fail)
    log(tmp_path, Sinks(sinks=("tensorboard", "fake")), RECORDS * 3)
    error = capsys.readouterr().err
    assert error == (
        "lcrag: fake failed and receives no further metrics (ConnectionError: no route);"
        " metrics.jsonl has all metrics\n"
    )
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("raised", [None, KeyboardInterrupt])
def test_a_tracker_that_hangs_is_left_behind(tmp_path, opened, raised, monkeypatch, capsys):
    """Least of all does it delay a checkpoint after a signal."""
    hung = threading.Event()
    monkeypatch.setattr(FakeRun, "write", lambda self, *arguments: hung.wait(30))
    monkeypatch.setattr(sinks, "CLOSE_SECONDS", 0.2 if raised is None else 30.0)
    monkeypatch.setattr(sinks, "CLOSE_SECONDS_INTERRUPTED", 0.2)
    started = time.monotonic()
    try:
        with MetricsLog(tmp_path, settings=Sinks(sinks=("fake",))) as written:
            written.write(0, RECORDS[0])
            if raised is not None:
                raise raised
    except KeyboardInterrupt:
        pass
    assert time.monotonic() - started < 20
    hung.set()
    assert "fake has not received all metrics" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("wanbd", "there is no sink 'wanbd' for Trackers.names: use tensorboard, wandb, mlflow"),
        ("wandb", r"not there: pip install 'lcrag\[wandb\]'"),
        ("mlflow", r"pip install 'lcrag\[mlflow\]'"),
    ],
)
def test_mistakes_are_named(name, part, monkeypatch):
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=part):
        Sinks(sinks=("tensorboard", name))


needs = {
    name: pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"pip install 'lcrag[{name}]'")
    for name in ("wandb", "mlflow")
}


@needs["wandb"]
def test_wandb_offline_is_one_run(tmp_path, capfd):
    settings = Sinks(sinks=("wandb",), offline=True)
    log(tmp_path, settings)
    first = (tmp_path / "wandb_run.txt").read_text()
    log(tmp_path, settings, RECORDS[:1], first=2)
    assert (tmp_path / "wandb_run.txt").read_text() == first
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{first.strip()}"))) == 2
    assert "failed" not in capfd.readouterr().err


@needs["mlflow"]
def test_mlflow_is_one_run(tmp_path, monkeypatch, capfd):
    import mlflow

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = Sinks(sinks=("mlflow",), project="mine")
    log(tmp_path, settings)
    log(tmp_path, settings, RECORDS[:1], first=2)
    assert "failed" not in capfd.readouterr().err
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = client.get_run((tmp_path / "mlflow_run.txt").read_text().strip())
    history = client.get_metric_history(run.info.run_id, "reward/total")
    assert [(each.step, each.value) for each in history] == [(0, 0.25), (1, 0.5), (2, 0.25)]
    assert run.info.status == "FINISHED"
    assert [each.name for each in client.search_experiments() if each.name == "mine"] == ["mine"]

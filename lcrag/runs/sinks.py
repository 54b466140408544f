"""Experiment trackers that receive a run's metrics: Weights & Biases and MLflow.

A tracker must not delay or interrupt training: it runs on its own thread, and after its first error it is disabled with
one warning. When a run is continued, so is the tracker's run, whose id is stored in the run's folder.
"""

import dataclasses
import importlib.util
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from lcrag.errors import UserError, without_secrets
from lcrag.runs.files import write_text

TENSORBOARD = "tensorboard"
CLOSE_SECONDS, CLOSE_SECONDS_INTERRUPTED = 60.0, 2.0


@runtime_checkable
class MetricsSink(Protocol):
    """Receives the metrics of a run."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Receives the metrics of a step; steps increase."""

    def close(self) -> None:
        """Finishes writing and closes the sink."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sinks:
    """Sinks of metrics in addition to `metrics.jsonl`.

    Attributes:
      sinks: Names of sinks: "tensorboard", "wandb", "mlflow".
      project: Project of W&B, experiment of MLflow.
      offline: Whether W&B writes to the run's folder only, for a later `wandb sync`. MLflow always writes there unless
        MLFLOW_TRACKING_URI names a server.

    Raises:
      UserError: a name is unknown, or its package is not installed.
    """

    sinks: Sequence[str] = (TENSORBOARD,)
    project: str = "lcrag"
    offline: bool = False

    def __post_init__(self):
        for name in self.sinks:
            if name not in (TENSORBOARD, *TRACKERS):
                raise UserError(
                    f"there is no sink {name!r} for MetricsLog.sinks: use {', '.join((TENSORBOARD, *TRACKERS))}"
                )
            if name in TRACKERS and importlib.util.find_spec(name) is None:
                raise UserError(
                    f"MetricsLog.sinks names {name}, which is not there: pip install 'lcrag[{name}]', or leave it out"
                )

    def trackers(self, folder: Path) -> list[MetricsSink]:
        """Opens the trackers, which are all sinks except TensorBoard."""
        return [Tracker(name, TRACKERS[name], folder, self) for name in self.sinks if name in TRACKERS]


class WandbRun:
    """A run of Weights & Biases with the name of the run's folder."""

    def __init__(self, folder: Path, settings: Sinks, run_id: str | None):
        import wandb

        self._run = wandb.init(
            project=settings.project,
            name=folder.absolute().name,
            id=run_id,
            resume="allow",
            dir=str(folder),
            mode="offline" if settings.offline else None,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.id = str(self._run.id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics of a step; W&B ignores steps that it already has, which a continued run repeats."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Waits until all metrics are sent or on disk."""
        self._run.finish()


class MlflowRun:
    """A run of MLflow with the name of the run's folder."""

    def __init__(self, folder: Path, settings: Sinks, run_id: str | None):
        import mlflow

        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(tracking_uri=place)
        if run_id is None:
            experiment = self._client.get_experiment_by_name(settings.project)
            of = experiment.experiment_id if experiment else self._client.create_experiment(settings.project)
            run_id = self._client.create_run(of, run_name=folder.absolute().name).info.run_id
        else:
            self._client.update_run(run_id, status="RUNNING")
        self.id = str(run_id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics of a step, without those that are not finite."""
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._client.log_batch(self.id, [Metric(name, value, now, step) for name, value in finite.items()])

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self.id)


@runtime_checkable
class TrackedRun(MetricsSink, Protocol):
    """A tracker's run, which is continued by its `id`."""

    id: str


TRACKERS: Mapping[str, Callable[[Path, Sinks, str | None], TrackedRun]] = {"wandb": WandbRun, "mlflow": MlflowRun}


class Tracker:
    """Sends metrics to a tracker from a separate thread, which opens, writes and closes the tracker's run.

    Args:
      name: Name of the tracker.
      open_run: Opens the tracker's run from (folder, settings, id of the run to continue or None).
      folder: The run's folder.
      settings: Project and mode of the tracker.
    """

    def __init__(
        self, name: str, open_run: Callable[[Path, Sinks, str | None], TrackedRun], folder: Path, settings: Sinks
    ):
        self._name, self._open_run, self._folder, self._settings = name, open_run, folder, settings
        self._queue: queue.SimpleQueue[tuple[int, Mapping[str, float]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._pass_on, name=name, daemon=True)
        self._thread.start()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Queues the metrics of a step."""
        self._queue.put((step, dict(values)))

    def close(self) -> None:
        """Waits until the tracker has received all metrics; waits only briefly if an exception ends the run."""
        self._queue.put(None)
        seconds = CLOSE_SECONDS if sys.exception() is None else CLOSE_SECONDS_INTERRUPTED
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._warn(f"has not received all metrics within {seconds:.0f} seconds")

    def _pass_on(self) -> None:
        try:
            kept = self._folder / f"{self._name}_run.txt"
            known = kept.read_text(encoding="utf-8").strip() if kept.exists() else None
            run = self._open_run(self._folder, self._settings, known)
            write_text(kept, f"{run.id}\n")
            while (record := self._queue.get()) is not None:
                run.write(*record)
            run.close()
        except Exception as error:  # training continues after any error of a tracker
            self._warn(f"failed and receives no further metrics ({type(error).__name__}: {error})")

    def _warn(self, what: str) -> None:
        print(
            f"lcrag: {self._name} {' '.join(without_secrets(what).split())}; metrics.jsonl has all metrics",
            file=sys.stderr,
        )

"""Where a run's metrics go in addition to `metrics.jsonl`: TensorBoard and Weights & Biases."""

import dataclasses
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lcrag.errors import UserError, typed, without_secrets
from lcrag.files import write_text

TENSORBOARD, WANDB = "tensorboard", "wandb"


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Trackers:
    """Where metrics go in addition to `metrics.jsonl`.

    Attributes:
      names: "tensorboard", "wandb", both or none.
      project: Project of Weights & Biases.
      offline: Whether Weights & Biases writes to the run's folder only, for a later `wandb sync`.

    Raises:
      UserError: a name is unknown, or its package is not installed.
    """

    names: Sequence[str] = (TENSORBOARD,)
    project: str = "lcrag"
    offline: bool = False

    def __post_init__(self):
        if unknown := [name for name in self.names if name not in (TENSORBOARD, WANDB)]:
            raise UserError(f"there is no tracker {unknown[0]!r} for Trackers.names: use {TENSORBOARD} or {WANDB}")
        if WANDB in self.names and importlib.util.find_spec(WANDB) is None:
            raise UserError("Trackers.names has wandb, which is not there: pip install 'lcrag[wandb]', or leave it out")


class WandbRun:
    """A run of Weights & Biases with the name of the run's folder; its id is kept there, to be continued.

    wandb sends on a process of its own. An error of it is printed once, and does not end the training.
    """

    def __init__(self, folder: Path, settings: Trackers):
        import wandb

        kept = folder / "wandb_run.txt"
        known = kept.read_text(encoding="utf-8").strip() if kept.exists() else None
        quiet = wandb.Settings(silent=True, console="off")
        mode = "offline" if settings.offline else None
        about = {"project": settings.project, "name": folder.absolute().name, "dir": str(folder), "settings": quiet}
        self._run = self._tried(lambda: wandb.init(id=known, resume="allow", mode=mode, **about))
        if self._run is not None:
            write_text(kept, f"{self._run.id}\n")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the metrics of a step; steps that a continued run repeats are ignored by the service."""
        if self._run is not None:
            self._tried(lambda: self._run.log(dict(values), step=step))

    def close(self) -> None:
        """Waits until all metrics are sent or on disk."""
        if self._run is not None:
            self._tried(self._run.finish)

    def _tried(self, call):
        try:
            return call()
        except Exception as error:  # training continues after any error of a tracker
            reason = " ".join(without_secrets(f"{type(error).__name__}: {error}").split())
            print(f"lcrag: wandb failed ({reason}); metrics.jsonl has all metrics", file=sys.stderr)
            self._run = None
            return None

"""What a run keeps of each training step: metrics, episodes and warnings, and whether it may go on."""

import dataclasses
from typing import Any

from rich.console import Console

from lcrag.app.commands.train.sentinels import CollapseWatch
from lcrag.app.commands.train.unvaried_rewards import run_warning, step_warning
from lcrag.app.commands.train.utilisation import wall_time
from lcrag.app.composition.scoring import Scored
from lcrag.app.display import ProgressDisplay
from lcrag.app.runs import read_metrics
from lcrag.app.runs.folder import RunFolder
from lcrag.app.runs.metrics import MetricsLog, UnwrittenLog
from lcrag.errors import UserError


@dataclasses.dataclass
class StepLog:
    """Writes what steps measured and sampled, shows it, and ends a run that diverges or collapses.

    Attributes:
      run: The run's folder.
      metrics: Its log of metrics.
      display: Shows them.
      watch: Decides whether the run must end.
      episodes_every: Steps between those of which every episode is written.
      extreme_groups: Groups of each other step of which the best and the worst episode are written.
      advantages: Whether episodes are written with their advantages.
      history: Metrics of all steps so far, oldest first.
    """

    run: RunFolder
    metrics: MetricsLog | UnwrittenLog
    display: ProgressDisplay
    watch: CollapseWatch
    episodes_every: int
    extreme_groups: int
    advantages: bool
    history: list[dict[str, Any]] = dataclasses.field(init=False)

    def __post_init__(self):
        self.history = list(read_metrics(self.run.path))

    def write(self, step: int, scored: Scored, measured: dict[str, Any], *, last: bool) -> None:
        """Writes a step; the last one's episodes are written whole, as are those of a step that ends the run.

        Raises:
          UserError: the run must end.
        """
        metrics = measured | wall_time(measured) | self.watch.measure(scored)
        self.metrics.write(step, metrics)
        self.display.update(step + 1, metrics)
        self.history.append({"step": step, **metrics})
        if warning := step_warning(self.history):
            self.display.say(warning)
        reason_to_stop = self.watch.reason_to_stop(step, metrics, scored)
        if reason_to_stop or last or step % self.episodes_every == 0:
            self.run.write_episodes(step, scored.episodes_json(advantages=self.advantages))
        elif self.extreme_groups:
            extremes = scored.extremes(self.extreme_groups)
            self.run.write_episodes(step, scored.episodes_json(extremes, advantages=self.advantages), extremes=True)
        if reason_to_stop:
            raise UserError(reason_to_stop)

    def sum_up(self, console: Console) -> None:
        """Prints a warning about all steps that taught nothing, if there are any."""
        if warning := run_warning(self.history):
            console.print(warning, highlight=False, soft_wrap=True)

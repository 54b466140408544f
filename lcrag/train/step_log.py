"""Logs each training step: metrics, episodes, and warnings with a probable cause and its remedy."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from lcrag.errors import UserError
from lcrag.runs import read_metrics
from lcrag.runs.display import ProgressDisplay
from lcrag.runs.folder import RunFolder
from lcrag.runs.metrics import MetricsLog, UnwrittenLog
from lcrag.train.scoring import Scored
from lcrag.train.sentinels import CollapseWatch
from lcrag.train.utilisation import wall_time

# Metrics: shares of the groups of a step whose episodes have no advantage.
WITHOUT_ADVANTAGE = ("groups/without_variance", "groups/of_one", "groups/below_floor")
FEW_ANSWERS, FEW_NATS = 0.1, 0.01


@dataclasses.dataclass
class StepLog:
    """Writes and displays the metrics and episodes of steps, and ends a run that diverges or collapses.

    Attributes:
      run: The run's folder.
      metrics: Its log of metrics.
      display: Shows the metrics.
      watch: Decides whether the run must end.
      episodes_every: Interval of the steps of which every episode is written.
      extreme_groups: Number of groups of the other steps of which the best and the worst episode are written.
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
        """Writes a step; all episodes of the last step, and of a step that ends the run, are written.

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
        """Prints a warning about all steps without a learning signal, if there are any."""
        if warning := run_warning(self.history):
            console.print(warning, highlight=False, soft_wrap=True)


def taught_nothing(metrics: Mapping[str, Any]) -> bool:
    """Returns whether no group of a step had rewards that differ (metrics as in `metrics.jsonl`).

    Always False with a critic, whose advantages need no group.
    """
    if "critic/gradient_norm" in metrics:
        return False
    return sum(metrics.get(name) or 0.0 for name in WITHOUT_ADVANTAGE) > 1 - 1e-6


def step_warning(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns a warning if the last step had no learning signal, at the 1st, 10th, 100th, ... such step in a row.

    Args:
      steps: Metrics of the steps so far, oldest first.
    """
    in_a_row = next((n for n, each in enumerate(reversed(steps)) if not taught_nothing(each)), len(steps))
    if str(in_a_row).strip("0") != "1":
        return None
    which = "in this step" if in_a_row == 1 else f"for {in_a_row} steps in a row"
    return f"step {steps[-1]['step'] + 1}: no reward varied within a group {which}; {cause_and_mend(steps[-in_a_row:])}"


def run_warning(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns a warning about all steps of a run without a learning signal; None if there are none."""
    idle = [each for each in steps if taught_nothing(each)]
    if not idle:
        return None
    if len(idle) == len(steps):
        return (
            f"no reward varied in any of {len(steps)} steps, so the policy has learned nothing; {cause_and_mend(idle)}"
        )
    return f"no reward varied in {len(idle)} of {len(steps)} steps, which taught nothing; {cause_and_mend(idle)}"


def cause_and_mend(steps: Sequence[Mapping[str, Any]]) -> str:
    """Returns the probable cause of equal rewards, and what to change.

    Args:
      steps: Metrics of the steps concerned.
    """

    def mean(name: str, absent: float) -> float:
        values = [float(step[name]) for step in steps if step.get(name) is not None]
        return float(np.mean(values)) if values else absent

    if mean("groups/of_one", 0) > 0.5:
        return "most groups have one scored episode: raise Method.samples, or see why the others failed in episodes/"
    if mean("groups/below_floor", 0) > 0.5:
        return "most rewards differ by less than Method.min_std: lower it, or use a reward with larger differences"
    answered = mean("episode/answered", 1)
    if answered < FEW_ANSWERS and mean("episode/length_stops", 0) > 0.5:
        return (
            f"{answered:.0%} of the episodes answered, and most were cut at the limit of a generation: raise"
            " Runner.max_tokens"
        )
    if answered < FEW_ANSWERS:
        return (
            f"{answered:.0%} of the episodes answered in the program's format: read episodes/, check the prompt and the"
            " chat template, or begin with `lcrag sft` on demonstrations (docs/sft.md)"
        )
    if mean("entropy", 1) < FEW_NATS:
        return (
            "the samples of a prompt are nearly one text: raise Runner.temperature, or stop the SFT before it earlier"
        )
    if mean("reward/total", 0) == 0:
        return (
            "every reward is 0: compare answers and golds in episodes/, and begin with easier questions"
            " (`lcrag curate selection`) or with `lcrag sft`"
        )
    return (
        "the samples of a question are all right or all wrong: choose questions of medium difficulty"
        " (`lcrag curate selection`), or raise Method.samples or train.most_rollouts"
    )

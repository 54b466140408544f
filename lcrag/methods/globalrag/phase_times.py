"""Where a training step's time goes: rollout, rewards and update, by step and by token (GlobalRAG, tables 6 and 7)."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from lcrag.evaluation.table import Cell, Table
from lcrag.evaluation.training_log import Curve

PHASES = ("rollout", "rewards", "update")
_RATE = "tokens_per_second/sampled"


@dataclasses.dataclass(frozen=True)
class PhaseTimes:
    """Means over the steps of one training run.

    Attributes:
      seconds: Seconds of each phase in a step.
      tokens: Tokens sampled in a step.
    """

    seconds: Mapping[str, float]
    tokens: float

    @property
    def step_seconds(self) -> float:
        """Of all phases together."""
        return sum(self.seconds.values())

    def share(self, phase: str) -> float:
        """Of a step's time, in [0, 1]."""
        return self.seconds[phase] / self.step_seconds

    def milliseconds_per_token(self, phase: str) -> float:
        """By each token that was sampled in the step."""
        return 1000 * self.seconds[phase] / self.tokens


def phase_times(log: Mapping[str, Curve]) -> PhaseTimes | None:
    """The times of a training run; None if its log has no rollouts, as that of SFT.

    Args:
      log: What `read_training_log` returned.
    """
    names = [*(f"seconds/{phase}" for phase in PHASES), _RATE]
    if any(name not in log or not len(log[name][0]) for name in names):
        return None
    seconds = {phase: float(log[f"seconds/{phase}"][1].mean()) for phase in PHASES}
    steps = np.intersect1d(log["seconds/rollout"][0], log[_RATE][0])
    rollout, rate = (values[np.isin(own, steps)] for own, values in (log["seconds/rollout"], log[_RATE]))
    tokens = float((rollout * rate).mean())
    return PhaseTimes(seconds, tokens) if tokens > 0 and sum(seconds.values()) > 0 else None


def phase_table(
    logs: Mapping[str, Sequence[Mapping[str, Curve]]], title: str = "Time of a training step"
) -> Table | None:
    """A line for each method that was trained here: seconds of a phase, their share, and milliseconds by token.

    Args:
      logs: Method -> the training log of each of its runs, over which a line is the mean.
      title: Of the table.

    Returns:
      The table; None if no log has rollouts.
    """
    lines = []
    for method, own in logs.items():
        times = [found for log in own if (found := phase_times(log)) is not None]
        if times:
            lines.append((Cell(method), *_cells(times)))
    if not lines:
        return None
    columns = [f"{phase} {unit}" for phase in PHASES for unit in ("s", "%", "ms/token")]
    note = (
        "Means over the steps; shares are of the three phases together. A rollout includes its searches; a token is one"
        " that was sampled in the step."
    )
    return Table(title=title, header=("", "step s", *columns), sections=(tuple(lines),), note=note)


def _cells(runs: Sequence[PhaseTimes]) -> list[Cell]:
    """The numbers of a line, each the mean over the runs."""
    numbers = [np.mean([run.step_seconds for run in runs])]
    for phase in PHASES:
        numbers += [
            np.mean([run.seconds[phase] for run in runs]),
            100 * np.mean([run.share(phase) for run in runs]),
            np.mean([run.milliseconds_per_token(phase) for run in runs]),
        ]
    return [Cell(f"{number:.2f}") for number in numbers]

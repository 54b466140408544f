"""The sampling half of a training step: scored episodes of the drawn groups, from one rollout or several."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool

from lcrag.data.batches import Coupled
from lcrag.learning import Trajectory
from lcrag.sampling import SamplerStatistics
from lcrag.train.lane_episodes import Share, spent, summed
from lcrag.train.lanes import PHASES, Lanes
from lcrag.train.scoring import Scored, joined
from lcrag.train.training_draw import TrainingDraw


class StepBatch:
    """Collects groups until enough of them have rewards that differ (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 11).

    A rollout's groups without variance are dropped, and the next rollout samples as many others, in the order in which
    they were drawn. The batch may stay too small after the last rollout; if no group has variance, all are kept. With
    one rollout nothing is dropped.

    Args:
      drawn: The step's groups in order, `most_rollouts` times as many as the batch needs.
      most_rollouts: Maximum number of rollouts.
    """

    def __init__(self, drawn: Sequence[Coupled], most_rollouts: int):
        self._drawn, self._most_rollouts = drawn, most_rollouts
        self._place, self._missing = 0, len(drawn) // most_rollouts
        self._rollouts: list[Scored] = []

    def missing(self) -> Sequence[Coupled]:
        """Returns the groups to sample next; none once the batch is full or the rollouts are used up."""
        used_up = len(self._rollouts) == self._most_rollouts
        return () if used_up else self._drawn[self._place : self._place + self._missing]

    def add(self, scored: Scored) -> None:
        """Adds the episodes of the groups that `missing` returned."""
        self._rollouts.append(scored)
        self._place += self._missing
        self._missing -= _groups(scored, scored.scored & ~scored.without_variance)

    @property
    def episodes(self) -> int:
        """How many episodes were sampled so far."""
        return sum(len(scored.records) for scored in self._rollouts)

    def scored(self) -> Scored:
        """Returns all sampled episodes, rollout after rollout."""
        return joined(self._rollouts)

    def kept(self) -> Bool[np.ndarray, "episodes"]:
        """Returns which of these episodes enter the update; episodes without a score never do."""
        sampled = self.scored()
        if self._most_rollouts == 1 or sampled.without_variance.all():
            return sampled.scored
        return sampled.scored & ~sampled.without_variance

    def trajectories(self) -> list[Trajectory]:
        """Returns the trajectories of the kept episodes."""
        return [each for each, kept in zip(self.scored().trajectories(), self.kept(), strict=True) if kept]

    def measurements(self) -> dict[str, float]:
        """Returns the counts of dynamic sampling by their names in `metrics.jsonl`; empty if it is not used."""
        if self._most_rollouts == 1:
            return {}
        scored, keeps = self.scored(), self.kept()
        dropped = [record for record, kept in zip(scored.records, keeps, strict=True) if not kept]
        return {
            "dynamic_sampling/rollouts": len(self._rollouts),
            "dynamic_sampling/groups_sampled": _groups(scored),
            "dynamic_sampling/groups_kept": _groups(scored, keeps),
            "dynamic_sampling/episodes_dropped": len(dropped),
            "dynamic_sampling/policy_tokens_dropped": sum(int(record.by_policy.sum()) for record in dropped),
        }


def _groups(scored: Scored, chosen: Bool[np.ndarray, "episodes"] | slice = slice(None)) -> int:
    return len(np.unique(scored.group_ids[chosen]))


@dataclasses.dataclass(kw_only=True)
class StepEpisodes:
    """The scored episodes of a step, with the times and counters of sampling them.

    Attributes:
      batch: The episodes.
      seconds: Seconds of each of `PHASES`.
      statistics: The samplers' counters for the step, of all lanes together; seconds are those of the slowest.
    """

    batch: StepBatch
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    statistics: SamplerStatistics = dataclasses.field(default_factory=SamplerStatistics)

    def add(self, seconds: Mapping[str, float], statistics: SamplerStatistics) -> None:
        """Adds the times and counters of a rollout."""
        self.seconds = {phase: self.seconds[phase] + seconds[phase] for phase in PHASES}
        self.statistics = summed([statistics], self.statistics)

    def metrics(self) -> dict[str, float | int]:
        """Returns the metrics for `metrics.jsonl`."""
        found = self.statistics
        drafts = {"drafts/accepted": found.accepted_drafts / found.drafted_tokens} if found.drafted_tokens else {}
        return {f"seconds/{phase}": taken for phase, taken in self.seconds.items()} | {
            "seconds/append": found.append_seconds,
            "seconds/decode": found.decode_seconds,
            "tokens_per_second/sampled": found.sampled_tokens / self.seconds["rollout"],
            "slots/occupancy": found.occupancy,
            "append/filled": found.appended_tokens / max(1, found.append_positions),
            "compiled_shapes": found.compiled_shapes,
            **drafts,
        }


def sample_step(
    lanes: Lanes,
    draw: TrainingDraw,
    step: int,
    *,
    policy_version: int,
    phase: Callable[..., None],
    share: Share | None = None,
) -> StepEpisodes:
    """Samples the episodes of a step, in one rollout or as many as dynamic sampling needs.

    An episode's number, which selects its random stream, is its index among all episodes that the step may draw.

    Args:
      lanes: Sample and score episodes.
      draw: The groups of each step.
      step: The step.
      policy_version: Number of updates of the sampler's parameters.
      phase: Shows (phase, finished, total); see `ProgressDisplay.phase`.
      share: The result of `first_share` for the step, if it was sampled ahead.
    """

    batch = StepBatch(draw.groups(step), draw.drawn // draw.couplings)
    episodes = StepEpisodes(batch=batch)
    settings: dict[str, Any] = {"policy_version": policy_version, "step": step, "progress": _progress(phase)}
    while groups := batch.missing():
        before, first = dataclasses.replace(lanes.statistics), step * draw.episodes + batch.episodes
        share, ahead = None, share
        batch.add(lanes.roll_out(groups, first, **settings) if ahead is None else lanes.join(ahead))
        episodes.add(lanes.seconds, spent(lanes.statistics, before))
    return episodes


def first_share(
    lanes: Lanes, draw: TrainingDraw, step: int, *, policy_version: int, phase: Callable[..., None]
) -> Share:
    """Samples this process's share of the first rollout of a step, without communication; see `sample_step`."""
    groups = draw.groups(step)[: draw.couplings]
    settings: dict[str, Any] = {"policy_version": policy_version, "step": step, "progress": _progress(phase)}
    return lanes.sample(groups, step * draw.episodes, **settings)


def _progress(phase: Callable[..., None]) -> Callable[[int, int], None]:
    return lambda done, total: phase("rollout", done, total) if done < total else phase("rewards")

"""The sampling half of a training step: episodes of the drawn groups, scored; knows nothing of the learner."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from lcrag.app.commands.train.dynamic_sampling import StepBatch
from lcrag.app.composition.lane_episodes import Share, spent, summed
from lcrag.app.composition.lanes import PHASES, Lanes
from lcrag.app.composition.training_draw import TrainingDraw
from lcrag.sampling import SamplerStatistics


@dataclasses.dataclass(kw_only=True)
class StepEpisodes:
    """The scored episodes of a step, and what sampling them took.

    Attributes:
      batch: The episodes.
      seconds: By `PHASES`.
      statistics: The samplers' counters for the step, of all lanes together; seconds are those of the slowest.
    """

    batch: StepBatch
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    statistics: SamplerStatistics = dataclasses.field(default_factory=SamplerStatistics)

    def add(self, seconds: Mapping[str, float], statistics: SamplerStatistics) -> None:
        """Adds what a rollout took."""
        self.seconds = {phase: self.seconds[phase] + seconds[phase] for phase in PHASES}
        self.statistics = summed([statistics], self.statistics)

    def metrics(self) -> dict[str, float | int]:
        """Returns what `metrics.jsonl` holds of it."""
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
    """Samples what a step learns from, in one rollout or as many as dynamic sampling needs.

    An episode's number, and with it its random stream, is that of its place in all that the step may draw.

    Args:
      lanes: Sample and score.
      draw: The groups of each step.
      step: The step.
      policy_version: Steps that the sampler's parameters have learned.
      phase: Shows (phase, finished, total); see `ProgressDisplay.phase`.
      share: What `first_share` returned for the step, if it was sampled ahead.
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
    """Samples this process's share of the first rollout of a step, and asks no other process; see `sample_step`."""
    groups = draw.groups(step)[: draw.couplings]
    settings: dict[str, Any] = {"policy_version": policy_version, "step": step, "progress": _progress(phase)}
    return lanes.sample(groups, step * draw.episodes, **settings)


def _progress(phase: Callable[..., None]) -> Callable[[int, int], None]:
    return lambda done, total: phase("rollout", done, total) if done < total else phase("rewards")

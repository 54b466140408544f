"""The sampling half of a training step: episodes of the drawn groups, scored; knows nothing of the learner."""

import dataclasses
from collections.abc import Callable, Mapping

from lcrag.app.commands.train.dynamic_sampling import StepBatch
from lcrag.app.composition.lanes import PHASES, Lanes
from lcrag.app.composition.training_draw import TrainingDraw
from lcrag.sampling import SamplerStatistics


@dataclasses.dataclass(kw_only=True)
class StepEpisodes:
    """The scored episodes of a step, and what sampling them took.

    Attributes:
      batch: The episodes.
      seconds: By `PHASES`.
      sampled_tokens: Tokens that the policy wrote.
      slot_steps: Tokens that could have been sampled; see `SamplerStatistics`.
      compiled_shapes: Compiled functions of the sampler so far.
    """

    batch: StepBatch
    seconds: dict[str, float] = dataclasses.field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    sampled_tokens: int = 0
    slot_steps: int = 0
    compiled_shapes: int = 0

    def add(self, seconds: Mapping[str, float], before: SamplerStatistics, after: SamplerStatistics) -> None:
        """Adds what a rollout took."""
        self.seconds = {phase: self.seconds[phase] + seconds[phase] for phase in PHASES}
        self.sampled_tokens += after.sampled_tokens - before.sampled_tokens
        self.slot_steps += after.slot_steps - before.slot_steps
        self.compiled_shapes = after.compiled_shapes

    def metrics(self) -> dict[str, float | int]:
        """Returns what `metrics.jsonl` holds of it."""
        return {f"seconds/{phase}": taken for phase, taken in self.seconds.items()} | {
            "tokens_per_second/sampled": self.sampled_tokens / self.seconds["rollout"],
            "slots/occupancy": self.sampled_tokens / max(1, self.slot_steps),
            "compiled_shapes": self.compiled_shapes,
        }


def sample_step(
    lanes: Lanes,
    draw: TrainingDraw,
    step: int,
    *,
    policy_version: int,
    phase: Callable[..., None],
) -> StepEpisodes:
    """Samples what a step learns from, in one rollout or as many as dynamic sampling needs.

    An episode's number, and with it its random stream, is that of its place in all that the step may draw.

    Args:
      lanes: Sample and score.
      draw: The groups of each step.
      step: The step.
      policy_version: Steps that the sampler's parameters have learned.
      phase: Shows (phase, finished, total); see `ProgressDisplay.phase`.
    """

    def progress(finished: int, total: int) -> None:
        phase(*(("rollout", finished, total) if finished < total else ("rewards",)))

    batch = StepBatch(draw.groups(step), draw.drawn // draw.couplings)
    episodes = StepEpisodes(batch=batch)
    while groups := batch.missing():
        before, first = dataclasses.replace(lanes.statistics), step * draw.episodes + batch.episodes
        batch.add(lanes.roll_out(groups, first, policy_version=policy_version, step=step, progress=progress))
        episodes.add(lanes.seconds, before, lanes.statistics)
    return episodes

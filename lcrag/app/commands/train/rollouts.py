"""The sampling half of a training step: episodes of the drawn groups, scored; knows nothing of the learner."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from jaxtyping import PyTree

from lcrag.app.commands.train.dynamic_sampling import StepBatch
from lcrag.app.composition.method import Method, ProgramOf
from lcrag.app.composition.scoring import Scored
from lcrag.app.composition.training_draw import TrainingDraw
from lcrag.data.batches import Coupled
from lcrag.episodes import Runner
from lcrag.episodes.runner import Progress
from lcrag.sampling import Sampler, SamplerStatistics

PHASES = ("rollout", "retrieval_wait", "rewards")


class Abandoned(Exception):
    """Ends a rollout that nobody waits for any more."""


class Rollouts:
    """Samples and scores episodes with one sampler.

    Args:
      sampler: The device slots.
      runner: Runs programs over them.
      method: Program, reward and coupling.
      program: Builds a question's program.

    Attributes:
      seconds: Of the latest rollout, by `PHASES`; "retrieval_wait" is a part of "rollout".
    """

    def __init__(self, sampler: Sampler, runner: Runner, method: Method, program: ProgramOf):
        self.sampler, self.runner, self.method, self.program = sampler, runner, method, program
        self.seconds: Mapping[str, float] = dict.fromkeys(PHASES, 0.0)
        self._abandoned = False

    @property
    def statistics(self) -> SamplerStatistics:
        """Counters of the sampler."""
        return self.sampler.statistics

    def set_params(self, params: PyTree) -> None:
        """Samples with other parameters from now on."""
        self.sampler.set_params(params)

    def abandon(self) -> None:
        """Ends the running rollout, in another thread, before its next block, and all later ones."""
        self._abandoned = True

    def _between(self) -> None:
        if self._abandoned:
            raise Abandoned

    def roll_out(
        self,
        groups: Sequence[Coupled],
        first_number: int,
        *,
        policy_version: int,
        step: int,
        progress: Progress | None = None,
    ) -> Scored:
        """Samples the episodes of some groups and scores them.

        Args:
          groups: Coupled questions.
          first_number: Number of the first episode, which names its random stream; the others follow.
          policy_version: Steps that the sampler's parameters have learned, for the records.
          step: Step that learns from them; rewards may depend on it.
          progress: Called with (finished, total) whenever an episode has finished.
        """
        started = time.monotonic()
        questions = enumerate(self.method.prompts(groups), first_number)
        records = self.runner.run(
            [(each, self.program(each), number) for number, each in questions],
            policy_version=policy_version,
            progress=progress,
            between=self._between,
        )
        rolled_out = time.monotonic()
        scored = self.method.score(records, step)
        taken = rolled_out - started, self.runner.statistics.retrieval_wait_seconds, time.monotonic() - rolled_out
        self.seconds = dict(zip(PHASES, taken, strict=True))
        return scored


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
    rollouts: Rollouts,
    draw: TrainingDraw,
    step: int,
    *,
    policy_version: int,
    phase: Callable[..., None],
) -> StepEpisodes:
    """Samples what a step learns from, in one rollout or as many as dynamic sampling needs.

    An episode's number, and with it its random stream, is that of its place in all that the step may draw.

    Args:
      rollouts: Samples and scores.
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
        before, first = dataclasses.replace(rollouts.statistics), step * draw.episodes + batch.episodes
        batch.add(rollouts.roll_out(groups, first, policy_version=policy_version, step=step, progress=progress))
        episodes.add(rollouts.seconds, before, rollouts.statistics)
    return episodes

"""The sampling half of a training step: episodes of the drawn groups, scored; knows nothing of the learner."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence

from jaxtyping import PyTree

from lcrag.app.commands.train.dynamic_sampling import StepBatch
from lcrag.app.composition.method import Method, ProgramOf
from lcrag.app.composition.scoring import Scored
from lcrag.data.batches import Coupled
from lcrag.episodes import Runner
from lcrag.sampling import Sampler

Phase = Callable[..., None]  # (name, done, total): see `ProgressDisplay.phase`


@dataclasses.dataclass(kw_only=True)
class Effort:
    """What sampling and scoring took.

    Attributes:
      seconds: By phase: "rollout", "retrieval_wait" (a part of it) and "rewards".
      sampled_tokens: Tokens that the policy wrote.
      slot_steps: Tokens that could have been sampled; see `SamplerStatistics`.
      compiled_shapes: Compiled functions of the sampler so far.
    """

    seconds: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(("rollout", "retrieval_wait", "rewards"), 0.0)
    )
    sampled_tokens: int = 0
    slot_steps: int = 0
    compiled_shapes: int = 0

    def metrics(self) -> dict[str, float | int]:
        """Returns what `metrics.jsonl` holds of it."""
        return {f"seconds/{phase}": taken for phase, taken in self.seconds.items()} | {
            "tokens_per_second/sampled": self.sampled_tokens / self.seconds["rollout"],
            "slots/occupancy": self.sampled_tokens / max(1, self.slot_steps),
            "compiled_shapes": self.compiled_shapes,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Samples and scores episodes with one sampler.

    Attributes:
      sampler: The device slots.
      runner: Runs programs over them.
      method: Program, reward and coupling.
      program: Builds a question's program.
    """

    sampler: Sampler
    runner: Runner
    method: Method
    program: ProgramOf

    def set_params(self, params: PyTree) -> None:
        """Samples with other parameters from now on."""
        self.sampler.set_params(params)

    def roll_out(
        self, groups: Sequence[Coupled], first_number: int, step: int, policy_version: int, effort: Effort, phase: Phase
    ) -> Scored:
        """Samples the episodes of some groups and scores them.

        Args:
          groups: Coupled questions.
          first_number: Number of the first episode, which names its random stream; the others follow.
          step: Step that learns from them; rewards may depend on it.
          policy_version: Steps that the sampler's parameters have learned, for the records.
          effort: What they take is added here.
          phase: Shows the phase and its progress.
        """
        statistics, started = dataclasses.replace(self.sampler.statistics), time.monotonic()
        records = self.runner.run(
            [
                (each, self.program(each), number)
                for number, each in enumerate(self.method.prompts(groups), first_number)
            ],
            policy_version=policy_version,
            progress=functools.partial(phase, "rollout"),
        )
        rolled_out = time.monotonic()
        phase("rewards")
        scored = self.method.score(records, step)
        effort.seconds["rollout"] += rolled_out - started
        effort.seconds["retrieval_wait"] += self.runner.statistics.retrieval_wait_seconds
        effort.seconds["rewards"] += time.monotonic() - rolled_out
        effort.sampled_tokens += self.sampler.statistics.sampled_tokens - statistics.sampled_tokens
        effort.slot_steps += self.sampler.statistics.slot_steps - statistics.slot_steps
        effort.compiled_shapes = self.sampler.statistics.compiled_shapes
        return scored


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepEpisodes:
    """The scored episodes of a step.

    Attributes:
      batch: The episodes.
      effort: What they took.
    """

    batch: StepBatch
    effort: Effort


def sample_step(
    rollouts: Rollouts, batch: StepBatch, first_number: int, step: int, policy_version: int, phase: Phase
) -> StepEpisodes:
    """Samples what a step learns from, in one rollout or as many as dynamic sampling needs.

    An episode's number, and with it its random stream, is that of its place in all that the step may draw.
    """
    effort = Effort()
    while groups := batch.missing():
        batch.add(rollouts.roll_out(groups, first_number + batch.episodes, step, policy_version, effort, phase))
    return StepEpisodes(batch=batch, effort=effort)

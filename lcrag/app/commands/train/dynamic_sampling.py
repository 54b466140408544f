"""The episodes of a step: one rollout, or with dynamic sampling as many as it takes to fill a batch that teaches."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool

from lcrag.app.composition.method import Scored, joined
from lcrag.data.batches import Coupled


@dataclasses.dataclass(frozen=True, eq=False)
class Collected:
    """What a step has sampled, and what of it is learned from.

    Attributes:
      scored: Everything that was sampled, rollout after rollout.
      kept: Of its episodes, those that are learned from.
      rollouts: How many it took.
    """

    scored: Scored
    kept: Bool[np.ndarray, "episodes"]
    rollouts: int

    def measurements(self) -> dict[str, float]:
        """The account of dynamic sampling, under the names of `metrics.jsonl`."""
        dropped = [record for record, kept in zip(self.scored.records, self.kept, strict=True) if not kept]
        return {
            "dynamic_sampling/rollouts": self.rollouts,
            "dynamic_sampling/groups_sampled": _groups(self.scored, np.ones_like(self.kept)),
            "dynamic_sampling/groups_kept": _groups(self.scored, self.kept),
            "dynamic_sampling/episodes_dropped": len(dropped),
            "dynamic_sampling/policy_tokens_dropped": sum(int(record.by_policy.sum()) for record in dropped),
        }


def collect(drawn: Sequence[Coupled], rollouts: int, sample: Callable[[int, Sequence[Coupled]], Scored]) -> Collected:
    """Samples groups until enough of them have rewards that differ (DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 11).

    A rollout's groups without variance are dropped, and the next one samples as many others, in the order in which
    they were drawn; so nothing that teaches is thrown away. If the last rollout leaves the batch too small it stays
    so, and if no group at all has variance, all are kept. One rollout: nothing is dropped.

    Args:
      drawn: The step's groups in the order in which they may be needed, `rollouts` times as many as are wanted.
      rollouts: The most.
      sample: (place of the first group in `drawn`, some groups) -> their scored episodes.
    """
    wanted = len(drawn) // rollouts
    parts: list[Scored] = []
    place, missing = 0, wanted
    while missing and len(parts) < rollouts:
        scored = sample(place, drawn[place : place + missing])
        parts.append(scored)
        place += missing
        missing -= _groups(scored, ~scored.without_variance)
    scored = joined(parts)
    dropped = scored.without_variance if rollouts > 1 else np.zeros(len(scored.records), bool)
    return Collected(scored, ~dropped if not dropped.all() else np.ones_like(dropped), len(parts))


def _groups(scored: Scored, chosen: Bool[np.ndarray, "episodes"]) -> int:
    return len(np.unique(scored.group_ids[chosen]))

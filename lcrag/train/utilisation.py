"""Device memory, and the model FLOPs utilisation of a step.

Model FLOPs utilisation (Chowdhery et al., 2022, PaLM, appendix B) is operations by formula / seconds / peak rate:
padding, recomputation, compilation and waiting lower it. If the peak rate is unknown (CPUs), only rates are given.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lcrag.episodes import EpisodeRecord
from lcrag.episodes.record import PROMPT_TURN
from lcrag.learning import Trajectory
from lcrag.policy import DecoderConfig, Policy
from lcrag.policy.accelerators import accelerator_of
from lcrag.policy.flops import causal_mean, forward_flops, update_flops


def rollout_flops(config: DecoderConfig, records: Sequence[EpisodeRecord]) -> float:
    """Counts the operations that a rollout needs: every token passes once, a prompt shared by samples once for all.

    Completions outside the dialogue are left out.
    """
    total, prompts = 0.0, set()
    for record in records:
        length, shared = len(record.tokens), 0
        if record.prompt in prompts:
            shared = int((record.turn == PROMPT_TURN).sum())
        prompts.add(record.prompt)
        attended, written = (shared + length + 1) / 2, int(record.by_policy.sum())
        total += forward_flops(config, length - shared, attended=attended, unembedded=written)
    return total


def learning_flops(config: DecoderConfig, trajectories: Iterable[Trajectory], passes: int = 1) -> float:
    """Counts the operations of learning from trajectories `passes` times: forward and backward passes of the policy.

    Passes that only score, and those of a critic, are left out.
    """
    sizes = ((len(each.tokens), int(each.by_policy.sum())) for each in trajectories)
    return passes * sum(
        update_flops(config, length, attended=causal_mean(length), unembedded=learned) for length, learned in sizes
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Utilisation:
    """Rates of a policy's model operations by phase, compared with the peak of its devices.

    Attributes:
      config: The policy's decoder.
      peak_flops: Peak rate of all devices together, in bfloat16 operations per second; None: unknown.
      passes: Number of passes over each trajectory.
    """

    config: DecoderConfig
    peak_flops: float | None
    passes: int = 1

    def rollout(self, records: Sequence[EpisodeRecord], seconds: float) -> dict[str, float]:
        """Returns the metrics of a rollout."""
        return self._metrics("rollout", rollout_flops(self.config, records), seconds)

    def update(self, trajectories: Iterable[Trajectory], seconds: float) -> dict[str, float]:
        """Returns the metrics of a step's updates."""
        return self._metrics("update", learning_flops(self.config, trajectories, self.passes), seconds)

    def _metrics(self, phase: str, flops: float, seconds: float) -> dict[str, float]:
        rate = flops / max(seconds, 1e-9)
        measured = {f"flops_per_second/{phase}": rate}
        return measured if self.peak_flops is None else measured | {f"mfu/{phase}": rate / self.peak_flops}


def utilisation_of(policy: Policy, passes: int = 1) -> Utilisation:
    """Returns the utilisation of the devices that hold a policy."""
    devices = policy.mesh.devices.ravel()
    accelerator = accelerator_of(devices[0])
    peak = None if accelerator is None else accelerator.flops_per_second * len(devices)
    return Utilisation(config=policy.config, peak_flops=peak, passes=passes)


def wall_time(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the remaining parts of a step's wall time, computed from the measured ones.

    `seconds/append`, `/decode`, `/retrieval_wait` and `/programs` add up to `seconds/rollout`; this, `seconds/rewards`,
    `/update` and `/rest` to `seconds/step`. The rest is negative where sampling runs ahead of learning.
    """
    if "seconds/step" not in metrics:
        return {}
    left = {
        "programs": ("rollout", "append", "decode", "retrieval_wait"),
        "rest": ("step", "rollout", "rewards", "update"),
    }
    return {
        f"seconds/{name}": metrics[f"seconds/{whole}"] - sum(metrics[f"seconds/{part}"] for part in parts)
        for name, (whole, *parts) in left.items()
    }


def memory_metrics(devices: Iterable[Any] | None = None) -> dict[str, int]:
    """Returns the memory in use and its peak so far, in bytes, of the fullest device; empty if unknown.

    Args:
      devices: The devices; None: those of this process.
    """
    measured = [each.memory_stats() for each in (jax.local_devices() if devices is None else devices)]
    names = {"device/memory_bytes": "bytes_in_use", "device/memory_peak_bytes": "peak_bytes_in_use"}
    known = [each for each in measured if each]
    return {
        name: int(np.max([each[key] for each in known]))
        for name, key in names.items()
        if known and all(key in each for each in known)
    }

"""The least time of a training step, by formula from the lengths of its episodes, and the memory of each device.

Work is counted by `lcrag.policy.flops` and divided evenly over the devices. The time of a phase is the larger of the
times for its operations and for its bytes at the data sheet's peak rates (the roofline). No run is faster. How much
slower a run is depends on kernels, communication and padding of the sampler, and is given as an efficiency. If XLA for
the devices is installed, memory and the efficiency of each phase are also computed from the compiled programs.
"""

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from lcrag.commands.compile.compiling import compile_report, finding_of
from lcrag.commands.compile.gpu_targets import plugin_installed
from lcrag.commands.compile.lowering import CompilePlan, Cost
from lcrag.commands.compile.topologies import read_topology, target_of
from lcrag.commands.describe.memory import memory
from lcrag.commands.describe.named_parts import PolicyShape
from lcrag.commands.rehearse.episodes import ScriptedEpisodes
from lcrag.learning.learners import needs_reference
from lcrag.learning.sequence_packing import arrange
from lcrag.learning.update import batch_shares
from lcrag.policy import make_mesh
from lcrag.policy.accelerators import Accelerator
from lcrag.policy.flops import cache_bytes, decode_bytes, forward_flops, recomputed_flops, update_flops

DAY_SECONDS = 86400
COMPILED = {"decode": "decode", "append": "append", "scores": "update", "update": "update"}  # phase -> its program


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload:
    """The episodes of one step; arrays have one element per episode.

    Attributes:
      tokens: Length of each context.
      policy_tokens: Number of policy tokens in each context.
      sampled_tokens: All policy tokens of the step, completions outside the dialogue included.
      appended_tokens: Environment tokens that are prefilled; a prompt counts once for all its samples.
      attended_tokens: Mean length of the context of a sampled token.
    """

    tokens: Int[np.ndarray, " episodes"]
    policy_tokens: Int[np.ndarray, " episodes"]
    sampled_tokens: float
    appended_tokens: float
    attended_tokens: float

    @classmethod
    def of(cls, episodes: ScriptedEpisodes, *, prompts: int, samples: int) -> "Workload":
        """Returns the workload of `prompts` prompts with `samples` episodes each, of which `episodes` are examples."""
        played = episodes.played
        records = [each.record for each in played]
        of_prompts = sum(each.prompt_tokens for each in played)
        appended = (of_prompts / samples + episodes.appended_tokens - of_prompts) / len(played)
        written = [each.counts["policy_tokens"] + each.counts["completion_tokens"] for each in records]
        at = np.concatenate([np.flatnonzero(each.by_policy) for each in records])
        step = np.resize(np.arange(len(records)), prompts).repeat(samples)
        lengths = np.array([[len(each.tokens), int(each.by_policy.sum())] for each in records])[step]
        return cls(
            tokens=lengths[:, 0],
            policy_tokens=lengths[:, 1],
            sampled_tokens=float(np.mean(written)) * prompts * samples,
            appended_tokens=appended * prompts * samples,
            attended_tokens=float(at.mean()) if len(at) else 1.0,
        )

    @property
    def observed_tokens(self) -> int:
        """Number of environment tokens in each context."""
        return int((self.tokens - self.policy_tokens).sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of a step on one device.

    Attributes:
      name: "decode", "append", "scores" or "update".
      units: Units of work in a step.
      cost: Cost of one unit.
    """

    name: str
    units: float
    cost: Cost

    def least_seconds(self, accelerator: Accelerator) -> float:
        """Returns its time in a step at the accelerator's peak rates."""
        return self.units * self.cost.least_seconds(accelerator)


def phases_of(
    plan: CompilePlan, work: Workload, *, parts: int = 1, passes: int = 1, learns: bool = True
) -> list[Phase]:
    """Returns the phases of a step.

    Args:
      plan: The run's policy, devices, layout, sampler and objective.
      work: The episodes.
      parts: Mini-batches of a rollout.
      passes: Passes over a rollout.
      learns: False for an evaluation, which only samples.
    """
    config, devices, slots = plan.config, plan.mesh.size, plan.sampler.slots
    attended = work.attended_tokens
    cached = cache_bytes(config, slots, attended + 1)
    read = decode_bytes(config, slots, attended) - cached
    decode = Cost(
        unit="token of every slot",
        flops=forward_flops(config, slots, attended=attended) / devices,
        bytes=read / plan.sampler_form.mesh.shape["tensor"] + cached / devices,
    )
    prefill = forward_flops(config, work.appended_tokens, attended=attended, unembedded=0) / devices
    longest = float(work.policy_tokens.max())
    phases = [
        Phase(name="decode", units=max(work.sampled_tokens / slots, longest), cost=decode),
        Phase(name="append", units=1, cost=Cost(unit="rollout", flops=prefill)),
    ]
    return phases + _learning(plan, work, parts, passes) if learns else phases


def _learning(plan: CompilePlan, work: Workload, parts: int, passes: int) -> list[Phase]:
    """Returns the phases that score a rollout before its updates, and the updates of the policy and the critic."""
    tokens, unembedded = packed(plan, work, parts)
    attended = float((work.tokens * (work.tokens + 1) / 2).sum() / work.tokens.sum())
    old = plan.objective.rescores_old_policy and parts * passes > 1
    pairs = [(unembedded, needs_reference(plan.objective, plan.critic) + old)]
    pairs += [(0, 1)] if plan.critic is not None else []
    scores = updates = repeated = 0.0
    for unembeds, scored in pairs:
        sizes = {"tokens": tokens, "attended": attended, "unembedded": unembeds}
        scores += scored * forward_flops(plan.config, **sizes)
        updates += passes * update_flops(plan.config, **sizes)
        repeated += passes * recomputed_flops(plan.config, **sizes)
    devices = plan.mesh.size
    update = Cost(unit="rollout", flops=updates / devices, recomputed_flops=repeated / devices)
    scoring = [Phase(name="scores", units=1, cost=Cost(unit="rollout", flops=scores / devices))] if scores else []
    return [*scoring, Phase(name="update", units=1, cost=update)]


def packed(plan: CompilePlan, work: Workload, parts: int) -> tuple[float, float]:
    """Returns (positions of a step's rows, padding included; unembedded positions), as packed by `lcrag.learning.pack`.

    Each of the rollout's parts is packed separately.
    """
    layout, shares, positions, unembedded = plan.layout, batch_shares(plan.mesh), 0, 0
    for part in range(min(parts, len(work.tokens))):
        arranged = arrange(work.tokens[part::parts], work.policy_tokens[part::parts], layout, shares)
        for row_length, micro_batches in zip(arranged.row_lengths, arranged.micro_batches, strict=True):
            positions += len(micro_batches) * layout.rows * row_length
            unembedded += len(micro_batches) * shares * arranged.policy_length
    return positions, unembedded


def run_costs(
    phases: Sequence[Phase],
    work: Workload,
    accelerator: Accelerator,
    *,
    devices: int,
    steps: int,
    retrieval_seconds: float,
    efficiency: float | Mapping[str, float],
) -> dict[str, Any]:
    """Returns the time of a step and of a run, in seconds, hours and device-hours.

    Args:
      phases: Phases of a step.
      work: The episodes of a step.
      accelerator: One of the devices.
      devices: Number of devices.
      steps: Steps of the run.
      retrieval_seconds: Time that a step waits for searches, as measured on this machine.
      efficiency: Share of the peak rates that the run reaches, or that each phase reaches; 1 gives the lower bound.
    """
    shares = efficiency if isinstance(efficiency, Mapping) else {phase.name: efficiency for phase in phases}
    seconds = {phase.name: phase.least_seconds(accelerator) / shares[phase.name] for phase in phases}
    step = sum(seconds.values()) + retrieval_seconds
    hours = steps * step / 3600
    tokens = work.sampled_tokens + work.observed_tokens
    return {
        "efficiency": efficiency,
        "phase_seconds": seconds,
        "retrieval_seconds": retrieval_seconds,
        "step_seconds": step,
        "tokens_per_step": tokens,
        "tokens_per_day": tokens / step * DAY_SECONDS,
        "hours": hours,
        "device_hours": hours * devices,
        "device_hours_of_1000_steps": step * devices / 3.6,
    }


def compiled_shares(memory: Mapping[str, Any]) -> dict[str, float] | None:
    """Returns the share of the peak rates that each phase reaches by the compiler's count; None without compilation.

    The passes that score a rollout are assumed to reach the same share as an update.

    Args:
      memory: The result of `memory_of`.
    """
    found = {each["program"]: each["share_of_floor"] for each in memory.get("programs", ())}
    shares = {phase: found.get(program) for phase, program in COMPILED.items()}
    return {phase: min(1.0, share) for phase, share in shares.items() if share} if all(shares.values()) else None


def memory_of(command: str, plan: CompilePlan, arguments: Mapping[str, Any], topology: str) -> dict[str, Any]:
    """Returns the bytes of the arrays that a run keeps on each device, and the needs of each compiled program.

    Args:
      command: "train" or "evaluate".
      plan: The run, on an abstract mesh.
      arguments: The arguments of the command.
      topology: The devices.

    Raises:
      UserError: libtpu knows no such topology.
    """
    accelerator, _ = read_topology(topology)
    shape = PolicyShape(name="", config=plan.config, mesh=plan.mesh, all_devices=False, here=True)
    kept = memory(command, shape, arguments)
    assert kept is not None
    found = {"resident_bytes": kept["resident_bytes"], "available_bytes": accelerator.memory_bytes}
    is_tpu = accelerator.kind.startswith("TPU")
    compiles = importlib.util.find_spec("libtpu") is not None if is_tpu else plugin_installed()
    if not compiles or command != "train":
        return found
    target = target_of(topology)
    placed = dataclasses.replace(plan, mesh=make_mesh(**dict(plan.mesh.shape), devices=target.devices))
    with target.pretended():
        findings = [finding_of(placed, program, accelerator.memory_bytes, accelerator) for program in placed.programs]
    return found | compile_report(placed, target, findings)

"""The least time that a program can take on an accelerator: operations and bytes by formula over its maker's rates."""

import dataclasses

from lcrag.app.commands.compile.lowering import Plan
from lcrag.policy.accelerators import Accelerator
from lcrag.policy.flops import cache_bytes, causal_mean, decode_bytes, forward_flops, recomputed_flops, update_flops


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What one device does, if the work is shared evenly, in one unit of a program.

    Attributes:
      unit: "micro-batch", "chunk" or "token of every slot".
      flops: Operations that the mathematics asks for.
      recomputed_flops: Operations repeated to save memory.
      bytes: Parameters and cache that must be read and written; 0 where operations dwarf them.
    """

    unit: str
    flops: float
    recomputed_flops: float = 0.0
    bytes: float = 0.0

    def least_seconds(self, accelerator: Accelerator) -> float:
        """The longer of computing at the peak rate and moving the bytes at the peak rate."""
        computing = (self.flops + self.recomputed_flops) / accelerator.flops_per_second
        return max(computing, self.bytes / accelerator.bytes_per_second)


def cost_of(plan: Plan, program: str) -> Cost:
    """The cost of "update", "critic", "append" or "decode", at the largest shapes."""
    return {"update": _update, "critic": _critic, "append": _append, "decode": _decode}[program](plan)


def _update(plan: Plan) -> Cost:
    return _learning(plan, unembedded=plan.layout.rows * max(plan.layout.policy_lengths(max(plan.layout.row_lengths))))


def _critic(plan: Plan) -> Cost:
    return _learning(plan, unembedded=0)


def _learning(plan: Plan, unembedded: int) -> Cost:
    time = max(plan.layout.row_lengths)
    work = {"tokens": plan.layout.rows * time, "attended": causal_mean(time), "unembedded": unembedded}
    flops, repeated = update_flops(plan.config, **work), recomputed_flops(plan.config, **work)
    return Cost(unit="micro-batch", flops=flops / plan.mesh.size, recomputed_flops=repeated / plan.mesh.size)


def _append(plan: Plan) -> Cost:
    rows, tokens = plan.sampler.largest_append
    flops = forward_flops(plan.config, rows * tokens, attended=plan.sampler.context, unembedded=0)
    return Cost(unit="chunk", flops=flops / plan.mesh.size)


def _decode(plan: Plan) -> Cost:
    sizes, tensor = plan.sampler, plan.mesh.shape["tensor"]
    cached = cache_bytes(plan.config, sizes.slots, sizes.context + 1)
    parameters = decode_bytes(plan.config, sizes.slots, sizes.context) - cached
    return Cost(
        unit="token of every slot",
        flops=forward_flops(plan.config, sizes.slots, attended=sizes.context) / plan.mesh.size,
        bytes=parameters / tensor + cached / plan.mesh.size,
    )

"""The collectives of a compiled program."""

import collections
import dataclasses
import re
from collections.abc import Mapping

from lcrag.app.commands.compile.hlo import Instruction, Program, type_bytes

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
CHANNEL = re.compile(r"channel_id=(\d+)")
# A TPU's reduce-scatter is a fusion around an all-reduce.
REDUCE_SCATTER = re.compile(r"all-reduce-scatter")


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind in a program."""

    kind: str  # one of KINDS
    places: int  # occurrences in the program's text
    executions: int  # in one pass over loops of unknown length
    bytes: float  # moved by the executions: whole (gathered, reduced or to be scattered) arrays as one device sees them


def collectives_of(program: Program) -> tuple[Collective, ...]:
    """Returns the collectives of a program, in the order of KINDS."""
    found: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    seen = set()
    for name, instructions in program.computations.items():
        for each in instructions.values():
            kind, times = _kind(each, name), program.executions[name]
            if kind is None or not times:
                continue
            size, channel = _largest_bytes(each, instructions), CHANNEL.search(each.rest)
            # XLA splits one collective into stages that overlap with computation: same channel, same type
            identity = (kind, channel[1], size) if channel else (name, each.name)
            if identity not in seen:
                seen.add(identity)
                found[kind].append((times, times * size))
    return tuple(
        Collective(kind, len(found[kind]), sum(n for n, _ in found[kind]), sum(size for _, size in found[kind]))
        for kind in KINDS
        if kind in found
    )


def _kind(instruction: Instruction, computation: str) -> str | None:
    kind = instruction.operation.removesuffix("-start")
    if kind not in KINDS:
        return None
    return "reduce-scatter" if kind == "all-reduce" and REDUCE_SCATTER.match(computation) else kind


def _largest_bytes(instruction: Instruction, there: Mapping[str, Instruction]) -> float:
    """Bytes of the operands or of the result, whichever is more: a gather's result, a scatter's operand."""
    given = sum(type_bytes(there[name].type) for name in instruction.operands if name in there)
    if instruction.operation.startswith("collective-permute"):  # it receives as much
        return given
    result = type_bytes(instruction.type)
    # the result of a "-start" includes the operands
    return max(given, result - given if instruction.operation.endswith("-start") else result)

"""Compiles one program and reads its memory, collectives and work from the result."""

import collections
import dataclasses
import re
import time
from collections.abc import Mapping

import jax
from jax.stages import Lowered

from lcrag.commands.compile.hlo import Instruction, Program, type_bytes
from lcrag.commands.compile.work import Work, work_of

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
CHANNEL = re.compile(r"channel_id=(\d+)")
# A TPU's reduce-scatter is a fusion around an all-reduce.
REDUCE_SCATTER = re.compile(r"all-reduce-scatter")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# XLA reports "Used 17.1G of 15.75G hbm", or of temporaries alone "... temporaries (480.00G) exceeds available HBM".
NEEDED = (re.compile(r"Used ([\d.]+)([KMGT]) of"), re.compile(r"\(([\d.]+)([KMGT])\) exceeds available"))


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind in a program."""

    kind: str  # one of KINDS
    places: int  # occurrences in the program's text
    executions: int  # in one pass over loops of unknown length
    bytes: float  # moved by the executions: whole (gathered, reduced or to be scattered) arrays as one device sees them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device."""

    arguments: float  # arguments (and, where donated, the results in their place)
    outputs: float  # results that are not donated arguments
    temporaries: float  # the block allocated while it runs, including gaps between buffers
    live_peak: float  # largest total of arguments, results and temporaries at any time, without such gaps
    code: float

    @property
    def total(self) -> float:
        """Memory that the device must have for it."""
        return self.arguments + self.outputs + self.temporaries + self.code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compilation:
    """One compiled program."""

    program: str  # "update", "critic", "append" or "decode"
    seconds: float  # compile time; short if a persistent cache held it
    memory: Memory | None = None  # None if the compiler found no way to fit it
    collectives: tuple[Collective, ...] = ()
    work: Work = Work()  # one unit of work: a micro-batch, a chunk, a token of every slot
    outside: Work = Work()  # once a call, outside of the units: an optimizer's step, what a block of tokens begins with
    refused_bytes: float = 0.0  # reported need of a program that the compiler could not fit; else 0


def compiled(program: str, lowered: Lowered) -> Compilation:
    """Compiles a program; insufficient device memory is part of the result, not an error."""
    started = time.monotonic()
    try:
        executable = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        needed = refused_bytes(str(error))
        return Compilation(program=program, seconds=time.monotonic() - started, refused_bytes=needed)
    seconds, analysis = time.monotonic() - started, executable.memory_analysis()
    memory = Memory(
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        live_peak=analysis.peak_memory_in_bytes,
        code=analysis.generated_code_size_in_bytes,
    )
    read = Program.of(executable.as_text())
    work, outside = work_of(read)
    return Compilation(
        program=program, seconds=seconds, memory=memory, collectives=collectives_of(read), work=work, outside=outside
    )


def refused_bytes(message: str) -> float:
    """Returns the memory that XLA's message reports as needed; at least 1."""
    for pattern in NEEDED:
        if found := pattern.search(message):
            return float(found[1]) * UNITS[found[2]]
    return 1.0


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

"""Compiles one program and reads its memory and collectives, or that it does not fit.

A loop's body counts as often as the loop runs, where the HLO text gives its length (scans over layers or chunks); a
loop of unknown length, such as that over micro-batches or over sampled tokens, counts once.
"""

import collections
import dataclasses
import functools
import math
import re
import time
from collections.abc import Iterator, Mapping

import jax
from jax.stages import Lowered

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# XLA reports "Used 17.1G of 15.75G hbm", or of temporaries alone "... temporaries (480.00G) exceeds available HBM".
NEEDED = (re.compile(r"Used ([\d.]+)([KMGT]) of"), re.compile(r"\(([\d.]+)([KMGT])\) exceeds available"))

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "ragged-all-to-all")
ITEM_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "c64": 8, "c128": 16}

COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) (?:\(.*\) -> .*)?\{$")
INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<operation>[\w\-]+)\((?P<rest>.*)$"
)
SHAPE = re.compile(r"\b(?P<dtype>pred|[a-z]+\d+[a-z0-9]*)\[(?P<sizes>[\d,]*)\]")
CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
CONDITION = re.compile(r"condition=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CHANNEL = re.compile(r"channel_id=(\d+)")
CONSTANT = re.compile(r"^(\d+)\)")
# A TPU's reduce-scatter is a fusion around an all-reduce.
REDUCE_SCATTER = re.compile(r"all-reduce-scatter")


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


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind in a program."""

    kind: str  # one of KINDS
    places: int  # occurrences in the program's text
    executions: int  # in one pass over loops of unknown length
    bytes: float  # moved by the executions: whole (gathered, reduced or to be scattered) arrays as one device sees them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compilation:
    """One compiled program."""

    program: str  # "update", "critic", "append" or "decode"
    seconds: float  # compile time; short if a persistent cache held it
    memory: Memory | None = None  # None if the compiler found no way to fit it
    collectives: tuple[Collective, ...] = ()
    refused_bytes: float = 0.0  # reported need of a program that the compiler could not fit; else 0


def compiled(program: str, lowered: Lowered) -> Compilation:
    """Compiles a program; running out of the device's memory is a result, not an error."""
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
    found = collectives_of(executable.as_text())
    return Compilation(program=program, seconds=seconds, memory=memory, collectives=found)


def refused_bytes(message: str) -> float:
    """Returns the memory that XLA's message reports as needed; at least 1."""
    for pattern in NEEDED:
        if found := pattern.search(message):
            return float(found[1]) * UNITS[found[2]]
    return 1.0


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of HLO."""

    root: str | None  # not None if its result is that of its computation
    name: str  # of the result
    type: str  # shape and dtype of the result, or a tuple of them
    operation: str
    rest: str  # operands and attributes


def collectives_of(text: str) -> tuple[Collective, ...]:
    """Returns the collectives of a program from `jax.stages.Compiled.as_text()`, in the order of KINDS."""
    computations = _computations(text)
    multiplicity = _multiplicity(computations, _entry(text))
    found: dict[str, list[tuple[int, float]]] = collections.defaultdict(list)
    seen = set()
    for name, instructions in computations.items():
        types = {each.name: each.type for each in instructions}
        for each in instructions:
            kind = _kind(each, name)
            if kind is None or not multiplicity[name]:
                continue
            channel = CHANNEL.search(each.rest)
            # XLA splits one collective into stages that overlap with computation: same channel, same type
            identity = (kind, channel[1], _largest_bytes(each, types)) if channel else (name, each.name)
            if identity not in seen:
                seen.add(identity)
                found[kind].append((multiplicity[name], multiplicity[name] * _largest_bytes(each, types)))
    return tuple(
        Collective(kind, len(found[kind]), sum(n for n, _ in found[kind]), sum(size for _, size in found[kind]))
        for kind in KINDS
        if kind in found
    )


def _computations(text: str) -> dict[str, list[Instruction]]:
    computations: dict[str, list[Instruction]] = {}
    instructions: list[Instruction] = []
    for line in text.splitlines():
        if begins := COMPUTATION.match(line):
            instructions = computations.setdefault(begins["name"], [])
        elif found := INSTRUCTION.match(line):
            instructions.append(Instruction(**found.groupdict()))
    return computations


def _entry(text: str) -> str:
    found = re.search(r"^ENTRY %?([\w.\-]+)", text, re.MULTILINE)
    return found[1] if found else ""


def _multiplicity(computations: Mapping[str, list[Instruction]], entry: str) -> dict[str, int]:
    """How often each computation runs, from the entry down; 0 if nothing calls it."""
    callers: dict[str, list[tuple[str, int]]] = collections.defaultdict(list)
    for name, instructions in computations.items():
        for each in instructions:
            for called in _called(each):
                callers[called].append((name, _trips(each, computations)))

    @functools.cache
    def times(name: str) -> int:
        return 1 if name == entry else sum(times(caller) * trips for caller, trips in callers[name])

    return {name: times(name) for name in computations}


def _called(instruction: Instruction) -> Iterator[str]:
    yield from CALLED.findall(instruction.rest)
    for branches in BRANCHES.findall(instruction.rest):
        yield from (name.strip().lstrip("%") for name in branches.split(","))


def _trips(instruction: Instruction, computations: Mapping[str, list[Instruction]]) -> int:
    """Number of iterations of a loop: as XLA notes it, or the constant that its counter is compared with; else 1."""
    if instruction.operation != "while":
        return 1
    if noted := TRIPS.search(instruction.rest):
        return int(noted[1])
    named = CONDITION.search(instruction.rest)
    condition = computations.get(named[1], []) if named else []
    values = ((each, CONSTANT.match(each.rest)) for each in condition if each.operation == "constant")
    constants = {each.name: int(value[1]) for each, value in values if value}
    for each in condition:
        if each.root and each.operation == "compare" and "direction=LT" in each.rest:
            return next((constants[name] for name in re.findall(r"%([\w.\-]+)", each.rest) if name in constants), 1)
    return 1


def _kind(instruction: Instruction, computation: str) -> str | None:
    kind = instruction.operation.removesuffix("-start")
    if kind not in KINDS:
        return None
    return "reduce-scatter" if kind == "all-reduce" and REDUCE_SCATTER.match(computation) else kind


def _largest_bytes(instruction: Instruction, types: Mapping[str, str]) -> float:
    """Bytes of the operands or of the result, whichever is more: a gather's result, a scatter's operand."""
    names = re.findall(r"%([\w.\-]+)", instruction.rest.partition(")")[0])
    given = sum(_type_bytes(types.get(name, "")) for name in names)
    if instruction.operation.startswith("collective-permute"):  # it receives as much
        return given
    result = _type_bytes(instruction.type)
    # the result of a "-start" includes the operands
    return max(given, result - given if instruction.operation.endswith("-start") else result)


def _type_bytes(type_text: str) -> float:
    """Bytes of a shape as HLO writes it, `bf16[4,512]{1,0}`, or of a tuple of shapes."""
    return sum(
        _item_bytes(each["dtype"]) * math.prod(int(size) for size in each["sizes"].split(",") if size)
        for each in SHAPE.finditer(re.sub(r"\{[^{}]*\}", "", type_text))
    )


def _item_bytes(dtype: str) -> float:
    if dtype in ITEM_BYTES:
        return ITEM_BYTES[dtype]
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) / 8 if digits else 0

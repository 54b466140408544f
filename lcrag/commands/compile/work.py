"""Counts the bytes and operations of a compiled program, since compilers count the body of a loop once.

Every instruction of the optimised program, or fusion as a whole, reads its operands and writes its results. Of an array
that is only sliced, gathered from or updated in place, only the pieces count. Arrays outside the device's main memory
(in a TPU's vector memory) do not count, so a TPU's prefetches count once. A multiplication and an addition are two
operations; only products of matrices are counted. Of a conditional, the branch of a false predicate counts, which is
plain sampling in `lcrag.sampling.choice`.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterator

import numpy as np

from lcrag.commands.compile.hlo import Computation, Instruction, Program, Shape

FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier", "add-dependency", "domain", "while", "conditional", "call",
})  # fmt: skip
# Operations that only copy or rearrange arrays, as single instructions or as kernels of such operations.
MOVES = frozenset({
    "broadcast", "concatenate", "copy", "copy-start", "dynamic-slice", "dynamic-update-slice", "gather", "pad",
    "reshape", "reverse", "scatter", "slice", "slice-start", "transpose",
})  # fmt: skip
SLICES = frozenset({"slice", "dynamic-slice", "gather"})
ASYNC_SLICES = frozenset({"slice-start", "dynamic-slice-start"})
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # operation -> the operand that holds what is written
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
WINDOW = re.compile(r"window=\{([^}]*)\}")
GROUPS = re.compile(r"(?:feature|batch)_group_count=(\d+)")
TARGET = re.compile(r'custom_call_target="([^"]*)"')
CUBLAS = re.compile(r'"lhs_contracting_dimensions":(\[[^\]]*\])')
OP_NAME = re.compile(r'op_name="([^"]*)"')
KERNELS = ("tpu_custom_call", "cudnn", "triton")  # in the names of custom calls
LISTED = 12  # largest instructions in a report


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """The bytes that one instruction moves in all its executions."""

    name: str  # JAX's name of it, or XLA's
    operation: str
    bytes: float
    executions: int
    moves: bool  # whether it only copies or rearranges


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one device in a unit of a program.

    Attributes:
      flops: Operations of products of matrices.
      bytes: Bytes read from and written to the device's main memory.
      moved_bytes: The part of `bytes` by instructions that only copy or rearrange.
      cycles: Estimate of a TPU's compiler; 0 without one.
      kernels: Executions of kernels (Pallas, cuDNN) whose operations the text does not give; they are not included in
        `flops` and `cycles`.
      largest: The instructions that move the most bytes.
    """

    flops: float = 0.0
    bytes: float = 0.0
    moved_bytes: float = 0.0
    cycles: float = 0.0
    kernels: int = 0
    largest: tuple[Traffic, ...] = ()


def work_of(program: Program) -> tuple[Work, Work]:
    """Returns (work of one unit, work outside of it): one pass through the loops of unknown length, and the rest.

    Without such a loop the whole program is one unit.
    """
    parts: dict[bool, list[_Part]] = {True: [], False: []}
    for name, times in program.executed():
        computation = program.computations.get(name, {})
        counted = [_part(program, computation, each, times) for each in computation.values()]
        parts[name in program.units] += filter(None, counted)
    if not parts[True]:
        parts = {True: parts[False], False: []}
    return _sum(parts[True]), _sum(parts[False])


@dataclasses.dataclass(frozen=True)
class _Part:
    traffic: Traffic
    flops: float
    cycles: float
    kernels: int


def _sum(parts: list[_Part]) -> Work:
    traffic = sorted((each.traffic for each in parts), key=lambda each: -each.bytes)
    return Work(
        flops=sum(each.flops for each in parts),
        bytes=sum(each.bytes for each in traffic),
        moved_bytes=sum(each.bytes for each in traffic if each.moves),
        cycles=sum(each.cycles for each in parts),
        kernels=sum(each.kernels for each in parts),
        largest=tuple(each for each in traffic[:LISTED] if each.bytes),
    )


def _part(program: Program, computation: Computation, instruction: Instruction, times: int) -> _Part | None:
    if instruction.operation in FREE or instruction.operation.endswith(("-done", "-update")):
        return None
    fused = program.computations.get(instruction.called[0], {}) if instruction.operation == "fusion" else {}
    size = _fusion_bytes(program, computation, instruction, fused) if fused else _bytes(computation, instruction)
    named, cycles = OP_NAME.search(instruction.attributes), CYCLES.search(instruction.attributes)
    inner = [each for each in _all(program, fused)] if fused else [(computation, instruction)]
    kinds = {each.operation for _, each in inner} - FREE
    return _Part(
        Traffic(
            name=named[1] if named else instruction.name,
            operation=instruction.operation,
            bytes=times * size,
            executions=times,
            moves=bool(kinds) and kinds <= MOVES,
        ),
        flops=times * sum(_flops(there, each) for there, each in inner),
        cycles=times * float(cycles[1]) if cycles else 0.0,
        kernels=times * sum(_is_kernel(each) for _, each in inner),
    )


def _all(program: Program, fused: Computation) -> Iterator[tuple[Computation, Instruction]]:
    """The instructions of a fusion and of the fusions in it."""
    for each in fused.values():
        if each.operation == "fusion":
            yield from _all(program, program.computations.get(each.called[0], {}))
        else:
            yield fused, each


def _main_memory(shapes: list[Shape]) -> float:
    return sum(each.bytes for each in shapes if each.in_main_memory)


def _operand(computation: Computation, instruction: Instruction, index: int) -> float:
    names = instruction.operands
    found = computation.get(names[index]) if index < len(names) else None
    return _main_memory(found.shapes) if found else 0.0


def _bytes(computation: Computation, instruction: Instruction) -> float:
    """Bytes that an instruction outside of fusions reads and writes."""
    operation, result = instruction.operation, _main_memory(instruction.shapes)
    if operation == "async-start":  # its computation is counted
        return 0.0
    if operation in SLICES:
        return (2 if _operand(computation, instruction, 0) else 1) * result
    if operation in UPDATES:
        return (2 if result else 1) * _operand(computation, instruction, UPDATES[operation])
    given = sum(_operand(computation, instruction, index) for index in range(len(instruction.operands)))
    if operation == "copy-start":  # its result holds destination and source
        return result
    if operation in ASYNC_SLICES:  # of the source, the piece counts
        piece = instruction.shapes[1]
        return piece.bytes * (bool(given) + piece.in_main_memory)
    if operation.endswith("-start"):
        return max(result, given)
    if operation == "custom-call" and "output_to_operand_aliasing" in instruction.attributes:
        return max(result, given)
    return given + result


def _fusion_bytes(program: Program, computation: Computation, instruction: Instruction, fused: Computation) -> float:
    total = 0.0
    for parameter in (each for each in fused.values() if each.operation == "parameter"):
        whole = _operand(computation, instruction, int(parameter.rest.split(")")[0]))
        total += min(whole, _read(program, fused, parameter.name)) if whole else 0.0
    root = next(each for each in fused.values() if each.root)
    parts = [fused.get(name) for name in root.operands] if root.operation == "tuple" else [root]
    for part, shape in zip(parts, instruction.shapes, strict=False):
        if shape.in_main_memory:
            total += min(shape.bytes, _written(program, fused, part)) if part else shape.bytes
    return total


def _read(program: Program, computation: Computation, name: str) -> float:
    """Bytes of an array that the instructions of a fusion read."""
    total = 0.0
    for each in computation.values():
        if name not in each.operands:
            continue
        match each.operation:
            case "bitcast" | "get-tuple-element" | "reshape":
                total += _read(program, computation, each.name)
            case "fusion":
                inner = program.computations.get(each.called[0], {})
                numbers = tuple(f"{index})" for index, operand in enumerate(each.operands) if operand == name)
                given = [
                    one.name for one in inner.values() if one.operation == "parameter" and one.rest.startswith(numbers)
                ]
                # one that reads nothing itself hands the array on
                total += sum(_read(program, inner, one) for one in given) or _read(program, computation, each.name)
            case "tuple":
                pass
            case operation if operation in SLICES and each.operands[0] == name:
                total += sum(shape.bytes for shape in each.shapes)
            case operation if operation in UPDATES and each.operands[0] == name:
                pass
            case _:
                return math.inf
    return total


def _written(program: Program, computation: Computation, instruction: Instruction) -> float:
    """Bytes of a fusion's result that are written: all, or those that an update in place writes."""
    match instruction.operation:
        case "bitcast" | "reshape" | "copy" if instruction.operands[0] in computation:
            return _written(program, computation, computation[instruction.operands[0]])
        case "fusion":
            inner = program.computations.get(instruction.called[0], {})
            return sum(_written(program, inner, each) for each in inner.values() if each.root)
        case "parameter":
            return 0.0 if instruction.root is None else math.inf
        case operation if operation in UPDATES and UPDATES[operation] < len(instruction.operands):
            update = computation.get(instruction.operands[UPDATES[operation]])
            return math.inf if update is None else sum(shape.bytes for shape in update.shapes)
    return math.inf


def _is_kernel(instruction: Instruction) -> bool:
    target = TARGET.search(instruction.attributes) if instruction.operation == "custom-call" else None
    return target is not None and any(name in target[1] for name in KERNELS)


def _flops(computation: Computation, instruction: Instruction) -> float:
    """Operations of one product of matrices, with two for each multiplication and addition; else 0."""
    match instruction.operation:
        case "dot":
            contracted = CONTRACTED.search(instruction.attributes)
            return _dot_flops(computation, instruction, f"[{contracted[1]}]" if contracted else "[]")
        case "custom-call" if contracted := CUBLAS.search(instruction.attributes):
            return _dot_flops(computation, instruction, contracted[1])
        case "convolution":
            return _convolution_flops(computation, instruction)
    return 0.0


def _dot_flops(computation: Computation, instruction: Instruction, contracted: str) -> float:
    left = computation.get(instruction.operands[0])
    if left is None:
        return 0.0
    sizes = left.shapes[0].sizes
    return 2.0 * math.prod(instruction.shapes[0].sizes) * math.prod(sizes[int(axis)] for axis in json.loads(contracted))


def _convolution_flops(computation: Computation, instruction: Instruction) -> float:
    """Counts the operations of a TPU's product, a convolution with batch axes as spatial ones; ignores padding."""
    labels = LABELS.search(instruction.attributes)
    left, kernel = (computation.get(name) for name in instruction.operands[:2])
    if labels is None or left is None or kernel is None:
        return 0.0
    given, weights, out = (each.shapes[0].sizes for each in (left, kernel, instruction))
    read, filters, made = labels.groups()
    groups = math.prod(map(int, GROUPS.findall(instruction.attributes)))
    places = 1.0
    for axis in sorted(set(filters) - set("io")):
        options = _window(instruction, sorted(set(filters) - set("io")).index(axis))
        places *= _places(given[read.index(axis)], weights[filters.index(axis)], out[made.index(axis)], options)
    features = given[read.index("f")] / groups * out[made.index("f")] * out[made.index("b")]
    return 2.0 * places * features


def _window(instruction: Instruction, index: int) -> dict[str, str]:
    """The entries of a convolution's window for one spatial axis."""
    found = WINDOW.search(instruction.attributes)
    entries = (part.split("=") for part in found[1].split()) if found else ()
    return {name: values.split("x")[index] for name, values in entries}


@functools.cache
def _pairs(size: int, taps: int, outputs: int, low: int, stride: int, spread: int, steps: int) -> int:
    """Counts pairs of an output and a tap of the kernel that read the input, not the padding between or around."""
    places = np.arange(outputs)[:, None] * stride - low + np.arange(taps) * steps
    return int(np.sum((places >= 0) & (places <= (size - 1) * spread) & (places % spread == 0)))


def _places(size: int, taps: int, outputs: int, window: dict[str, str]) -> int:
    low = int(window.get("pad", "0_0").split("_")[0])
    numbers = (int(window.get(name, "1")) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    return _pairs(size, taps, outputs, low, *numbers)

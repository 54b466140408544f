"""Parses the text of a compiled program: its computations, their callers and execution counts, and array sizes.

A loop's body counts once per iteration if the HLO text gives the loop's length (scans over layers or chunks). A
loop of unknown length, such as the loop over micro-batches or sampled tokens, counts once; its body is the program's
unit of work.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

ITEM_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "c64": 8, "c128": 16}

COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) (?:\(.*\) -> .*)?\{$")
INSTRUCTION = re.compile(
    r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)|\S+) (?P<operation>[\w\-]+)\((?P<rest>.*)$"
)
SHAPE = re.compile(r"\b(?P<dtype>pred|[a-z]+\d+[a-z0-9]*)\[(?P<sizes>[\d,]*)\](?:\{(?P<layout>[^{}]*)\})?")
CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
CONDITION = re.compile(r"condition=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
NAME = re.compile(r"%([\w.\-]+)")
CONSTANT = re.compile(r"^(\d+)\)")
OTHER_MEMORY = re.compile(
    r"S\([1-9]\d*\)"
)  # a layout outside the device's main memory: a TPU's vector memory, the host


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array as HLO writes it: `bf16[4,512]{1,0:T(8,128)}`."""

    dtype: str
    sizes: tuple[int, ...]
    in_main_memory: bool = True  # False in a TPU's vector memory, for example

    @property
    def bytes(self) -> float:
        """Its size in bytes, in any memory."""
        return item_bytes(self.dtype) * math.prod(self.sizes)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of HLO."""

    root: str | None  # not None if its result is that of its computation
    name: str  # of the result
    type: str  # shape and dtype of the result, or a tuple of them
    operation: str
    rest: str  # operands and attributes

    @functools.cached_property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return NAME.findall(self._split[0])

    @property
    def attributes(self) -> str:
        """The attributes after the operands."""
        return self._split[1]

    @functools.cached_property
    def _split(self) -> tuple[str, str]:
        depth = 1
        for place, letter in enumerate(self.rest):
            depth += (letter in "({") - (letter in ")}")
            if not depth:
                return self.rest[:place], self.rest[place + 1 :]
        return self.rest, ""

    @functools.cached_property
    def shapes(self) -> list[Shape]:
        """The arrays of the result: one, or the elements of a tuple."""
        return shapes_of(self.type)

    @property
    def called(self) -> list[str]:
        """Names of the computations that it calls; the branches of a conditional from the first, that of "false"."""
        named = CALLED.findall(self.attributes)
        if self.operation == "conditional" and named:  # "true_computation=..., false_computation=..."
            return named[::-1]
        return named + [
            name.strip().lstrip("%") for branches in BRANCHES.findall(self.attributes) for name in branches.split(",")
        ]


Computation = Mapping[str, Instruction]


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program."""

    computations: Mapping[str, Computation]  # name -> instructions by name, in order
    entry: str

    @classmethod
    def of(cls, text: str) -> "Program":
        """Reads `jax.stages.Compiled.as_text()`."""
        computations: dict[str, dict[str, Instruction]] = {}
        instructions: dict[str, Instruction] = {}
        entry = ""
        for line in text.splitlines():
            if begins := COMPUTATION.match(line):
                instructions = computations.setdefault(begins["name"], {})
                entry = begins["name"] if begins["entry"] else entry
            elif found := INSTRUCTION.match(line):
                instructions[found["name"]] = Instruction(**found.groupdict())
        return cls(computations, entry)

    @functools.cached_property
    def _callers(self) -> Mapping[str, Sequence[tuple[str, Instruction]]]:
        callers: dict[str, list[tuple[str, Instruction]]] = collections.defaultdict(list)
        for name, instructions in self.computations.items():
            for each in instructions.values():
                for called in each.called:
                    callers[called].append((name, each))
        return callers

    @functools.cached_property
    def executions(self) -> Mapping[str, int]:
        """Number of executions of each computation; 0 if nothing calls it."""

        @functools.cache
        def times(name: str) -> int:
            if name == self.entry:
                return 1
            return sum(times(caller) * (self.trips(by) or 1) for caller, by in self._callers.get(name, ()))

        return {name: times(name) for name in self.computations}

    @functools.cached_property
    def units(self) -> frozenset[str]:
        """The computations inside a loop of unknown length."""

        @functools.cache
        def inside(name: str) -> bool:
            return any(self.trips(by) is None or inside(caller) for caller, by in self._callers.get(name, ()))

        return frozenset(name for name in self.computations if inside(name))

    def trips(self, instruction: Instruction) -> int | None:
        """Returns the iterations of a loop: XLA's annotation, or the constant that its counter is compared with.

        None if the text gives neither; 1 for instructions that are not loops.
        """
        if instruction.operation != "while":
            return 1
        if noted := TRIPS.search(instruction.rest):
            return int(noted[1])
        named = CONDITION.search(instruction.rest)
        condition = self.computations.get(named[1], {}) if named else {}
        for each in condition.values():
            if each.root and each.operation == "compare" and "direction=LT" in each.rest:
                values = (condition[name] for name in each.operands if name in condition)
                constants = (CONSTANT.match(value.rest) for value in values if value.operation == "constant")
                return next((int(found[1]) for found in constants if found), None)
        return None

    def executed(self) -> Iterator[tuple[str, int]]:
        """Yields the computations outside of kernels, with their numbers of executions.

        Of a conditional only the first branch counts, that of a false predicate.
        """
        waiting = [(self.entry, 1)]
        while waiting:
            name, times = waiting.pop()
            yield name, times
            for each in self.computations.get(name, {}).values():
                match each.operation:
                    case "while":
                        waiting += [(called, times * (self.trips(each) or 1)) for called in each.called]
                    case "conditional":
                        waiting.append((each.called[0], times))
                    case "call" | "async-start":
                        waiting += [(called, times) for called in each.called]


def shapes_of(type_text: str) -> list[Shape]:
    """Returns the arrays of a type as HLO writes it, `bf16[4,512]{1,0}`, or of a tuple of types."""
    return [
        Shape(
            found["dtype"],
            tuple(int(size) for size in found["sizes"].split(",") if size),
            not OTHER_MEMORY.search(found["layout"] or ""),
        )
        for found in SHAPE.finditer(type_text)
    ]


def type_bytes(type_text: str) -> float:
    """Returns the bytes of a type as HLO writes it."""
    return sum(each.bytes for each in shapes_of(type_text))


def item_bytes(dtype: str) -> float:
    """Returns the bytes of one item; 0 for tokens and other types without data."""
    if dtype in ITEM_BYTES:
        return ITEM_BYTES[dtype]
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) / 8 if digits else 0

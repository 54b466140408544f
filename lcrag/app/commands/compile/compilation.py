"""What the compiler says of one program: its memory on a device, its collectives, or that it does not fit."""

import dataclasses
import re
import time
from typing import Any

import jax
from jax.stages import Lowered

from lcrag.app.commands.compile.collectives import Collective, collectives_of

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# XLA says "Used 17.1G of 15.75G hbm", or of temporaries alone "... temporaries (480.00G) exceeds available HBM".
NEEDED = (re.compile(r"Used ([\d.]+)([KMGT]) of"), re.compile(r"\(([\d.]+)([KMGT])\) exceeds available"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on one device.

    Attributes:
      arguments: What the program is given (and, where it is donated, gives back).
      outputs: Results that are not arguments given back.
      temporaries: The block that is set aside while it runs, gaps between its buffers included.
      live_peak: The most that arguments, results and temporaries hold at any one time, without such gaps.
      code: The program itself.
    """

    arguments: float
    outputs: float
    temporaries: float
    live_peak: float
    code: float

    @property
    def total(self) -> float:
        """What the device must have for it."""
        return self.arguments + self.outputs + self.temporaries + self.code


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compilation:
    """One compiled program.

    Attributes:
      program: "update", "critic", "append" or "decode".
      seconds: That compiling took; little where a persistent cache held it.
      memory: None if the compiler found no way to fit it.
      collectives: By kind.
      refused_bytes: What the compiler needed when it gave up, as far as it said; 0 if it did not give up.
    """

    program: str
    seconds: float
    memory: Memory | None = None
    collectives: tuple[Collective, ...] = ()
    refused_bytes: float = 0.0


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
    return Compilation(
        program=program,
        seconds=time.monotonic() - started,
        memory=_memory(executable.memory_analysis()),
        collectives=collectives_of(executable.as_text()),
    )


def refused_bytes(message: str) -> float:
    """The need that XLA states when a program does not fit; at least 1."""
    for pattern in NEEDED:
        if found := pattern.search(message):
            return float(found[1]) * UNITS[found[2]]
    return 1.0


def _memory(analysis: Any) -> Memory:
    return Memory(
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        live_peak=analysis.peak_memory_in_bytes,
        code=analysis.generated_code_size_in_bytes,
    )

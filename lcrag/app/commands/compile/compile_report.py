"""What `lcrag compile` found, as tables for people and as one JSON object."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from lcrag.app.commands.compile.compilation import Compilation
from lcrag.app.commands.compile.roofline import Cost
from lcrag.app.commands.compile.topologies import Target
from lcrag.errors import UserError
from lcrag.policy.accelerators import GIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One program on one target.

    Attributes:
      compilation: What the compiler says.
      cost: By formula.
      beside: Bytes on each device that are not arguments of the program, yet there while it runs.
      memory: Bytes that each device has; None if unknown.
    """

    compilation: Compilation
    cost: Cost
    beside: float
    memory: float | None

    @property
    def needed(self) -> float:
        """Bytes that each device must have."""
        memory = self.compilation.memory
        return self.beside + (self.compilation.refused_bytes if memory is None else memory.total)

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None if the device's memory is unknown."""
        if self.compilation.memory is None:
            return False
        return None if self.memory is None else self.needed <= self.memory


def print_findings(findings: Sequence[Finding], target: Target, console: Console) -> None:
    """Prints memory, collectives and costs, a table each."""
    console.print(_memory_table(findings))
    console.print(_collectives_table(findings))
    console.print(_costs_table(findings, target))


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _memory_table(findings: Sequence[Finding]) -> Table:
    columns = "arguments", "temporaries", "code, outputs", "beside it", "needed", "there", "fits", "compiled in"
    table = _table("Memory of each device", "program", *columns)
    for each in findings:
        memory = each.compilation.memory
        parts = (memory.arguments, memory.temporaries, memory.code + memory.outputs) if memory else (None,) * 3
        fits = {True: "yes", False: "[red]no[/red]", None: "unknown"}[each.fits]
        numbers = (*parts, each.beside, each.needed, each.memory)
        seconds = f"{each.compilation.seconds:.0f} s"
        table.add_row(each.compilation.program, *map(size_text, numbers), fits, seconds)
    return table


def _collectives_table(findings: Sequence[Finding]) -> Table:
    title = "Collectives of one unit of work, on each device"
    table = _table(title, "program", "kind", "in the program", "executed", "size")
    for each in findings:
        for one in each.compilation.collectives:
            counts = str(one.places), f"{one.executions:,}"
            table.add_row(each.compilation.program, one.kind, *counts, size_text(one.bytes))
    return table


def _costs_table(findings: Sequence[Finding], target: Target) -> Table:
    columns = "unit of work", "TFLOP", "recomputed", "moved", "ms at least"
    table = _table("Work of each device by formula, shared evenly", "program", *columns)
    for each in findings:
        cost = each.cost
        numbers = (f"{cost.flops / 1e12:,.3f}", f"{cost.recomputed_flops / 1e12:,.3f}", size_text(cost.bytes or None))
        least = cost.least_seconds(target.accelerator) * 1e3 if target.accelerator else None
        least_text = "" if least is None else f"{least:,.2f}"
        table.add_row(each.compilation.program, cost.unit, *numbers, least_text)
    return table


def size_text(count: float | None) -> str:
    """A number of bytes as `1.25 GiB` or `3.4 MiB`; nothing for None."""
    if count is None:
        return ""
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:,.1f} MiB"


def findings_json(findings: Sequence[Finding], target: Target) -> list[dict[str, Any]]:
    """The findings as JSON has them; sizes in bytes."""
    return [_finding_json(each, target) for each in findings]


def _finding_json(finding: Finding, target: Target) -> dict[str, Any]:
    compilation, cost = finding.compilation, finding.cost
    return {
        "program": compilation.program,
        "compile_seconds": compilation.seconds,
        "memory": dataclasses.asdict(compilation.memory) if compilation.memory else None,
        "beside_bytes": finding.beside,
        "needed_bytes": finding.needed,
        "device_bytes": finding.memory,
        "fits": finding.fits,
        "collectives": [dataclasses.asdict(one) for one in compilation.collectives],
        "cost": dataclasses.asdict(cost),
        "least_seconds": cost.least_seconds(target.accelerator) if target.accelerator else None,
    }


def check_fits(findings: Sequence[Finding], target: Target) -> None:
    """Refuses a plan of which a program does not fit.

    Raises:
      UserError: it says which, by how much, and what to change.
    """
    for each in findings:
        if each.fits is False:
            learns = each.compilation.program in ("update", "critic")
            mends = (
                "Layout.rows, or raise mesh.fsdp"
                if learns
                else "Sampler.slots or Sampler.context, or raise mesh.tensor"
            )
            there = "" if each.memory is None else f" of the {size_text(each.memory)} there"
            raise UserError(
                f"the {each.compilation.program} does not fit {target.name}: it needs {size_text(each.needed)}{there}"
                f" on each device; lower {mends}"
            )

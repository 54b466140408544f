"""`lcrag compile`: checks whether training fits some devices by compiling it for them, without weights."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from jax.sharding import Mesh
from rich.console import Console
from rich.table import Table

from lcrag.commands.compile.compilation import Compilation, compiled
from lcrag.commands.compile.lowering import (
    LOWER,
    CompilePlan,
    Cost,
    configured_plan,
    cost_of,
    other_bytes,
    residents,
)
from lcrag.commands.compile.topologies import Target, target_of
from lcrag.commands.lane_settings import configured_lanes
from lcrag.composition.components import Computation, resolved_folder
from lcrag.composition.used_bindings import check_used
from lcrag.errors import UserError
from lcrag.learning import Critic, Layout, Optimizer, PolicyGradient
from lcrag.limits import Positive
from lcrag.policy import DecoderConfig, parameter_count, read_config
from lcrag.policy.accelerators import GIB, Accelerator, roofline_seconds
from lcrag.runs import write_json
from lcrag.runs.display import make_console, size_text
from lcrag.train.checks import check_shares


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One program on one target."""

    compilation: Compilation  # result of the compiler
    cost: Cost  # work by formula
    accelerator: Accelerator | None  # data sheet of the device; None if unknown
    other_bytes: float  # bytes on each device of resident arrays that are not arguments of the program
    memory: float | None  # bytes of each device; None if unknown

    @property
    def needed(self) -> float:
        """Bytes that each device must have."""
        memory = self.compilation.memory
        return self.other_bytes + (self.compilation.refused_bytes if memory is None else memory.total)

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None if the device's memory is unknown."""
        if self.compilation.memory is None:
            return False
        return None if self.memory is None else self.needed <= self.memory

    @property
    def least_seconds(self) -> float | None:
        """Least time of a unit of work: the roofline bound of the formulas; None for an unknown device."""
        return None if self.accelerator is None else self.cost.least_seconds(self.accelerator)

    @property
    def kernel_flops(self) -> float:
        """Operations of the kernels, which the compiled program does not contain: the rest of the formulas' count."""
        work, cost = self.compilation.work, self.cost
        return max(0.0, cost.flops + cost.recomputed_flops - work.flops) if work.kernels else 0.0

    @property
    def counted_seconds(self) -> float | None:
        """The roofline bound of the compiled program's operations, bytes and received data."""
        work = self.compilation.work
        flops = work.flops + self.kernel_flops
        if self.accelerator is None:
            return None
        return max(roofline_seconds(flops, work.bytes, self.accelerator), self.cost.link_seconds(self.accelerator))

    @property
    def modelled_seconds(self) -> float | None:
        """Time of the compiler's estimated cycles, of kernels at the peak rate, and of the data received over links.

        None without estimates.
        """
        accelerator, cycles = self.accelerator, self.compilation.work.cycles
        if accelerator is None or accelerator.cycles_per_second is None or not cycles:
            return None
        computed = cycles / accelerator.cycles_per_second + self.kernel_flops / accelerator.flops_per_second
        return computed + self.cost.link_seconds(accelerator)

    @property
    def share(self) -> float | None:
        """The least time divided by the modelled time, or by the counted time if there is no model."""
        longer = self.modelled_seconds or self.counted_seconds
        return self.least_seconds / longer if longer and self.least_seconds else None


def shape_of(folder: str) -> DecoderConfig:
    """Returns the shape of the policy in a Hugging Face folder, or in one that ships with the package."""
    return read_config(resolved_folder(folder))


def compile_programs(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    decoder: DecoderConfig,
    computation: Computation,
    mesh: Callable[..., Mesh],
    objective: PolicyGradient,
    optimizer: Optimizer,
    layout: Layout,
    critic: Critic | None = None,
    topology: str = "",
    memory_gib: Positive | None = None,
) -> None:
    """Compiles a configuration's updates, append and decode for devices of this machine or others.

    Args:
      output_dir: Folder for `compile.json`; None: it is not written.
      words: Programs to compile; empty: all programs of a run.
      decoder: The policy's shape, from `DecoderConfig` or `shape_of`.
      computation: Its platform settings.
      mesh: Creates a mesh of given devices.
      objective, optimizer, layout, critic: Those of training; without a critic there is no PPO.
      topology: As in "v5e:4x4" or "h100:8"; empty: the devices present.
      memory_gib: Memory of one device; None: by the compiler, the driver or the data sheet.

    Raises:
      UserError: an unknown program or topology, a mesh of another size, rows that its devices cannot share, or a
        program that does not fit.
    """
    if unknown := sorted(set(words) - set(LOWER)):
        raise UserError(f"lcrag compile knows no program {unknown[0]}: choose among {', '.join(LOWER)}")
    target = target_of(topology)
    training = {"objective": objective, "optimizer": optimizer, "layout": layout, "critic": critic}
    plan = configured_plan(computation.of(decoder), mesh(devices=target.devices), training, configured_lanes())
    check_shares(layout, plan.mesh)
    check_used()
    console = make_console()
    _introduce(plan, target, console)
    memory = target.accelerator.memory_bytes if target.accelerator else None
    findings = []
    for program in words or plan.programs:
        with console.status(f"compiling the {program}"), target.pretended():
            available = memory if memory_gib is None else memory_gib * GIB
            findings.append(finding_of(plan, program, available, target.accelerator))
    console.print(_memory_table(findings))
    console.print(_collectives_table(findings))
    console.print(_costs_table(findings))
    console.print(_work_table(findings))
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / "compile.json", compile_report(plan, target, findings))
    _check_fits(plan, findings, target)


def finding_of(plan: CompilePlan, program: str, memory: float | None, accelerator: Accelerator | None) -> Finding:
    """Compiles one program for devices of `memory` bytes and a data sheet, None if unknown."""
    return Finding(
        compilation=compiled(program, LOWER[program](plan)),
        cost=cost_of(plan, program),
        accelerator=accelerator,
        other_bytes=other_bytes(plan, program),
        memory=memory,
    )


def _introduce(plan: CompilePlan, target: Target, console: Console) -> None:
    axes = " x ".join(f"{name} {size}" for name, size in plan.mesh.shape.items())
    config, sampler = plan.config, plan.sampler
    append_rows, append_tokens = plan.lane.largest_append
    held = ", ".join(f"{name} {size_text(size)}" for name, size in residents(plan).items() if size)
    lines = [
        f"{config.family} of {config.layers} layers, {config.width:,} wide, {config.vocabulary_size:,} tokens:"
        f" {parameter_count(config):,} parameters on {target.name}: {axes}",
        f"update of {plan.layout.rows} rows of {max(plan.layout.row_lengths)} tokens a micro-batch; {sampler.slots}"
        f" slots of {sampler.context} tokens, {append_tokens} of them appended to {append_rows} slots at once",
    ]
    if plan.in_lanes:
        lines.append(
            f"append and decode are those of one of {plan.lanes.count} lanes, which has {plan.lane.slots} slots and"
            f" {plan.sampler_form.mesh.size} of the devices"
        )
    if target.estimate:
        lines.append("compiled for CPUs, whose temporaries are larger: pip install 'lcrag[cuda]' compiles for GPUs")
    lines.append(f"on each device all the time: {held}")
    for line in lines:
        console.print(line, highlight=False)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _memory_table(findings: Sequence[Finding]) -> Table:
    columns = "arguments", "temporaries", "code, outputs", "other arrays", "needed", "available", "fits", "compiled in"
    table = _table("Memory of each device", "program", *columns)
    for each in findings:
        memory = each.compilation.memory
        parts = (memory.arguments, memory.temporaries, memory.code + memory.outputs) if memory else (None,) * 3
        fits = {True: "yes", False: "[red]no[/red]", None: "unknown"}[each.fits]
        sizes = map(size_text, (*parts, each.other_bytes, each.needed, each.memory))
        table.add_row(each.compilation.program, *sizes, fits, f"{each.compilation.seconds:.0f} s")
    return table


def _collectives_table(findings: Sequence[Finding]) -> Table:
    title = "Collectives of one unit of work, on each device"
    table = _table(title, "program", "kind", "in the program", "executed", "size")
    for each in findings:
        for one in each.compilation.collectives:
            counts = str(one.places), f"{one.executions:,}"
            table.add_row(each.compilation.program, one.kind, *counts, size_text(one.bytes))
    return table


def _costs_table(findings: Sequence[Finding]) -> Table:
    columns = "unit of work", "TFLOP", "recomputed", "moved", "ms at least"
    table = _table("Work of each device by formula, shared evenly", "program", *columns)
    for each in findings:
        cost = each.cost
        numbers = (f"{cost.flops / 1e12:,.3f}", f"{cost.recomputed_flops / 1e12:,.3f}", size_text(cost.bytes or None))
        table.add_row(each.compilation.program, cost.unit, *numbers, _milliseconds(each.least_seconds))
    return table


def _work_table(findings: Sequence[Finding]) -> Table:
    columns = (
        "TFLOP",
        "moved",
        "of it copies",
        "kernels not counted",
        "ms at least",
        "ms modelled",
        "share reached",
    )
    table = _table("The same, counted in the compiled program; nothing ran", "program", *columns)
    for each in findings:
        work = each.compilation.work
        numbers = f"{work.flops / 1e12:,.3f}", size_text(work.bytes), size_text(work.moved_bytes), f"{work.kernels:,}"
        times = _milliseconds(each.counted_seconds), _milliseconds(each.modelled_seconds)
        table.add_row(each.compilation.program, *numbers, *times, "" if each.share is None else f"{each.share:.0%}")
    return table


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.2f}"


def compile_report(plan: CompilePlan, target: Target, findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns the content of `compile.json`."""
    append_rows, append_tokens = plan.lane.largest_append
    return {
        "target": target.name,
        "devices": len(target.devices),
        "estimate": target.estimate,
        "mesh": dict(plan.mesh.shape),
        "decoder": dataclasses.asdict(plan.config),
        "parameters": parameter_count(plan.config),
        "layout": dataclasses.asdict(plan.layout),
        "sampler": dataclasses.asdict(plan.sampler) | {"append_rows": append_rows, "append_tokens": append_tokens},
        "lanes": plan.lanes.count,
        "resident_bytes": residents(plan),
        "programs": [_finding_json(each) for each in findings],
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    compilation, cost = finding.compilation, finding.cost
    return {
        "program": compilation.program,
        "compile_seconds": compilation.seconds,
        "memory": dataclasses.asdict(compilation.memory) if compilation.memory else None,
        "beside_bytes": finding.other_bytes,
        "needed_bytes": finding.needed,
        "device_bytes": finding.memory,
        "fits": finding.fits,
        "collectives": [dataclasses.asdict(one) for one in compilation.collectives],
        "cost": dataclasses.asdict(cost),
        "work": dataclasses.asdict(compilation.work),
        "work_outside_units": dataclasses.asdict(compilation.outside),
        "least_seconds": finding.least_seconds,
        "counted_seconds": finding.counted_seconds,
        "modelled_seconds": finding.modelled_seconds,
        "share_of_floor": finding.share,
    }


def _check_fits(plan: CompilePlan, findings: Sequence[Finding], target: Target) -> None:
    for each in findings:
        if each.fits is False:
            learns = each.compilation.program in ("update", "critic")
            lower = "Layout.rows" if learns else "Sampler.slots or Sampler.context"
            raised = "mesh.fsdp" if learns else "Lanes.tensor" if plan.in_lanes else "mesh.tensor"
            there = "" if each.memory is None else f" of the {size_text(each.memory)} available"
            raise UserError(
                f"the {each.compilation.program} does not fit {target.name}: it needs {size_text(each.needed)}{there}"
                f" on each device; lower {lower}, or raise {raised}"
            )

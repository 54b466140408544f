"""`lcrag compile`: whether training fits some devices, found out by compiling it for them; no weights are needed."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence

from jax.sharding import Mesh
from rich.console import Console

from lcrag.app.commands.compile.compilation import compiled
from lcrag.app.commands.compile.compile_report import Finding, check_fits, findings_json, print_findings, size_text
from lcrag.app.commands.compile.lowering import LOWER, Plan, beside, programs_of, residents
from lcrag.app.commands.compile.roofline import cost_of
from lcrag.app.commands.compile.topologies import Target, target_of
from lcrag.app.composition.checking import check_shares
from lcrag.app.composition.components import configured_sampler, resolved_folder
from lcrag.app.composition.computation import Computation
from lcrag.app.display import make_console
from lcrag.app.runs.atomic import write_json
from lcrag.errors import UserError
from lcrag.learning import Critic, Layout, Optimizer, PolicyGradient
from lcrag.policy import DecoderConfig, parameter_count, read_config
from lcrag.policy.accelerators import GIB


def shape_of(folder: str) -> DecoderConfig:
    """The shape of the policy in a Hugging Face folder, or in one that ships with the package."""
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
    memory_gib: float | None = None,
) -> None:
    """Compiles a configuration's updates, append and decode for devices that need not be there.

    Args:
      output_dir: Where `compile.json` is written; None: nowhere.
      words: Programs to compile; none: all that a run has.
      decoder: The policy's shape, from `DecoderConfig` or `shape_of`.
      computation: How it is computed.
      mesh: Makes a mesh of given devices.
      objective: Of the update.
      optimizer: Of the update.
      layout: Shapes of training rows.
      critic: Of PPO; None: no critic.
      topology: As in "v5e:4x4" or "h100:8"; empty: the devices present.
      memory_gib: Of one device; None: as the compiler, the driver or the maker says.

    Raises:
      UserError: an unknown program or topology, a mesh of another size, rows that its devices cannot share, or a
        program that does not fit.
    """
    if unknown := sorted(set(words) - set(LOWER)):
        raise UserError(f"lcrag compile knows no program {unknown[0]}: choose among {', '.join(LOWER)}")
    target = target_of(topology)
    plan = Plan(
        config=computation.of(decoder),
        mesh=mesh(devices=target.devices),
        objective=objective,
        optimizer=optimizer,
        layout=layout,
        sampler=configured_sampler(),
        critic=critic,
    )
    check_shares(layout, plan.mesh)
    console = make_console()
    _introduce(plan, target, console)
    findings = []
    for program in words or programs_of(plan):
        with console.status(f"compiling the {program}"):
            findings.append(_finding(plan, program, target, memory_gib))
    print_findings(findings, target, console)
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / "compile.json", _report(plan, target, findings))
    check_fits(findings, target)


def _finding(plan: Plan, program: str, target: Target, memory_gib: float | None) -> Finding:
    memory = target.accelerator.memory_bytes if target.accelerator else None
    return Finding(
        compilation=compiled(program, LOWER[program](plan)),
        cost=cost_of(plan, program),
        beside=beside(plan, program),
        memory=memory if memory_gib is None else memory_gib * GIB,
    )


def _introduce(plan: Plan, target: Target, console: Console) -> None:
    axes = " x ".join(f"{name} {size}" for name, size in plan.mesh.shape.items())
    rows, length = plan.layout.rows, max(plan.layout.row_lengths)
    append_rows, append_tokens = plan.sampler.largest_append
    console.print(f"{model_text(plan.config)} on {target.name}: {axes}", highlight=False)
    console.print(
        f"update of {rows} rows of {length} tokens a micro-batch; {plan.sampler.slots} slots of"
        f" {plan.sampler.context} tokens, {append_tokens} of them appended to {append_rows}"
        " slots at once",
        highlight=False,
    )
    if target.estimate:
        console.print("compiled for CPUs, which widen bfloat16: the temporaries of GPUs are smaller", highlight=False)
    held = ", ".join(f"{name} {size_text(size)}" for name, size in residents(plan).items() if size)
    console.print(f"on each device all the time: {held}", highlight=False)


def model_text(config: DecoderConfig) -> str:
    """Which model a shape is: `qwen2 of 36 layers, 2,048 wide, 151,936 tokens: 3,085,938,688 parameters`."""
    shape = f"{config.family} of {config.layers} layers, {config.width:,} wide, {config.vocabulary_size:,} tokens"
    return f"{shape}: {parameter_count(config):,} parameters"


def _report(plan: Plan, target: Target, findings: Sequence[Finding]) -> dict:
    append_rows, append_tokens = plan.sampler.largest_append
    return {
        "target": target.name,
        "devices": len(target.devices),
        "estimate": target.estimate,
        "mesh": dict(plan.mesh.shape),
        "decoder": dataclasses.asdict(plan.config),
        "parameters": parameter_count(plan.config),
        "layout": dataclasses.asdict(plan.layout),
        "sampler": dataclasses.asdict(plan.sampler) | {"append_rows": append_rows, "append_tokens": append_tokens},
        "resident_bytes": residents(plan),
        "programs": findings_json(findings, target),
    }

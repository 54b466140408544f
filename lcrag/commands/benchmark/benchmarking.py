"""`lcrag benchmark`: times the phases of a configuration's training step and compares them with the machine's floor."""

import dataclasses
import datetime
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from lcrag.commands.benchmark.machine import Machine, machine_name, measured_machine
from lcrag.commands.benchmark.workloads import Timing, timings
from lcrag.commands.compile.lowering import CompilePlan, configured_plan
from lcrag.composition.stand_ins import composed
from lcrag.composition.used_bindings import check_used
from lcrag.errors import UserError
from lcrag.evaluation.tables import Cell, Table, to_markdown, to_rich
from lcrag.limits import Count, Positive, Share
from lcrag.policy import parameter_count
from lcrag.runs import write_json, write_text
from lcrag.runs.display import make_console
from lcrag.train.checks import check_shares

RESULT = "benchmark.json"
HEADER = ("work", "tokens", "seconds", "tokens/s", "floor", "share of the floor", "bound by")


def benchmark(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    repeats: Count = 5,
    check: str = "",
    tolerance: Share = 0.1,
    growth: bool = False,
    most_seconds: Positive = 60.0,
) -> None:
    """Times appending, decoding at every window, and learning, with random parameters of the policy's shape.

    Each time is compared with its floor: the operations and bytes that the work needs by formula, divided by the rates
    that the same devices reach in the same run when they copy an array and multiply matrices.

    Args:
      output_dir: Folder for `benchmark.json` and `benchmark.md`; None: nothing is written.
      words: Not used.
      repeats: Timed calls of each phase, of which the median is reported.
      check: A `benchmark.json` to compare with; empty: none.
      tolerance: Largest relative decrease of a share of the floor compared with `check`.
      growth: Whether to measure instead how times grow with slots, context, turns, vocabulary and collection, and write
        `growth-MACHINE.json` and a figure. A later call measures only the missing points.
      most_seconds: Time limit of one point of a growth curve; a curve ends before the first point that would exceed it.

    Raises:
      UserError: The devices do not fit the mesh, `check` is another configuration's, or a phase has become slower.
    """
    before = read_result(check) if check else None
    plan = _plan()
    check_used()
    console = make_console()
    if growth:
        _show_growth(plan, output_dir, repeats, most_seconds, console)
        return
    with console.status("measuring the devices") as status:
        machine = measured_machine(plan.device_mesh, plan.config.dtype, repeats)
        found = list(timings(plan, repeats, lambda phase: status.update(f"timing: {phase}")))
    result = result_json(plan, machine, found)
    console.print(to_rich(table_of(result)))
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / RESULT, result)
        write_text(output_dir / "benchmark.md", to_markdown(table_of(result)))
    if before is not None:
        check_as_fast(result, before, tolerance, check)


def _show_growth(
    plan: CompilePlan, output_dir: pathlib.Path | None, repeats: int, most_seconds: float, console: Console
) -> None:
    if output_dir is None:
        raise UserError("lcrag benchmark --growth needs a folder for its points and figure: --output_dir=FOLDER")
    from lcrag.commands.benchmark import growth  # draws with matplotlib, which takes a second to import

    output_dir.mkdir(parents=True, exist_ok=True)
    machine = machine_name(plan.device_mesh)
    result = growth.growth(plan, machine, output_dir, repeats, most_seconds, console.print)
    for line in growth.exponents_text(result):
        console.print(line)


def _plan() -> CompilePlan:
    arguments = dict(composed("compile", {}).arguments)
    if topology := arguments["topology"]:
        raise UserError(f"lcrag benchmark runs on the devices present, not on {topology}: leave compile.topology out")
    plan = configured_plan(arguments["computation"].of(arguments["decoder"]), arguments["mesh"](), arguments)
    check_shares(plan.layout, plan.mesh)
    return plan


def result_json(plan: CompilePlan, machine: Machine, found: Sequence[Timing]) -> dict[str, Any]:
    """Returns the content of `benchmark.json`."""
    config = plan.config
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": dataclasses.asdict(machine),
        "model": f"{config.family} of {config.layers} layers, width {config.width}, {parameter_count(config):,}"
        f" parameters, {config.compute_dtype}",
        "mesh": dict(plan.mesh.shape),
        "rows": [
            {
                "work": each.work,
                "tokens": each.tokens,
                "seconds": list(each.seconds),
                "median_seconds": each.median,
                "tokens_per_second": each.tokens / each.median,
                "floor_seconds": machine.floor_seconds(each.flops, each.moved_bytes),
                "share_of_floor": each.share_of_floor(machine),
                "bound_by": machine.bound_by(each.flops, each.moved_bytes),
            }
            for each in found
        ],
    }


def table_of(result: Mapping[str, Any]) -> Table:
    """Returns the table of a benchmark."""
    machine = result["machine"]
    rates = f"{machine['bytes_per_second'] / 1e9:,.0f} GB/s copied, {machine['flops_per_second'] / 1e9:,.0f} GFLOP/s"
    rows = tuple(
        tuple(
            map(
                Cell,
                (
                    row["work"],
                    f"{row['tokens']:,.0f}",
                    f"{row['median_seconds']:.4g}",
                    f"{row['tokens_per_second']:,.0f}",
                    f"{row['floor_seconds']:.4g}",
                    f"{row['share_of_floor']:.0%}",
                    row["bound_by"],
                ),
            )
        )
        for row in result["rows"]
    )
    return Table(
        title=f"{result['model']}, on {machine['name']}, {result['date']}",
        header=HEADER,
        sections=(rows,),
        note=f"Floor: operations and bytes by formula, without padding, over the measured rates ({rates}).",
    )


def read_result(path: str) -> dict[str, Any]:
    """Reads a `benchmark.json`.

    Raises:
      UserError: It cannot be read.
    """
    try:
        result = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        {row["work"]: float(row["share_of_floor"]) for row in result["rows"]}, result["model"]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name a {RESULT} of an earlier run") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is not a {RESULT} ({error}): name one that lcrag benchmark wrote") from error
    return result


def check_as_fast(now: Mapping[str, Any], before: Mapping[str, Any], tolerance: float, path: str) -> None:
    """Compares shares of the floor, which vary less between machines than times.

    Raises:
      UserError: The configurations differ, or a share is lower than before by more than the tolerance.
    """
    if (now["model"], now["mesh"]) != (before["model"], before.get("mesh")):
        raise UserError(f"{path} is of another configuration ({before['model']}), not of {now['model']}")
    shares = {row["work"]: row["share_of_floor"] for row in before["rows"]}
    slower = [
        f"{row['work']} reaches {row['share_of_floor']:.0%} of its floor, {shares[row['work']]:.0%} before"
        for row in now["rows"]
        if row["work"] in shares and row["share_of_floor"] < (1 - tolerance) * shares[row["work"]]
    ]
    if slower:
        raise UserError(f"slower than {path} by more than {tolerance:.0%}: {'; '.join(slower)}")

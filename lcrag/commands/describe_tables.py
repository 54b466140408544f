"""A description of `lcrag describe` as tables for the terminal."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from lcrag.policy.sharding import MESH_AXES
from lcrag.runs.display import size_text

# What a paper's table says of a value that the paper does not state, or whose formula its available text lacks.
SILENT = ("not stated", "in a formula")


def tables(about: Mapping[str, Any]) -> Iterator[Table]:
    """Yields the tables of a description; parts that the command does not have are left out."""
    command, evaluation = about["command"], about["evaluation"]

    def table(title: str, rows: Iterable[tuple], *columns: str) -> Table:
        made = Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        made.show_header = bool(columns)
        made.add_column(
            columns[0] if columns else "", style="" if columns else "dim", header_style="dim", no_wrap=not columns
        )
        for name in columns[1:] or ("",):
            made.add_column(name, header_style="dim")
        for row in rows:
            if columns or row[1] not in (None, "", {}):
                made.add_row(*(Text(shown(cell)) for cell in row))
        made.add_row()
        return made

    lines = [line if len(line) <= 88 else f"{line[:88]} ..." for line in about["opening"].splitlines() if line.strip()]
    more = f"\n({len(lines) - 4} more lines)" if len(lines) > 4 else ""
    prompts, samples, episodes = (count(about[name]) for name in ("prompts_per_step", "samples", "episodes_per_step"))
    size = about.get("prompts_per_coupling")
    coupled = f" ({about['couplings']:,} couplings of {size:g} prompts)" if size and size != 1 else ""
    learns, asks = command == "train", command in ("train", "evaluate")
    rows: list[tuple[str, Any]] = [
        ("command", command),
        ("method", about["method"]),
        ("program", about["program"]),
        ("evaluated program", about["evaluated_program"] if evaluation and command != "evaluate" else None),
        ("opening", "\n".join(lines[:4]) + more),
        ("episodes of a step" if learns else "episodes", f"{prompts} prompts x {samples} = {episodes}{coupled}" * asks),
    ]
    if evaluation:
        decodings = ", ".join(
            f"{name} at temperature {each['temperature']:g}" + f" x {each['runs']} runs" * (each["runs"] > 1)
            for name, each in evaluation["decodings"].items()
        )
        rows.append(("evaluation", f"{count(evaluation['questions'])} questions of {evaluation['split']}; {decodings}"))
        rows.append(("compared with", evaluation["references"]))
    yield table("What runs", rows)

    if about["budgets"]:
        own, other = (dict(about[name] or {}) for name in ("budgets", "evaluated_budgets"))
        rows = [(name.replace("_", " "), value) for name, value in own.items() if name != "settings"]
        changed = [name for name, value in other.items() if name != "settings" and value != own[name]]
        if set(changed) - {"prompt_tokens", "longest_tokens"}:
            rows += [(f"{name.replace('_', ' ')}, evaluated", other[name]) for name in changed]
        if not own["fits_context"]:
            rows.append(("", "an episode that is longer than its context ends when this is full"))
        if own["prompt_tokens"] is None:
            rows.append(("", "the prompt is not counted: the tokenizer is not here"))
        yield table("Budgets of an episode", rows)

    if about["steps"]:
        objective, critic = dict(about["objective"]), dict(about.get("critic") or {})
        rows = [("reward", f"{name}: {shown(settings)}") for name, settings in about["rewards"].items() if learns]
        rows += [("rows", about.get("rows")), ("objective", objective.pop("name"))]
        rows += [(name.replace("_", " "), value) for name, value in objective.items()]
        updates = about["updates_per_step"]
        of = f" of {about['episodes_per_update']:,.0f} episodes" if about.get("episodes_per_update") else ""
        rows.append(("steps", f"{about['steps']:,}, {updates} update{'s' * (updates > 1)} each{of}"))
        for name, rate in (("learning rate", about["learning_rate"]), ("critic's", critic.pop("learning_rate", None))):
            if rate:
                rows.append((name, f"{shown(rate['peak'])}: {rate['schedule']}; weight decay {rate['weight_decay']:g}"))
        yield table("Learning", [*rows, ("critic", critic)])

    if about["data"]:
        sets = (
            (
                each["source"] + (f" ({each['dataset']})" if "dataset" in each else ""),
                "absent" if each["absent"] else count(each["questions"]),
                each["languages"],
            )
            for each in about["data"]
        )
        yield table("Questions", sets, "source", "questions", "languages")

    rows = []
    if collections := about["collections"]:
        where = f" in {collections['where']}" if collections["where"] else ""
        languages = ", ".join(collections["languages"]) or "languages not known before they are opened"
        rows += [("collections", f"{collections['source']}{where}: {languages}"), ("encoder", about["encoder"])]
        rows.append(("passages", collections["passages"]))
    rows += [("other model", model) for model in about["models"]]
    policy, mesh, memory = about["policy"], about["mesh"], about["memory"]
    text = policy["folder"] + "; its shape is not known: add a file of gin/model"
    if "family" in policy:
        adapters = f", adapters of rank {policy['adapters']['rank']}" if policy["adapters"] else ""
        text = f"{policy['folder']}{'' if policy['here'] else ' (not here)'}: {policy['family']},"
        text += f" {policy['layers']} layers, {policy['width']:,} wide, {policy['compute_dtype']}{adapters}"
    axes, devices = " x ".join(f"{axis} {mesh[axis] or 'all'}" for axis in MESH_AXES), mesh["devices"]
    rows += [("policy", text), ("mesh", f"{axes}: {devices or 'all present'} device{'s' * (devices != 1)}")]
    if memory:
        kept = ", ".join(f"{name} {size_text(size)}" for name, size in memory["resident_bytes"].items())
        rows.append(("memory", f"{size_text(memory['device_bytes'])} kept on each device by formula: {kept}"))
    yield table("Searched, asked and computed", rows)

    if about["differences"]:
        differing = []
        for each in about["differences"]:
            silent = f" ({shown(each['ours'])} in its paper.gin)" if each["paper"] in SILENT else ""
            differing.append((each["setting"], f"{shown(each['paper'])}{silent}", each["value"], each["why"]))
        yield table("Different from the paper", differing, "setting", "paper", "here", "why")
    if about["lacking"]:
        yield table("Missing: the command would not start", list(enumerate(about["lacking"], 1)))


def count(number: float | None) -> str:
    """Returns a number of things as text, "?" for None."""
    return "?" if number is None else f"{number:,.0f}"


def shown(value: Any, inner: bool = False) -> str:
    """Returns a value as text: 1e-06 as 1e-6, 1005 as 1,005, and settings inside of settings in brackets."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        text = ", ".join(f"{name} {shown(each, True)}" for name, each in value.items())
        return f"({text})" if inner else text
    return str(value)

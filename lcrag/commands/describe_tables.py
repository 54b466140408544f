"""A description of `lcrag describe` as tables for the terminal."""

from collections.abc import Iterator, Mapping
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

    def table(title: str, *columns: str, rows: Any) -> Table:
        made = Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        made.show_header = bool(columns)
        made.add_column(
            columns[0] if columns else "", style="" if columns else "dim", header_style="dim", no_wrap=not columns
        )
        for name in columns[1:] or ("",):
            made.add_column(name, header_style="dim")
        for row in rows:
            if columns or row[1] not in (None, ""):
                made.add_row(*(Text(str(each)) for each in row))
        made.add_row()
        return made

    lines = [line if len(line) <= 88 else f"{line[:88]} ..." for line in about["opening"].splitlines() if line.strip()]
    more = f"\n({len(lines) - 4} more lines)" if len(lines) > 4 else ""
    prompts, samples, episodes = (
        count(about[f"{name}"]) for name in ("prompts_per_step", "samples", "episodes_per_step")
    )
    size = about.get("prompts_per_coupling")
    coupled = f" ({about['couplings']:,} couplings of {size:g} prompts)" if size and size != 1 else ""
    learns, asks = command == "train", command in ("train", "evaluate")
    rows = [
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
        references = ", ".join(f"{name} ({folder})" for name, folder in evaluation["references"].items())
        rows.append(("compared with", references))
    yield table("What runs", rows=rows)

    if about["budgets"]:
        own = _budget_rows(about["budgets"])
        other = {
            name: value for name, value in _budget_rows(about["evaluated_budgets"] or {}).items() if own[name] != value
        }
        if set(other) - {"prompt", "context"}:
            own |= {f"{name}, evaluated": value for name, value in other.items()}
        yield table("Budgets of an episode, in tokens", rows=own.items())

    if about["steps"]:
        objective, critic, updates = about["objective"], about.get("critic"), about["updates_per_step"]
        rewards = about["rewards"].items() if learns else ()
        rows = [("reward", f"{name}: {shown(settings)}") for name, settings in rewards]
        rows += [("rows", shown(about.get("rows", ""))), ("objective", objective["name"])]
        if learns:
            low, high, kl = (objective[name] for name in ("clip_low", "clip_high", "kl_coefficient"))
            rows.append(("advantages", objective["advantages"]))
            rows.append(("clip", f"{objective['ratio']} ratio in [1 - {low:g}, 1 + {high:g}]"))
            rows.append(("KL", f"{shown(kl)} ({objective['kl_estimator']}, in the loss)" if kl else "none in the loss"))
        of = f" of {about['episodes_per_update']:,.0f} episodes" if about.get("episodes_per_update") else ""
        rows.append(("normaliser", objective["normaliser"]))
        rows.append(("steps", f"{about['steps']:,}, {updates} update{'s' * (updates > 1)} each{of}"))
        for name, rate in (
            ("learning rate", about["learning_rate"]),
            ("critic's", (critic or {}).get("learning_rate")),
        ):
            if rate:
                rows.append((name, f"{shown(rate['peak'])}: {rate['schedule']}; weight decay {rate['weight_decay']:g}"))
        rows.append(
            ("critic", shown({name: value for name, value in (critic or {}).items() if name != "learning_rate"}))
        )
        yield table("Learning", rows=rows)

    if about["data"]:
        sets = (
            (
                each["source"] + (f" ({each['dataset']})" if "dataset" in each else ""),
                "absent" if each["absent"] else count(each["questions"]),
                shown(each["languages"]),
            )
            for each in about["data"]
        )
        yield table("Questions", "source", "questions", "languages", rows=sets)

    rows = []
    if collections := about["collections"]:
        where = f" in {collections['where']}" if collections["where"] else ""
        languages = ", ".join(collections["languages"]) or "languages not known before they are opened"
        rows += [("collections", f"{collections['source']}{where}: {languages}"), ("encoder", about["encoder"])]
        rows.append(("passages", shown(collections["passages"])))
    for model in about["models"]:
        rows.append(("other model", f"{model['name']}: {shown({k: v for k, v in model.items() if k != 'name'})}"))
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
    yield table("Searched, asked and computed", rows=rows)

    if about["differences"]:
        differing = []
        for each in about["differences"]:
            silent = f" ({shown(each['ours'])} in its paper.gin)" if each["paper"] in SILENT else ""
            differing.append((each["setting"], f"{shown(each['paper'])}{silent}", shown(each["value"]), each["why"]))
        yield table("Different from the paper", "setting", "paper", "here", "why", rows=differing)
    if about["lacking"]:
        yield table("Missing: the command would not start", rows=enumerate(about["lacking"], 1))


def _budget_rows(budgets: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the lines of the budgets of an episode; without budgets there are none."""
    if not budgets:
        return {}
    invalid, observed, prompt = (budgets[name] for name in ("invalid_actions", "observation_tokens", "prompt_tokens"))
    fits = "fits" if budgets["fits_context"] else "is longer: such an episode ends when its context is full"
    longest = f"the longest episode{'' if prompt else ' without its prompt'}, {budgets['longest_tokens']:,}, {fits}"
    return {
        "searches": f"{budgets['searches']}" + f", and {invalid} invalid actions" * bool(invalid),
        "passages": budgets["passages"] and f"{budgets['passages']} of each searched language",
        "observation": observed and f"{observed:,} a search",
        "tool calls": budgets["tool_calls"],
        "generation": f"{budgets['generation_tokens']:,}",
        "prompt": f"{prompt:,} (first question)" if prompt else "not counted: the tokenizer is not here",
        "context": f"{budgets['context_tokens']:,}; {longest}",
    }


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

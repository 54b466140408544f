"""A description as tables for the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from lcrag.evaluation.paper_settings import SILENT, shown
from lcrag.runs.display import size_text

OPENING_LINES = 4
LINE_CHARACTERS = 88


def tables(described: Mapping[str, Any]) -> Iterator[Table]:
    """Yields the tables of a description; parts that the command does not have are left out."""
    yield _facts("What runs", _programs(described))
    if described["budgets"]:
        yield _facts("Budgets of an episode, in tokens", _budgets(described))
    if described["steps"]:
        yield _facts("Learning", _learning(described))
    if described["data"]:
        yield _data(described["data"])
    yield _facts("Searched, asked and computed", _parts(described))
    if described["differences"]:
        yield _differences(described["differences"])
    if described["lacking"]:
        yield _facts("Missing: the command would not start", enumerate(described["lacking"], 1))


def _table(title: str) -> Table:
    return Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _facts(title: str, rows: Any) -> Table:
    """A table of names and values, without a header."""
    table = _table(title)
    table.show_header = False
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in rows:
        if value not in (None, ""):
            table.add_row(str(name), Text(str(value)))
    table.add_row("", "")
    return table


def _programs(described: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "command", described["command"]
    yield "method", described["method"]
    yield "program", described["program"]
    if described["evaluation"] and described["command"] != "evaluate":
        yield "evaluated program", described["evaluated_program"]
    lines = [line for line in described["opening"].splitlines() if line.strip()]
    cut = [line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} ..." for line in lines[:OPENING_LINES]]
    more = f"\n({len(lines) - OPENING_LINES} more lines)" if len(lines) > OPENING_LINES else ""
    yield "opening", "\n".join(cut) + more
    if described["command"] in ("train", "evaluate"):
        yield "episodes" + (" of a step" if described["command"] == "train" else ""), _episodes(described)
    evaluation = described["evaluation"]
    if evaluation:
        decodings = ", ".join(_decoding(name, each) for name, each in evaluation["decodings"].items())
        yield "evaluation", f"{_count(evaluation['questions'])} questions of {evaluation['split']}; {decodings}"
        references = ", ".join(f"{name} ({folder})" for name, folder in evaluation["references"].items())
        yield "compared with", references


def _decoding(name: str, decoding: Mapping[str, Any]) -> str:
    runs = f" x {decoding['runs']} runs" if decoding["runs"] > 1 else ""
    return f"{name} at temperature {decoding['temperature']:g}{runs}"


def _episodes(described: Mapping[str, Any]) -> str:
    prompts, samples, episodes = (
        _count(described[name]) for name in ("prompts_per_step", "samples", "episodes_per_step")
    )
    text = f"{prompts} prompts x {samples} = {episodes}"
    size = described.get("prompts_per_coupling")
    return f"{text} ({described['couplings']:,} couplings of {size:g} prompts)" if size and size != 1 else text


def _count(number: float | None) -> str:
    return "?" if number is None else f"{number:,.0f}"


def _budgets(described: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from _budget_rows(described["budgets"])
    if described["evaluated_budgets"]:
        own = dict(_budget_rows(described["budgets"]))
        other = {name: value for name, value in _budget_rows(described["evaluated_budgets"]) if own.get(name) != value}
        if set(other) - {"prompt", "context"}:
            yield from ((f"{name}, evaluated", value) for name, value in other.items())


def _budget_rows(budgets: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    invalid = budgets["invalid_actions"]
    yield "searches", f"{budgets['searches']}{f', and {invalid} invalid actions' if invalid else ''}"
    yield "passages", budgets["passages"] and f"{budgets['passages']} of each searched language"
    yield "observation", budgets["observation_tokens"] and f"{budgets['observation_tokens']:,} a search"
    yield "tool calls", budgets["tool_calls"]
    yield "generation", f"{budgets['generation_tokens']:,}"
    prompt = budgets["prompt_tokens"]
    yield "prompt", f"{prompt:,} (first question)" if prompt else "not counted: the tokenizer is not here"
    fits = "fits" if budgets["fits_context"] else "is longer: such an episode ends when its context is full"
    longest = f"the longest episode{'' if prompt else ' without its prompt'}, {budgets['longest_tokens']:,}, {fits}"
    yield "context", f"{budgets['context_tokens']:,}; {longest}"


def _learning(described: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for reward, settings in described["rewards"].items() if described["command"] == "train" else ():
        yield "reward", f"{reward}: {_settings(settings)}"
    if "rows" in described:
        yield "rows", _settings(described["rows"])
    objective = described["objective"]
    yield "objective", objective["name"]
    if "advantages" in objective:
        yield "advantages", objective["advantages"]
        clip = f"{objective['ratio']} ratio in [1 - {objective['clip_low']:g}, 1 + {objective['clip_high']:g}]"
        yield "clip", clip
        kl = objective["kl_coefficient"]
        yield "KL", f"{shown(kl)} ({objective['kl_estimator']}, in the loss)" if kl else "none in the loss"
    yield "normaliser", objective["normaliser"]
    steps, updates = described["steps"], described["updates_per_step"]
    of = described.get("episodes_per_update")
    yield "steps", f"{steps:,}, {updates} update{'s' * (updates > 1)} each{f' of {of:,.0f} episodes' if of else ''}"
    for name, part in (("learning rate", described), ("critic's", described.get("critic") or {})):
        if rate := part.get("learning_rate"):
            yield name, f"{shown(rate['peak'])}: {rate['schedule']}; weight decay {rate['weight_decay']:g}"
    critic = described.get("critic")
    if critic:
        yield "critic", _settings({name: critic[name] for name in critic if name != "learning_rate"})


def _settings(settings: Any) -> str:
    """Settings as text, nested ones in brackets."""
    if not isinstance(settings, Mapping):
        return shown(settings)
    texts = (
        f"{name} {f'({_settings(each)})' if isinstance(each, Mapping) else shown(each)}"
        for name, each in settings.items()
    )
    return ", ".join(texts)


def _data(sources: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("Questions")
    for name in ("source", "questions", "languages"):
        table.add_column(name, header_style="dim", justify="right" if name == "questions" else "left")
    for each in sources:
        dataset = each.get("dataset")
        languages = ", ".join(f"{code} {count:,}" for code, count in each["languages"].items())
        name = f"{each['source']}{f' ({dataset})' if dataset else ''}"
        table.add_row(Text(name), _count(each["questions"]) if not each["absent"] else "absent", Text(languages))
    table.add_row("", "", "")
    return table


def _parts(described: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    collections = described["collections"]
    if collections:
        where = f" in {collections['where']}" if collections["where"] else ""
        languages = ", ".join(collections["languages"]) or "languages not known before they are opened"
        yield "collections", f"{collections['source']}{where}: {languages}"
        yield "passages", ", ".join(f"{code} {count:,}" for code, count in collections["passages"].items())
        yield "encoder", described["encoder"]
    for model in described["models"]:
        yield "other model", f"{model['name']}: {_settings({name: model[name] for name in model if name != 'name'})}"
    yield "policy", _policy(described["policy"])
    mesh = described["mesh"]
    axes = " x ".join(f"{axis} {size or 'all'}" for axis, size in mesh.items() if axis != "devices")
    devices = mesh["devices"]
    yield "mesh", f"{axes}: {devices or 'all present'} device{'s' * (devices != 1)}"
    memory = described["memory"]
    if memory:
        kept = ", ".join(f"{name} {size_text(size)}" for name, size in memory["resident_bytes"].items())
        yield "memory", f"{size_text(memory['device_bytes'])} kept on each device by formula: {kept}"


def _policy(policy: Mapping[str, Any]) -> str:
    if "family" not in policy:
        return f"{policy['folder']}; its shape is not known: add a file of gin/model"
    adapters = policy["adapters"]
    return (
        f"{policy['folder']}{'' if policy['here'] else ' (not here)'}: {policy['family']}, {policy['layers']} layers,"
        f" {policy['width']:,} wide, {policy['compute_dtype']}"
        + (f", adapters of rank {adapters['rank']}" if adapters else "")
    )


def _differences(differences: Sequence[Mapping[str, Any]]) -> Table:
    table = _table("Different from the paper")
    for name in ("setting", "paper", "here", "why"):
        table.add_column(name, header_style="dim")
    for each in differences:
        silent = f" ({shown(each['ours'])} in its paper.gin)" if each["paper"] in SILENT else ""
        texts = each["setting"], f"{shown(each['paper'])}{silent}", shown(each["value"]), each["why"]
        table.add_row(*map(Text, texts))
    table.add_row("", "", "", "")
    return table

"""The tables of a rehearsal, from the content of `rehearsal.json`."""

from collections.abc import Mapping, Sequence
from typing import Any

from lcrag.evaluation.tables import Cell, Table
from lcrag.policy.accelerators import GIB
from lcrag.runs.display import hours_and_minutes

SPREADS = (
    ("prompt p50", "prompt_tokens", "p50"),
    ("prompt p99", "prompt_tokens", "p99"),
    ("observed p50", "observation_tokens", "p50"),
    ("episode p50", "episode_tokens", "p50"),
    ("episode p99", "episode_tokens", "p99"),
    ("episode most", "episode_tokens", "most"),
)


SHARES = (
    ("held by native", "native"),
    ("as written", "native_exact"),
    ("held anywhere", "anywhere"),
    ("as written", "anywhere_exact"),
    ("found", "found"),
    ("shown", "shown"),
)


def tables(rehearsal: Mapping[str, Any]) -> list[Table]:
    """Returns the tables of a rehearsal; a title says whether its numbers were measured here or computed."""
    parts = (
        ("lengths", _lengths),
        ("answerable", _questions),
        ("retrieval", _retrieval),
        ("sampled", _sampled),
        ("memory", _memory),
        ("costs", _costs),
    )
    return [table(rehearsal[name], rehearsal) for name, table in parts if rehearsal.get(name)]


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Table:
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    return Table(title=title, header=tuple(header), sections=(cells,), note=note)


def _lengths(lengths: Mapping[str, Any], rehearsal: Mapping[str, Any]) -> Table:
    header = [
        "questions",
        "episodes",
        *(name for name, _, _ in SPREADS),
        "cut observations",
        "full contexts",
        "searches, calls",
    ]
    rows = [
        [
            group,
            f"{each['episodes']:,}",
            *(_count(each[name].get(cut)) for _, name, cut in SPREADS),
            _share(each["truncated_observations"]),
            _share(each["full_contexts"]),
            f"{each['searches'] + each['tool_calls']:.1f}",
        ]
        for group, each in lengths.items()
    ]
    return _table("Lengths of episodes in tokens (measured)", header, rows, f"Assumed: {rehearsal['assumed']}")


def _questions(found: Mapping[str, Any], rehearsal: Mapping[str, Any]) -> Table:
    words, languages = rehearsal["tokens_per_word"], found["languages"]
    searched = any("found" in each for each in languages.values())
    shares = SHARES if searched else ()
    rows = [
        [
            language,
            f"{each['questions']:,}",
            f"{words[language]:.2f}" if language in words else "",
            *(_share(each.get(name)) for _, name in shares),
        ]
        for language, each in languages.items()
    ]
    header = ["language", "questions", "tokens a word", *(title for title, _ in shares)]
    if not searched:
        return _table("Questions (measured)", header, rows)
    note = (
        "Held: a passage contains a gold answer as whole words after the metrics' normalisation; as written: in the"
        " gold's own characters. Found and shown: by the script's searches, and in what the policy saw of them."
    )
    if found.get("passages"):
        of = ", ".join(f"{code} {count:,}" for code, count in found["passages"].items())
        note += f" Passages looked at: {of}{' (a part: shares are lower bounds)' if found['partial'] else ''}."
    else:
        note += " The passages are not on this machine: only those that were found were looked at."
    return _table("Questions that the collections can answer (measured)", header, rows, note)


def _retrieval(found: Mapping[str, Any], rehearsal: Mapping[str, Any]) -> Table:
    seconds, pairs = found["seconds"], found["pairs"]
    header = ["calls", "queries a call", "p50", "p90", "p99", "failed calls", "failed searches"]
    times = [f"{seconds[cut] * 1e3:,.0f} ms" if seconds else "" for cut in ("p50", "p90", "p99")]
    row = [f"{found['calls']:,}", _count(pairs.get("mean")), *times, str(found["failed_calls"]), str(found["failures"])]
    note = f"Of {found['clients']} episodes at once; a query is a text in one collection." + "".join(
        f" Error: {error} ({count} times)." for error, count in found["errors"].items()
    )
    return _table("Searches (measured on this machine)", header, [row], note)


def _sampled(found: Mapping[str, Any], rehearsal: Mapping[str, Any]) -> Table:
    rows = [[name, f"{value:,.3g}"] for name, value in found["metrics"].items()]
    note = f"A random policy of {found['parameters']:,} parameters: {found['policy']}."
    return _table("Sampled with a tiny policy, scored and learned from (measured)", ["", "value"], rows, note)


def _memory(found: Mapping[str, Any], rehearsal: Mapping[str, Any]) -> Table:
    if found.get("programs"):
        header = ["program", "needed", "available", "fits"]
        rows = [
            [each["program"], _gib(each["needed_bytes"]), _gib(each["device_bytes"]), _fits(each["fits"])]
            for each in found["programs"]
        ]
        return _table(f"Memory of each device (computed: compiled for {found['target']})", header, rows)
    rows = [[name, _gib(size)] for name, size in found["resident_bytes"].items() if size]
    total = sum(found["resident_bytes"].values())
    rows += [["in all", _gib(total)], ["available", _gib(found["available_bytes"])]]
    note = "Arrays that a run keeps on each device; `lcrag compile` counts what its programs need in addition."
    return _table("Memory of each device (computed by formula)", ["arrays", "size"], rows, note)


def _costs(found: Mapping[str, Any], rehearsal: Mapping[str, Any]) -> Table:
    runs = found["runs"]
    header = ["", *(f"{_rates(run['efficiency'])}{_with_searches(run)}" for run in runs)]
    rows = [
        [f"{phase}, seconds a step", *(f"{run['phase_seconds'][phase]:,.1f}" for run in runs)]
        for phase in runs[0]["phase_seconds"]
    ]
    if any(run["retrieval_seconds"] for run in runs):
        rows.append(["searches, seconds a step", *(f"{run['retrieval_seconds']:,.1f}" for run in runs)])
    rows += [
        ["a step", *(hours_and_minutes(run["step_seconds"]) for run in runs)],
        ["tokens a step", *(f"{run['tokens_per_step']:,.0f}" for run in runs)],
        ["tokens a day", *(f"{run['tokens_per_day'] / 1e6:,.1f} million" for run in runs)],
        [f"{found['steps']:,} steps, hours", *(f"{run['hours']:,.1f}" for run in runs)],
        ["device-hours", *(f"{run['device_hours']:,.0f}" for run in runs)],
        ["device-hours of 1,000 steps", *(f"{run['device_hours_of_1000_steps']:,.0f}" for run in runs)],
    ]
    note = f"{found['devices']} x {found['device']}, {found['episodes']:,} episodes a step. {found['reading']}"
    return _table("The run (computed from the lengths above)", header, rows, note)


def _rates(efficiency: float | Mapping[str, float]) -> str:
    return "as compiled" if isinstance(efficiency, Mapping) else f"{efficiency:.0%} of the peak rates"


def _with_searches(run: Mapping[str, Any]) -> str:
    return ", and searches as measured here" if run["retrieval_seconds"] else ""


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def _gib(size: float | None) -> str:
    return "" if size is None else f"{size / GIB:,.2f} GiB"


def _fits(fits: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[fits]

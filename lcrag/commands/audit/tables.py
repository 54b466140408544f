"""Counts of an audit by split and language, and their tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.data.constructed import ENGLISH
from lcrag.evaluation.answerable import EXACT, KINDS, LEVELS, NORMALISED, Audited
from lcrag.evaluation.significance import wilson_interval
from lcrag.evaluation.tables import Cell, Table

Count = Mapping[str, float]
Share = Callable[[Audited], bool]
ALL = "all"
KIND_NAMES = {"short_gold": "short golds", "yes_no": "yes or no", "no_gold": "no gold"}
INTERVAL = "In percent; in brackets Wilson's interval of 95 %, which takes questions as independent."
HELD = (
    "Of the questions: a passage holds a gold, in the collection of the question's language as written, after the"
    " metrics' normalisation, or also an alias; in the English and in any other collection, also the gold of the"
    " question's version in that language; in none. The text may stand there for another reason: an upper bound. Apart:"
    " questions whose golds have one or two characters, or are yes or no, below."
)
RECALL = "Of the questions, asked as they are: a passage that holds a gold is among the first k of one collection."
OBSERVED = "Found: the passages of a search hold a gold. Lost: of these, what is shown within the budget holds none."


def counts(rows: Sequence[Audited], cuts: Sequence[int], passages: int | None) -> dict[str, list[dict[str, Any]]]:
    """Returns the lines of the tables "held", "recall" and "observed".

    Args:
      rows: The audited questions.
      cuts: Depths of the recall.
      passages: The experiment's own depth; None: it has none.
    """
    found: dict[str, list[dict[str, Any]]] = {"held": [], "recall": [], "observed": []}
    for split in dict.fromkeys(row.split for row in rows):
        own = [row for row in rows if row.split == split]
        for group, everything in _groups(own):
            place, chosen = {"split": split, "group": group}, [row for row in everything if not row.kind]
            apart = {"questions": len(chosen), "apart": len(everything) - len(chosen)}
            found["held"].append({**place, **apart, **_shares(chosen, _held_by())})
            searched = [row for row in chosen if row.ranks is not None]
            if searched:
                shares = _shares(searched, _found_by(cuts, passages))
                found["recall"].append({**place, "questions": len(searched), **shares})
            found["observed"] += [{**place, **line} for line in _observed(searched)]
        for kind in KINDS:
            if chosen := [row for row in own if row.kind == kind]:
                line = {"split": split, "group": KIND_NAMES[kind], "questions": len(chosen), "apart": len(chosen)}
                found["held"].append({**line, **_shares(chosen, _held_by())})
    return found


def _groups(rows: Sequence[Audited]) -> Iterator[tuple[str, list[Audited]]]:
    """Yields the rows of each language, of each data set if there are several, and all of them."""
    sets, codes = {row.dataset for row in rows}, {row.language for row in rows}
    groups: dict[str, list[Audited]] = {}
    for row in rows:
        names = ([row.dataset] if len(sets) > 1 else []) + ([row.language] if len(codes) > 1 or len(sets) == 1 else [])
        groups.setdefault(", ".join(names), []).append(row)
    yield from groups.items()
    if len(groups) > 1:
        yield ALL, list(rows)


def _held_by() -> dict[str, Share]:
    def native(*levels: str) -> Share:
        return lambda row: row.held.get(row.language) in levels

    return {
        "native, exact": native(EXACT),
        "native, normalised": native(EXACT, NORMALISED),
        "native, alias": native(*LEVELS),
        "English": lambda row: ENGLISH in row.held,
        "others": lambda row: not row.held.keys() <= {row.language, ENGLISH},
        "nowhere": lambda row: not row.held,
    }


def _found_by(cuts: Sequence[int], passages: int | None) -> dict[str, Share]:
    def native(k: int) -> Share:
        return lambda row: (row.ranks or {}).get(row.language, k + 1) <= k

    depth = passages or max(cuts, default=1)
    return {
        **{f"native@{k}": native(k) for k in sorted({*cuts, *([passages] if passages else [])})},
        f"English@{depth}": lambda row: (row.ranks or {}).get(ENGLISH, depth + 1) <= depth,
        f"any@{depth}": lambda row: min((row.ranks or {}).values(), default=depth + 1) <= depth,
    }


def _observed(rows: Sequence[Audited]) -> list[dict[str, Any]]:
    lines = []
    for number in sorted({number for row in rows for number in row.observed}):
        searched = [row.observed[number] for row in rows if number in row.observed]
        held = [shown for found, shown in searched if found]
        found, lost = _share(len(held), len(searched)), _share(held.count(False), len(held))
        lines.append({"search": number, "questions": len(searched), "found": found, "lost": lost})
    return lines


def _shares(rows: Sequence[Audited], shares: Mapping[str, Share]) -> dict[str, Count]:
    return {name: _share(sum(map(share, rows)), len(rows)) for name, share in shares.items()}


def _share(count: int, of: int) -> Count:
    low, high = wilson_interval(count, of)
    return {"count": count, "of": of, "low": low, "high": high}


def tables(audit: Mapping[str, Any]) -> list[Table]:
    """Returns the tables of the content of `audit.json`."""
    shown = []
    titles = {
        "held": ("Golds that passages hold", HELD),
        "recall": ("Golds that searches find", RECALL),
        "observed": ("Golds that budgets cut off", OBSERVED),
    }
    for name, (title, note) in titles.items():
        for split in dict.fromkeys(line["split"] for line in audit[name]):
            lines = [line for line in audit[name] if line["split"] == split]
            columns = [column for column in lines[0] if column not in ("split", "group")]
            texts = ((line["group"], *(_text(line[column]) for column in columns)) for line in lines)
            cells = tuple(tuple(map(Cell, each)) for each in texts)
            about = f" {audit['observation']}" if name == "observed" else ""
            header, said = ("", *columns), f"{note} {INTERVAL}{about}"
            shown.append(Table(title=f"{title}: {split}", header=header, sections=(cells,), note=said))
    return shown


def _text(value: Any) -> str:
    """A number of questions, or a share with its interval: "63 [60–67]", "0.3 [0–1]"."""
    if not isinstance(value, Mapping):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if not value["of"]:
        return "–"
    share = 100 * value["count"] / value["of"]
    text = f"{share:.0f}" if share in (0, 100) or share >= 10 else f"{share:.1f}"
    low, high = (f"{100 * value[end]:.0f}" for end in ("low", "high"))
    return text if low == high else f"{text} [{low}–{high}]"

"""Makes the table of ratios from the rows of one run: python benchmarks/peers/table.py ROWS.jsonl [MACHINE]"""

import datetime
import json
import pathlib
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
# what a row may say in addition, and how it is printed
EXTRA = {"recall": "recall {:.3f}", "occupancy": "occupancy {:.2f}", "executed_per_needed": "executed / needed {:.2f}"}


def rate(row: Row) -> float:
    """Returns the amount of work a second, by the median of the repeats."""
    return row["amount"] / statistics.median(row["seconds"])


def rows_of(work: str, rows: Sequence[Row]) -> Iterable[str]:
    """Yields the lines of one work: one per peer, or one without if lcrag has no peer in it."""
    mine = [row for row in rows if row["work"] == work]
    by_side = {row["side"]: row for row in mine}
    ours, floor = by_side.pop("lcrag", None), by_side.pop("floor", None)
    share = f"{rate(ours) / rate(floor):.2f}" if ours and floor else ""
    own = f"{number(rate(ours))} {ours['unit']}/s" if ours else "failed"
    notes = [text.format(row[name]) for row in (ours, floor) if row for name, text in EXTRA.items() if name in row]
    own = ", ".join([own, *notes])
    if not by_side:
        yield f"| {work} | {own} | {share} | | | |"
    for side, row in sorted(by_side.items(), key=lambda item: -rate(item[1])):
        notes = [text.format(row[name]) for name, text in EXTRA.items() if name in row]
        theirs = ", ".join([f"{number(rate(row))}", *notes])
        ratio = f"**{rate(ours) / rate(row):.2f}**" if ours else ""
        yield f"| {work} | {own} | {share} | {side} | {theirs} | {ratio} |"
        work = own = share = ""


def number(value: float) -> str:
    """Formats a number with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    path, machine = pathlib.Path(sys.argv[1]), " ".join(sys.argv[2:])
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    measured, failed = ([row for row in rows if ("failed" in row) == wanted] for wanted in (False, True))
    print(f"lcrag and its peers on the same work, {datetime.datetime.now(datetime.UTC).date().isoformat()}, {machine}")
    print("\n| work | lcrag | share of the floor's rate | peer | its rate | lcrag / peer |")
    print("|---|---|---:|---|---|---:|")
    for work in dict.fromkeys(row["work"] for row in measured):
        print("\n".join(rows_of(work, measured)))
    print("\nMedians of the repeats; the floor is the least time by the machine's own copy and matrix rates.")
    for row in failed:
        print(f"\nNot measured: {row['failed']}")


if __name__ == "__main__":
    main()

"""The tables of docs/lab/predictions.md are those of its data files, whose verdicts agree with their numbers.

`python tests/test_shell_predictions.py` writes the tables again.
"""

import csv
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab" / "predictions.md"
FILES = {path.name: path for path in sorted(PAGE.with_suffix("").glob("*.tsv"))}
BLOCK = re.compile(r"(<!--(\S+\.tsv)-->\n).*?(<!--end-->)", re.DOTALL)
NUMBER = r"[-+]?\d+(?:\.\d+)?"


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", strict=True))


def numbers(cell: str) -> list[float]:
    """The numbers of a cell, one or one of each seed; none of a cell with words."""
    return [float(part) for part in cell.split(" / ")] if re.fullmatch(rf"{NUMBER}( / {NUMBER})*", cell) else []


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """The table of a study, with a line before the predictions of each commit; a claim that they share is named."""
    yield "\n| quantity | expected | result |\n|---|---|---|\n"
    for (date, commit), group in itertools.groupby(rows, lambda row: (row["date"], row["commit"])):
        written = list(group)
        (claim, *others) = {row["claim"] for row in written}
        title = f", {claim}" if claim and not others else ""
        yield f"| *{date}, `{commit}`{title}* |\n"
        for row in written:
            expected = re.sub("(.*) to (.*)", r"[\1, \2]", row["expected"])
            pairs = itertools.zip_longest(row["result"].split(" / "), row["interval"].split(" / "), fillvalue="")
            result = " / ".join(f"{value} ±{width}" if width else value for value, width in pairs)
            result += f": {row['verdict']}" if result else ""
            yield f"| {row['quantity']} | {expected} | {result} |\n"
    yield "\n"


def with_tables(page: str) -> str:
    return BLOCK.sub(lambda found: found[1] + "".join(table(read(FILES[found[2]]))) + found[3], page)


def test_the_page_shows_every_prediction():
    page = PAGE.read_text(encoding="utf-8")
    assert sorted(name for _, name, _ in BLOCK.findall(page)) == sorted(FILES)
    assert page == with_tables(page), "write the tables again: python tests/test_shell_predictions.py"


@pytest.mark.parametrize("name", FILES)
def test_verdicts_agree_with_the_numbers(name):
    for row in read(FILES[name]):
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"]) and re.fullmatch(r"[0-9a-f]{8}", row["commit"]), row
        bounds = re.fullmatch(rf"(?:({NUMBER}) to ({NUMBER})|above ({NUMBER})|below ({NUMBER}))", row["expected"])
        assert bounds, row
        low, high = float(bounds[1] or bounds[3] or -math.inf), float(bounds[2] or bounds[4] or math.inf)
        values, widths = numbers(row["result"]), numbers(row["interval"])
        assert bool(row["verdict"]) == bool(row["result"]), row
        (word, place) = re.fullmatch("(confirmed|refuted|undecided)?(?:, )?(.*)", row["verdict"]).groups()
        if values:
            places = ["below" if value < low else "above" if value > high else "within" for value in values]
            assert (place or "within") == (places[0] if len(set(places)) == 1 else " / ".join(places)), row
        pairs = list(zip(values, widths, strict=True)) if widths else []
        confirmed = [value * (low + high) > 0 and abs(value) > width for value, width in pairs]
        refuted = [abs(value) > width and (value - width > high or value + width < low) for value, width in pairs]
        assert word != "confirmed" or all(confirmed), row
        assert word != "refuted" or all(refuted), row
        assert word != "undecided" or not (all(confirmed) or all(refuted)), row


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

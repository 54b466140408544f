"""Settings of a paper's run compared with ours; the tables are in the `paper` modules of the methods."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

SAME = "same"
NOT_STATED = "not stated"
LOST = "in a formula"  # which is missing in the available text of the paper
SILENT = (NOT_STATED, LOST)


@dataclasses.dataclass(frozen=True)
class PaperSetting:
    """One setting of a paper's run.

    Attributes:
      name: Name of the binding: "r_search.passages".
      paper: The paper's value; `NOT_STATED` if the paper does not state it, `LOST` if its available text lacks it.
      section: Section of the paper that states it; empty if none does.
      ours: The value of the method's paper.gin; `SAME`: the paper's.
      why: Why ours differs, or its source if the paper does not state it.
    """

    name: str
    paper: Any
    section: str = ""
    ours: Any = SAME
    why: str = ""

    @property
    def expected(self) -> Any:
        """The value in paper.gin."""
        return self.paper if self.ours == SAME else self.ours


@dataclasses.dataclass(frozen=True)
class Difference:
    """A value that differs from the paper's.

    Attributes:
      setting: The row of the paper's table.
      value: The value that runs.
    """

    setting: PaperSetting
    value: Any

    @property
    def why(self) -> str:
        """Why it differs, if it is the value of the method's paper.gin."""
        return self.setting.why if equal(self.value, self.setting.expected) else ""


def differences(table: Sequence[PaperSetting], value_of: Callable[[str], Any]) -> Iterator[Difference]:
    """Yields the settings that differ from the paper or, if the paper does not state a value, from paper.gin.

    Args:
      table: A paper's settings.
      value_of: Returns the value of a setting by its name.
    """
    for setting in table:
        value = value_of(setting.name)
        if not equal(value, setting.expected if setting.paper in SILENT else setting.paper):
            yield Difference(setting, value)


def equal(value: Any, other: Any) -> bool:
    """Whether two values of a setting are equal; lists equal tuples."""
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(equal, value, other))
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(equal(value[name], other[name]) for name in value)
    return str(value) == other if isinstance(other, str) else value == other


def shown(value: Any) -> str:
    """Returns a value as text: 1e-06 as 1e-6, 1005 as 1,005."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    return str(value)


def to_markdown(table: Sequence[PaperSetting]) -> str:
    """Returns a paper's settings as a Markdown table."""
    lines = ["| setting | paper | section | ours | why |", "|---|---|---|---|---|"]
    for each in table:
        ours = "" if each.ours == SAME else shown(each.ours)
        lines.append(f"| `{each.name}` | {shown(each.paper)} | {each.section} | {ours} | {each.why} |")
    return "\n".join(lines) + "\n"

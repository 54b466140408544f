"""Finds the files of episodes in the folders of runs, and reads groups up to the limits of a page."""

import contextlib
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lcrag.commands.view.page_rows import PartRows, TokenTexts
from lcrag.composition.components import resolved_folder
from lcrag.errors import UserError
from lcrag.policy import load_tokenizer
from lcrag.runs import read_configured, read_metrics
from lcrag.runs.folder import CONFIG, RUN

_STEP = re.compile(r"(step|extremes)_(\d+)")
_CURVES = re.compile(
    "reward/.*|episode/(answered|searches|policy_tokens|failed)|loss/(policy|kl)|entropy|gradient_norm"
    "|sampling_training_gap|seconds/(rollout|retrieval_wait|update)"
)
_POINTS = 400  # maximum number of points of a curve


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a page's content.

    Attributes:
      steps: Maximum number of training steps of a run; the newest are shown.
      megabytes: Maximum size of the rows of all runs; of each file, the first groups are shown.
    """

    steps: int
    megabytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A file of episodes: of a training step, or of one way of decoding in an evaluation.

    Attributes:
      path: The file.
      label: "step 10" or "after greedy".
      step: The training step; None: an evaluation.
      extremes: Whether it holds only the best and the worst episode of each group.
    """

    path: Path
    label: str
    step: int | None = None
    extremes: bool = False


def parts_of(folder: Path) -> list[Part]:
    """Returns the files of episodes of a run: steps in their order, then evaluations by name.

    Raises:
      UserError: there is no such folder, or it has no episodes.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: give the folder of a run or of an evaluation")
    steps: dict[int, Part] = {}
    evaluations = []
    for path in sorted((folder / "episodes").glob("*.jsonl")):
        if not path.stat().st_size:
            continue
        if found := _STEP.fullmatch(path.stem):
            step, extremes = int(found[2]), found[1] == "extremes"
            if step not in steps or not extremes:
                steps[step] = Part(path=path, label=f"step {step}", step=step, extremes=extremes)
        else:
            evaluations.append(Part(path=path, label=path.stem.replace("_", " ")))
    if not steps and not evaluations:
        raise UserError(f"{folder} has no episodes: give the --output_dir of `lcrag train` or `lcrag evaluate`")
    return [steps[step] for step in sorted(steps)] + evaluations


def read_runs(folders: Sequence[Path], limits: Limits) -> list[dict[str, Any]]:
    """Returns the data of each run for the page.

    Raises:
      UserError: a folder has no episodes, a row is damaged, or several runs have no question in common.
    """
    found = {folder: parts_of(folder) for folder in folders}
    sizes = [part.path.stat().st_size for parts in found.values() for part in _newest(parts, limits.steps)]
    share = _share(sizes, limits.megabytes * 1_000_000)
    runs = [_read_run(folder, parts, limits.steps, share) for folder, parts in found.items()]
    asked = Counter(key for run in runs for key in {key for part in run["parts"] for key in part["questions"]})
    if len(runs) > 1 and max(asked.values()) == 1:
        names = " and ".join(map(str, folders))
        raise UserError(f"{names} have no question in common: view each alone, or raise --steps and --megabytes")
    short = Counter(run["name"] for run in runs)
    return [run if short[run["name"]] == 1 else run | {"name": run["folder"]} for run in runs]


def _newest(parts: Sequence[Part], most_steps: int) -> list[Part]:
    steps = [part for part in parts if part.step is not None]
    return steps[-most_steps:] + [part for part in parts if part.step is None]


def _share(sizes: Sequence[int], limit: int) -> int:
    """Returns the size limit of each file; space that small files do not need goes to the others."""
    for number, size in enumerate(ordered := sorted(sizes)):
        if size * (len(sizes) - number) > limit:
            return limit // (len(sizes) - number)
        limit -= size
    return ordered[-1]


def _read_run(folder: Path, parts: Sequence[Part], most_steps: int, share: int) -> dict[str, Any]:
    texts, steps = _token_texts(folder), sum(part.step is not None for part in parts)
    read = [_read_part(part, texts, share) for part in _newest(parts, most_steps)]
    groups, all_groups = (sum(part[name] for part in read) for name in ("groups", "all_groups"))
    shown = f"{sum(len(part['rows'].episodes) for part in read)} episodes, {groups} of {all_groups} groups"
    return {
        "name": folder.resolve().name,
        "folder": str(folder),
        "method": _method(folder),
        "about": _about(folder),
        "curves": _curves(read_metrics(folder)),
        "divided": texts is not None,
        "shown": shown + (f", {min(steps, most_steps)} of {steps} steps" if steps else ""),
        "cut": groups < all_groups or most_steps < steps,
        "parts": read,
    }


def _read_part(part: Part, texts: TokenTexts | None, share: int) -> dict[str, Any]:
    lines = part.path.read_bytes().splitlines()
    groups, rows = [], PartRows(texts)
    for number, line in enumerate(lines, start=1):
        with _line_named(part.path, number):
            groups.append(str(_parsed(line)["group"]))
    kept = _first_groups(groups, lines, share)
    for number, (line, group) in enumerate(zip(lines, groups, strict=True), start=1):
        if group in kept:
            with _line_named(part.path, number):
                rows.add(_parsed(line))
    rows.add_recalls()
    return {
        "label": part.label,
        "step": part.step,
        "extremes": part.extremes,
        "groups": len(kept),
        "all_groups": len(set(groups)),
        "questions": sorted({episode["key"] for episode in rows.episodes}),
        "rows": rows,
    }


def _first_groups(groups: Sequence[str], lines: Sequence[bytes], share: int) -> set[str]:
    """Returns the first groups whose lines together have at most `share` bytes; at least one group."""
    sizes: Counter[str] = Counter()
    for group, line in zip(groups, lines, strict=True):
        sizes[group] += len(line)
    kept: set[str] = set()
    for group, size in sizes.items():
        share -= size
        if share < 0 and kept:
            break
        kept.add(group)
    return kept


def _parsed(line: bytes) -> Mapping[str, Any]:
    return json.loads(line, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


@contextlib.contextmanager
def _line_named(path: Path, number: int) -> Iterator[None]:
    """Converts errors in a line to a `UserError` that names the line."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path}, line {number}, is not an episode ({reason}): remove that line") from error


def _token_texts(folder: Path) -> TokenTexts | None:
    """Returns the token texts of the run's policy; None if its folder is missing."""
    configured = (str(read_configured(path).get("policy.folder", "")) for path in _configurations(folder))
    for place in (folder / "policy", *(resolved_folder(name) for name in configured if name)):
        if (place / "tokenizer.json").is_file():
            return TokenTexts(load_tokenizer(place).decode_bytes)
    return None


def _configurations(folder: Path) -> list[Path]:
    return [path for path in (folder / CONFIG, *sorted((folder / "answers").glob("*_config.gin"))) if path.is_file()]


def _method(folder: Path) -> str:
    names = (read_configured(path).get("Method.name") for path in _configurations(folder))
    return str(next(filter(None, names), folder.name))


def _about(folder: Path) -> dict[str, str]:
    """The facts of a run's provenance that a reader looks for."""
    paths = [folder / RUN, *sorted((folder / "answers").glob("*_run.json"))]
    try:
        about = json.loads(next(path for path in paths if path.is_file()).read_text(encoding="utf-8"))
        facts = {name: about[name] for name in ("started", "seed", "commit") if name in about}
        return {**{name: str(value) for name, value in facts.items()}, "command": " ".join(about["command"])}
    except (StopIteration, OSError, ValueError, TypeError, KeyError):
        return {}  # the page does without


def _curves(records: Sequence[Mapping[str, Any]]) -> dict[str, list]:
    """The curves of a run: `step`, and the values of each shown metric; None where a step lacks it."""
    records = records[:: len(records) // _POINTS + 1]
    names = dict.fromkeys(name for record in records for name in record if _CURVES.fullmatch(name))
    return {name: [record.get(name) for record in records] for name in ("step", *names)} if records else {}

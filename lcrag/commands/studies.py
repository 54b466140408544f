"""The studies of the papers: rows of a table or points of a figure, as bindings on top of an experiment.

`studies.toml` has the rows and the studies, this module what the commands of a kind of study are.
"""

import dataclasses
import functools
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lcrag.config import is_platform, packaged_folder
from lcrag.errors import UserError

# The file of its folder that a command writes last.
WRITTEN_LAST = {"train": "report.md", "sft": "report.md", "evaluate": "evaluation.json", "curate": "report.json"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One command of a study."""

    folder: Path  # its output folder
    command: tuple[str, ...]  # the command and its words
    gin_files: tuple[str, ...]
    bindings: tuple[str, ...] = ()  # statements `name = value`
    needs: tuple[Path, ...] = ()  # folders of the points whose results it reads
    record: Path | None = None  # of its results, from which the report is made; None: it is not reported

    @property
    def finished(self) -> bool:
        """Whether a run of it has finished."""
        return (self.folder / WRITTEN_LAST[self.command[0]]).exists()

    @property
    def log(self) -> Path:
        """What it prints, next to its folder."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def words(self) -> list[str]:
        """The words after `lcrag`."""
        files = [f"--gin_file={name}" for name in self.gin_files]
        bound = [f"--gin.{'='.join(binding.split(' = ', 1))}" for binding in self.bindings]
        # The commands of a study share bindings, and each uses only some of them.
        return [*self.command, *files, *bound, *(("--allow_unused",) if bound else ()), f"--output_dir={self.folder}"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line chooses of a study."""

    output: Path
    experiment: str  # the gin file that is studied, without its ending
    seeds: tuple[int, ...]  # of training
    only: tuple[str, ...] = ()  # names of variants or methods; empty: the study's own choice
    gin_files: tuple[str, ...] = ()  # of every point, after the study's own; initial policies have the platforms only
    bindings: tuple[str, ...] = ()  # of every point but the initial policies

    @property
    def platforms(self) -> tuple[str, ...]:
        """The gin files of platforms, which come before the experiment: it may override them."""
        return tuple(name for name in self.gin_files if is_platform(name))

    @property
    def starts(self) -> bool:
        """Whether initial policies are trained; a paper's experiment that begins with a published model has none."""

        def exists(name: str) -> bool:
            return any((folder / f"{name}.gin").exists() for folder in (Path(), packaged_folder()))

        return exists(f"{self.experiment}_sft") or not exists(self.experiment)

    def point(
        self,
        folder: Path,
        command: str,
        *bindings: str,
        files: tuple[str, ...] = (),
        needs: Iterable[Path] = (),
        tuned: bool = False,
    ) -> Point:
        """Returns a point of the experiment with further files and bindings, and those of every point.

        A method that is fine-tuned on golden answers has the settings of a paper's `paper_sft.gin`, if there is one.
        """
        others = (name for name in self.gin_files if name not in self.platforms)
        experiment = self.experiment
        if tuned and experiment.endswith("/paper") and (packaged_folder() / f"{experiment}_sft.gin").exists():
            experiment += "_sft"
        return Point(
            folder=folder,
            command=tuple(command.split()),
            gin_files=(*self.platforms, f"{experiment}.gin", *files, *others),
            bindings=(*bindings, *self.bindings),
            needs=tuple(needs),
        )

    def chosen(self, known: Iterable[str], usual: Sequence[str] = ()) -> list[str]:
        """Returns the names to run: the requested ones, or the usual ones, or all."""
        names = list(known)
        if unknown := [name for name in self.only if name not in names]:
            raise UserError(f"--only={','.join(self.only)}: there is no {unknown[0]}, only {', '.join(names)}")
        return list(self.only or usual or names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A study and its defaults."""

    summary: str
    points: Callable[[Settings], list[Point]]  # in sequential order
    experiment: str
    output: str
    bindings: tuple[str, ...] = ()  # of every point but the initial policies, before those of the command line
    seeds: tuple[int, ...] = (0, 1, 2)
    reported: str = "study"  # folder of the runs that the report compares, within `output`
    report: tuple[str, ...] = ()  # arguments of `lcrag report`
    report_folder: str = "report"  # within `output`


def on_atlas(experiment: str) -> bool:
    """Whether an experiment trains the atlas's tiny policy."""
    return experiment == "quickstart" or "atlas" in experiment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of a table, or one point of a figure, as a difference from the experiment."""

    name: str = ""  # in tables; empty: that of the experiment
    bindings: tuple[str, ...] = ()  # statements `name = value`
    files: tuple[str, ...] = ()  # gin files after the experiment's
    command: str = "train"  # "evaluate": the first seed only
    start: str = ""  # name of its initial policy; empty: one with the experiment's own settings
    mode: str = ""  # of RAG-R1: the variant whose stages it has; empty: it has its own
    sft_bindings: tuple[str, ...] = ()  # of SFT, in addition to `bindings`: of its initial policy, or studied
    paper_bindings: tuple[str, ...] = ()  # in addition, where the experiment is a method's paper.gin
    atlas_bindings: tuple[str, ...] = ()  # in addition, on the atlas: sizes of a step, which fit no other

    def bound(self, experiment: str = "") -> tuple[str, ...]:
        """Its bindings in an experiment, its name in tables included."""
        named = (f"Method.name = {self.name!r}",) if self.name else ()
        paper = self.paper_bindings if experiment.endswith("/paper") else ()
        return (*named, *self.bindings, *paper, *(self.atlas_bindings if on_atlas(experiment) else ()))


def policy_of(folder: Path) -> str:
    """Returns the statement that makes the policy of a finished run the initial policy."""
    return f"policy.folder = {str(folder / 'policy')!r}"


def crossed_points(
    settings: Settings,
    variants: Mapping[str, Variant],
    usual: Sequence[str],
    folder: str,
    table: str = "",
    trained_once: bool = False,
) -> list[Point]:
    """Returns the points of variants at every point of a table, one seed after the other.

    What is not trained has the first seed only.

    Args:
      variants: Name -> variant.
      usual: Default variants; empty: all.
      folder: Of the points.
      table: Group of rows that say what differs at a point; empty: the variants alone.
      trained_once: Each variant is trained once per seed, and that policy is evaluated at every point of the table.

    Raises:
      UserError: a variant begins with a policy of the atlas, and the experiment is another's.
    """
    made: list[Point] = []
    for seed in settings.seeds:
        for name in settings.chosen(variants, usual):
            variant, needs = variants[name], []
            if any("'atlas/" in binding for binding in variant.bindings) and not on_atlas(settings.experiment):
                raise UserError(f"{name} begins with a policy of the atlas: leave it out for {settings.experiment}")
            if variant.command == "evaluate" and seed != settings.seeds[0]:
                continue
            files, tuned = variant.files, variant.command == "sft"
            if trained_once and variant.command != "evaluate":
                needs = [settings.output / "trained" / f"{name}-{seed}"]
                unevaluated = ("sft.evaluation = None",) if tuned else ()
                bindings = (*variant.bound(settings.experiment), *unevaluated, f"SEED = {seed}")
                made.append(settings.point(needs[0], variant.command, *bindings, files=files, tuned=tuned))
            command = "evaluate" if trained_once else variant.command
            for point, changes in (ROWS[table] if table else {"": Variant()}).items():
                place = settings.output / folder / "-".join(filter(None, (name, point, str(seed))))
                differences = *variant.bound(settings.experiment), *changes.bound(settings.experiment)
                differences += changes.sft_bindings if command == "sft" else ()
                bindings = (*differences, *map(policy_of, needs), f"SEED = {seed}")
                made.append(settings.point(place, command, *bindings, files=files, needs=needs, tuned=tuned))
    return made


def started_points(settings: Settings, variants: Mapping[str, Variant], usual: Sequence[str]) -> list[Point]:
    """Returns the points of a method's variants: the initial policies they need, then every variant with every seed.

    What variants begin with is evaluated once, instead of in each of their runs, and so is what is not trained.

    Args:
      variants: Name -> variant; one whose `start` is its own name has its own initial policy.
      usual: Default variants; empty: all.
    """
    names = settings.chosen(variants, usual)
    trained = {name: variants[name] for name in names if variants[name].command == "train"}
    if not settings.starts:
        trained = {name: trained[name] for name in distinct(variants, settings.only) if name in trained}
    starts = {variant.start: variants.get(variant.start, Variant()) for variant in trained.values()}
    if not settings.starts:
        starts = distinct(starts)
    folders = {start: settings.output / "cold-start" / (start or "any") for start in starts}
    made = []
    for start, variant in starts.items() if settings.starts else ():
        bindings = (*variant.bound(settings.experiment), *variant.sft_bindings) if variant.sft_bindings else ()
        gin_files = (*settings.platforms, f"{settings.experiment}_sft.gin")
        made.append(Point(folder=folders[start], command=("sft",), gin_files=gin_files, bindings=bindings))

    def begun(folder: str, command: str, start: str, *bindings: str, files: tuple[str, ...] = ()) -> Point:
        needs = [folders[start]] if settings.starts else []
        place, policies = settings.output / "study" / folder, map(policy_of, needs)
        return settings.point(place, command, *bindings, *policies, files=files, needs=needs)

    for start, variant in starts.items():
        label = f"{variant.name}, before training" if variant.name else "before training"
        folder = "-".join(filter(None, ("before", start)))
        made.append(begun(folder, "evaluate", start, *variant.bindings, f"evaluate.label = {label!r}"))
    made += [untrained_point(name, variants[name], settings) for name in names if variants[name].command != "train"]
    for seed in settings.seeds:
        for name, variant in trained.items():
            bindings = (*variant.bound(settings.experiment), "Evaluation.before = False", f"SEED = {seed}")
            made.append(begun(f"{name}-{seed}", "train", variant.start, *bindings, files=variant.files))
    return made


def distinct(variants: Mapping[str, Variant], asked: Sequence[str] = ()) -> dict[str, Variant]:
    """Returns the variants that differ from earlier ones in more than their name and initial policy.

    Raises a UserError for another one that is `asked` for.
    """
    first: dict[tuple[object, ...], str] = {}
    for name, variant in variants.items():
        key = (variant.bindings, variant.paper_bindings, variant.files, variant.command)
        known = first.setdefault(key, name)
        if known != name and name in asked:
            raise UserError(f"{name} differs from {known} in the initial policy alone: none is trained, leave it out")
    return {name: variants[name] for name in first.values()}


def untrained_point(name: str, variant: Variant, settings: Settings) -> Point:
    """Returns the evaluation of a variant that is not trained; off the atlas its policy is the experiment's own."""
    bindings = variant.bound(settings.experiment)
    if not on_atlas(settings.experiment):
        bindings = tuple(binding for binding in bindings if "'atlas/" not in binding)
    return settings.point(settings.output / "study" / name, "evaluate", *bindings, files=variant.files)


STAGES = ("demonstrations", "sft", "selection")


def staged_points(settings: Settings, variants: Mapping[str, Variant], usual: Sequence[str]) -> list[Point]:
    """Returns the points of RAG-R1's systems, each after the stages that it needs, one seed after the other."""
    names = settings.chosen(variants, usual)
    stages = [name for name, variant in variants.items() if variant.command == "train" and not variant.mode]
    mode_of = {name: variants[name].mode or name for name in names if name != "rag"}
    points = [untrained_point("rag", variants["rag"], settings)] if "rag" in names else []
    for seed in settings.seeds:
        made = {mode: settings.output / "made" / f"{mode}-{seed}" for mode in stages if mode in mode_of.values()}
        for mode, folder in made.items():
            bound, (rows, tuned, selection) = variants[mode].bound(settings.experiment), map(folder.joinpath, STAGES)
            files = f"demonstration_files.files = ({str(rows / 'rows.jsonl')!r},)"
            choice = policy_of(tuned), f"selection.demonstrated = {str(rows)!r}"
            points += [
                settings.point(rows, "curate demonstrations", *bound, f"SEED = {seed}"),
                settings.point(tuned, "sft", *bound, files, f"SEED = {seed}", needs=[rows]),
                settings.point(selection, "curate selection", *bound, *choice, f"SEED = {seed}", needs=[rows, tuned]),
            ]
        for name, mode in mode_of.items():
            folder = settings.output / "study" / f"{name}-{seed}"
            _, tuned, selection = map(made[mode].joinpath, STAGES)
            changed = variants[name].bound() if name != mode else ()
            bound = (*variants[mode].bound(settings.experiment), *changed)
            if not name.endswith("without_sft"):
                bound = (*bound, policy_of(tuned))
            if variants[name].command == "evaluate":  # the policy of the SFT as it is
                points.append(settings.point(folder, "evaluate", *bound, f"SEED = {seed}", needs=[tuned]))
                continue
            questions = selection / ("unfiltered.jsonl" if name.endswith("without_selection") else "train.jsonl")
            point = settings.point(
                folder,
                "train",
                *bound,
                f"train/jsonl_questions.files = ({str(questions)!r},)",
                "train/jsonl_questions.dataset = 'selected'",
                f"SEED = {seed}",
                needs=[tuned, selection],
            )
            points.append(dataclasses.replace(point, gin_files=(*point.gin_files, "data/jsonl_training.gin")))
    return points


SPLITS = {"train": (), "validation": ("split = 'validation'", "limit = 10")}  # questions that are demonstrated


def demonstrated_points(
    settings: Settings, variants: Mapping[str, Variant], usual: Sequence[str], programs: Mapping[str, str]
) -> list[Point]:
    """Returns the points: demonstrations, one SFT on all of them, what is not trained further, and each training.

    Args:
      variants: Name -> variant.
      usual: Default variants, in their order.
      programs: Name -> gin file of a player whose episodes are demonstrated.
    """
    names = settings.chosen(variants, usual)
    made, points = settings.output / "made", []
    shown = {(program, split): made / f"{program}-{split}" for program in programs for split in SPLITS}
    for (program, split), folder in shown.items():
        asked = (f"demonstrated/xquad_questions.{setting}" for setting in SPLITS[split])
        points.append(settings.point(folder, "curate demonstrations", *asked, files=(programs[program],)))
    tuned = made / "sft"
    rows = {split: tuple(str(shown[program, split] / "rows.jsonl") for program in programs) for split in SPLITS}
    files = (f"{split}/demonstration_files.files = {paths!r}" for split, paths in rows.items())
    sft = settings.point(tuned, "sft", "sft.evaluation = None", *files, needs=shown.values())
    experiment = f"{settings.experiment}.gin"
    files = (f"{settings.experiment}_sft.gin" if name == experiment else name for name in sft.gin_files)
    points.append(dataclasses.replace(sft, gin_files=tuple(files)))
    for name in (name for name in names if variants[name].command == "evaluate"):
        needs = [] if name == "untrained" else [tuned]
        bound: tuple[str, ...] = (f"evaluate.label = {variants[name].name!r}", *map(policy_of, needs))
        folder = settings.output / "study" / name
        points.append(settings.point(folder, "evaluate", *bound, files=variants[name].files, needs=needs))
    for seed in settings.seeds:
        for name in (name for name in names if variants[name].command == "train"):
            bound = (policy_of(tuned), f"SEED = {seed}", *variants[name].bound(settings.experiment))
            folder = settings.output / "study" / f"{name}-{seed}"
            points.append(settings.point(folder, "train", *bound, files=variants[name].files, needs=[tuned]))
    return points


KINDS: dict[str, Callable[..., list[Point]]] = {
    "crossed": crossed_points,
    "started": started_points,
    "staged": staged_points,
    "demonstrated": demonstrated_points,
}


def _with_tuples(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _read_rows(given: Mapping[str, Any]) -> dict[str, Variant]:
    """Returns the rows of a group of `studies.toml`."""
    every = tuple(given.get("every", ()))
    rows = {name: _with_tuples(row) for name, row in given.items() if name != "every"}
    return {name: Variant(**row | {"bindings": every + row.get("bindings", ())}) for name, row in rows.items()}


def _read_study(given: dict[str, Any]) -> Study:
    """Returns a study of `studies.toml`; `rows` and `usual` name groups of rows, or `usual` single rows."""
    variants = {name: row for group in given.pop("rows") for name, row in ROWS[group].items()}
    usual = [name for word in given.pop("usual", ()) for name in ROWS.get(word, (word,))]
    arguments = {name: given.pop(name) for name in ("folder", "table", "trained_once", "programs") if name in given}
    points = functools.partial(KINDS[given.pop("points")], variants=variants, usual=usual, **arguments)
    # Arguments of `lcrag report`.
    report = tuple(
        f"--{name}={value}" if name in ("against", "axis") else f"--gin.compare_runs.{name}={value!r}"
        for name, value in _with_tuples(given.pop("report")).items()
    )
    folder = arguments.get("folder")
    folders = {"reported": folder, "report_folder": f"{folder}/report"} if folder else {}
    return Study(points=points, report=report, **_with_tuples(given), **folders)


_TABLES = tomllib.loads(Path(__file__).with_name("studies.toml").read_text(encoding="utf-8"))
ROWS = {group: _read_rows(rows) for group, rows in _TABLES["rows"].items()}
ABLATIONS, MORE_ABLATIONS = ROWS["ablations"], ROWS["more_ablations"]
STUDIES = {name: _read_study(given) for name, given in _TABLES["studies"].items()}
LCRL_STUDIES = {name: known for name, known in STUDIES.items() if name.startswith("lcrl_")}

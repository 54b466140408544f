"""The parts of a study: its points (commands with their folders), variants of an experiment, and its settings."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

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
    cold_start: bool = True  # whether cold starts are trained; otherwise the experiment's own policy is the start
    sft_experiment: str = ""  # the gin file of the baseline SFT, without its ending; empty: `experiment`
    gin_files: tuple[str, ...] = ()  # of every point, after the study's own; a cold start has the platforms only
    bindings: tuple[str, ...] = ()  # of every point but the cold starts

    @property
    def platforms(self) -> tuple[str, ...]:
        """The gin files of platforms, which come before the experiment: it may override them."""
        return tuple(name for name in self.gin_files if name.startswith("platform/"))

    def point(
        self, folder: Path, command: str, *bindings: str, files: Sequence[str] = (), needs: Iterable[Path] = ()
    ) -> Point:
        """Returns a point of the experiment with further files and bindings, and those of every point."""
        others = (name for name in self.gin_files if name not in self.platforms)
        return Point(
            folder=folder,
            command=tuple(command.split()),
            gin_files=(*self.platforms, f"{self.experiment}.gin", *files, *others),
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
    bindings: tuple[str, ...] = ()  # of every point but the cold starts, before those of the command line
    seeds: tuple[int, ...] = (0, 1, 2)
    reported: str = "study"  # folder of the runs that the report compares, within `output`
    report: tuple[str, ...] = ()  # arguments of `lcrag report`
    report_folder: str = "report"  # within `output`


class Variant:
    """One row of a table, as a difference from the experiment."""

    def __init__(
        self,
        name: str = "",  # in tables; empty: that of the experiment
        *bindings: str,  # statements `name = value`
        files: tuple[str, ...] = (),  # gin files after the experiment's
        command: str = "train",  # "evaluate": the first seed only
        start: str = "",  # name of the cold start that it begins with; empty: one with the experiment's own settings
        sft_bindings: tuple[str, ...] = (),  # of its own cold start, in addition to `bindings`
    ):
        self.name, self.bindings, self.files = name, bindings, files
        self.command, self.start, self.sft_bindings = command, start, sft_bindings

    def bound(self) -> tuple[str, ...]:
        """Its bindings, its name in tables included."""
        return (*((f"Method.name = {self.name!r}",) if self.name else ()), *self.bindings)


def seeded(seed: int) -> str:
    """Returns the statement that sets the seed of a run."""
    return f"SEED = {seed}"


def policy_of(folder: Path) -> str:
    """Returns the statement that makes the policy of a finished run the initial policy."""
    return f"policy.folder = {str(folder / 'policy')!r}"


# A reference for other methods: one search with the question as the query, by the policy that ships with the atlas.
RAG = Variant("", "policy.folder = 'atlas/cold_start'", files=("baselines/rag.gin",), command="evaluate")


def crossed_points(
    study: str,
    variants: Mapping[str, Variant],
    table: Mapping[str, tuple[str, ...]] | None = None,
    *,
    usual: Sequence[str] = (),
    trained_once: bool = False,
) -> Callable[[Settings], list[Point]]:
    """Returns the points of variants at every point of a table, one seed after the other.

    What is not trained has the first seed only.

    Args:
      study: Folder of the points.
      variants: Name -> variant.
      table: Name -> bindings; None: the variants alone.
      usual: Default variants; empty: all.
      trained_once: Each variant is trained once per seed, and that policy is evaluated at every point of the table.
    """

    def points(settings: Settings) -> list[Point]:
        made: list[Point] = []
        for seed in settings.seeds:
            for name in settings.chosen(variants, usual):
                variant, needs, studied = variants[name], [], settings
                if variant.command == "evaluate" and seed != settings.seeds[0]:
                    continue
                if variant.command == "sft":
                    studied = dataclasses.replace(settings, experiment=settings.sft_experiment or settings.experiment)
                if trained_once and variant.command == "train":
                    needs = [settings.output / "trained" / f"{name}-{seed}"]
                    bindings = (*variant.bound(), seeded(seed))
                    made.append(settings.point(needs[0], "train", *bindings, files=variant.files))
                command = "evaluate" if trained_once else variant.command
                for point, changes in (table or {"": ()}).items():
                    folder = settings.output / study / "-".join(filter(None, (name, point, str(seed))))
                    bindings = (*variant.bound(), *changes, *map(policy_of, needs), seeded(seed))
                    made.append(studied.point(folder, command, *bindings, files=variant.files, needs=needs))
        return made

    return points


def started_points(variants: Mapping[str, Variant], usual: Sequence[str] = ()) -> Callable[[Settings], list[Point]]:
    """Returns the points of a method's variants: the cold starts they need, then every variant with every seed.

    What variants begin with is evaluated once, instead of in each of their runs, and so is what is not trained.

    Args:
      variants: Name -> variant; one whose `start` is its own name has its own cold start.
      usual: Default variants; empty: all.
    """

    def points(settings: Settings) -> list[Point]:
        names = settings.chosen(variants, usual)
        trained = [name for name in names if variants[name].command == "train"]
        starts = {variants[name].start: variants.get(variants[name].start, Variant()) for name in trained}
        folders = {start: settings.output / "cold-start" / (start or "any") for start in starts}
        made = []
        for start, variant in starts.items() if settings.cold_start else ():
            bindings = (*variant.bound(), *variant.sft_bindings) if variant.sft_bindings else ()
            gin_files = (*settings.platforms, f"{settings.experiment}_sft.gin")
            made.append(Point(folder=folders[start], command=("sft",), gin_files=gin_files, bindings=bindings))

        def begun(folder: str, command: str, start: str, *bindings: str, files: Sequence[str] = ()) -> Point:
            needs = [folders[start]] if settings.cold_start else []
            place, policies = settings.output / "study" / folder, map(policy_of, needs)
            return settings.point(place, command, *bindings, *policies, files=files, needs=needs)

        for start, variant in starts.items():
            label = f"{variant.name}, before training" if variant.name else "before training"
            folder = "-".join(filter(None, ("before", start)))
            made.append(begun(folder, "evaluate", start, *variant.bindings, f"evaluate.label = {label!r}"))
        made += [untrained_point(name, variants[name], settings) for name in names if name not in trained]
        for seed in settings.seeds:
            for name in trained:
                variant = variants[name]
                bindings = (*variant.bound(), "Evaluation.before = False", seeded(seed))
                made.append(begun(f"{name}-{seed}", "train", variant.start, *bindings, files=variant.files))
        return made

    return points


def untrained_point(name: str, variant: Variant, settings: Settings) -> Point:
    """Returns the evaluation of a variant that is not trained."""
    return settings.point(settings.output / "study" / name, "evaluate", *variant.bound(), files=variant.files)

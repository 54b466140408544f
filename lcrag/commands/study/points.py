"""The parts of a study: variants of experiments, the runs that they need, and their report."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lcrag.errors import UserError

TRAINED, EVALUATED, CURATED = "report.md", "evaluation.json", "report.json"  # written last by a command


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One command of a study.

    Attributes:
      folder: Its output folder.
      command: The command and its words.
      gin_files: Its gin files, in order.
      bindings: Statements `name = value`, in order.
      done: A file of the folder that exists once the command has finished.
      needs: Folders of the points whose results it reads.
      record: The record of its results, from which the report is made; None: it is not reported.
    """

    folder: Path
    command: tuple[str, ...]
    gin_files: tuple[str, ...]
    bindings: tuple[str, ...] = ()
    done: str = TRAINED
    needs: tuple[Path, ...] = ()
    record: Path | None = None

    @property
    def finished(self) -> bool:
        """Whether a run of it has finished."""
        return (self.folder / self.done).exists()

    def words(self) -> list[str]:
        """The words after `lcrag`."""
        files = [f"--gin_file={name}" for name in self.gin_files]
        bound = [f"--gin.{'='.join(binding.split(' = ', 1))}" for binding in self.bindings]
        # The commands of a study share bindings, and each uses only some of them.
        return [*self.command, *files, *bound, *(("--allow_unused",) if bound else ()), f"--output_dir={self.folder}"]


def left(points: Sequence[Point]) -> list[Point]:
    """Returns the points to do: those without their record, and the unfinished preparations that these need."""
    needed: set[Path] = set()
    found = []
    for point in reversed(points):
        missing = point.folder in needed and not point.finished if point.record is None else not point.record.exists()
        if missing:
            found.append(point)
            needed |= set(() if point.finished else point.needs)
    return found[::-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of a table, as a difference from the experiment.

    Attributes:
      name: Its name in tables; empty: that of the experiment.
      files: Gin files after the experiment.
      bindings: Statements `name = value`.
      start: Name of the cold start that it begins with; empty: one with the experiment's own settings.
      sft_bindings: Statements for its own cold start, in addition to `bindings`.
      policy: Folder of a policy that is evaluated as it is; empty: the variant is trained.
    """

    name: str = ""
    files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    start: str = ""
    sft_bindings: tuple[str, ...] = ()
    policy: str = ""

    def bound(self) -> tuple[str, ...]:
        """Its statements, its name in tables included."""
        return (*((f"Method.name = {self.name!r}",) if self.name else ()), *self.bindings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a study.

    Attributes:
      output: Output folder.
      experiment: The gin file that is studied, without its ending.
      seeds: Training seeds.
      only: Names of variants or methods; empty: the study's own choice.
      cold_start: Whether cold starts are trained; without, variants begin with the experiment's own policy.
      sft_experiment: The gin file that the baseline SFT is trained on, without its ending; empty: `experiment`.
      gin_files: Further gin files of every point, after the study's own; a cold start has the platforms only.
      bindings: Further bindings of every point but the cold starts.
    """

    output: Path
    experiment: str
    seeds: tuple[int, ...]
    only: tuple[str, ...] = ()
    cold_start: bool = True
    sft_experiment: str = ""
    gin_files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()

    @property
    def platforms(self) -> tuple[str, ...]:
        """The gin files of platforms among `gin_files`."""
        return tuple(name for name in self.gin_files if name.startswith("platform/"))

    def files(self, *own: str) -> tuple[str, ...]:
        """Returns the gin files of a point: platforms, the experiment, which may override them, and the others."""
        others = (name for name in self.gin_files if name not in self.platforms)
        return (*self.platforms, f"{self.experiment}.gin", *own, *others)

    def chosen(self, known: Mapping[str, object] | Sequence[str], usual: Sequence[str] = ()) -> list[str]:
        """Returns the names to run: the requested ones, or the usual ones, or all.

        Raises:
          UserError: A name is not known.
        """
        if unknown := [name for name in self.only if name not in known]:
            raise UserError(f"--only={','.join(self.only)}: there is no {unknown[0]}, only {', '.join(known)}")
        return list(self.only or usual or known)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A study.

    Attributes:
      summary: Description of the comparison, for the list of studies.
      points: Settings -> its points, in sequential order.
      experiment: Default experiment.
      output: Default output folder.
      bindings: Statements of every point but the cold starts, before those of the command line.
      seeds: Default training seeds.
      reported: Folder of the runs that the report compares, within the output folder.
      report: Arguments of `lcrag report`.
      report_folder: Folder of the report, within the output folder.
    """

    summary: str
    points: Callable[[Settings], list[Point]]
    experiment: str
    output: str
    bindings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    reported: str = "study"
    report: tuple[str, ...] = ()
    report_folder: str = "report"


def seeded(seed: int) -> str:
    """Returns the statement that sets the seed of a run."""
    return f"SEED = {seed}"


def policy_of(folder: Path) -> str:
    """Returns the statement that makes the policy of a finished run the initial policy."""
    return f"policy.folder = {str(folder / 'policy')!r}"


# A reference for other methods: one search with the question as the query, by the policy that ships with the atlas.
RAG = Variant(files=("baselines/rag.gin",), policy="atlas/cold_start")


def variant_points(variants: Mapping[str, Variant], usual: Sequence[str] = ()) -> Callable[[Settings], list[Point]]:
    """Returns the points of a method's variants: the cold starts they need, then every variant with every seed.

    What variants begin with is evaluated once, instead of in each of their runs, and so is what is not trained.

    Args:
      variants: Name -> variant; one whose `start` is its own name has its own cold start.
      usual: Default variants; empty: all.
    """

    def points(settings: Settings) -> list[Point]:
        names = settings.chosen(variants, usual)
        trained = [name for name in names if not variants[name].policy]
        starts = dict.fromkeys(variants[name].start for name in trained)
        found = []
        if settings.cold_start:
            found += [_cold_start(start, variants.get(start, Variant()), settings) for start in starts]
        found += [_before(start, variants.get(start, Variant()), settings) for start in starts]
        found += [untrained_point(name, variants[name], settings) for name in names if name not in trained]
        for seed in settings.seeds:
            for name in trained:
                bindings = (*variants[name].bound(), "Evaluation.before = False", seeded(seed))
                point = Point(
                    folder=settings.output / "study" / f"{name}-{seed}",
                    command=("train",),
                    gin_files=settings.files(*variants[name].files),
                    bindings=bindings,
                )
                found.append(_begun(point, variants[name].start, settings))
        return found

    return points


def _cold_start_folder(start: str, settings: Settings) -> Path:
    return settings.output / "cold-start" / (start or "any")


def _cold_start(start: str, variant: Variant, settings: Settings) -> Point:
    """Returns the SFT that variants begin with; a variant's own cold start has its bindings."""
    bindings = (*variant.bound(), *variant.sft_bindings) if variant.sft_bindings else ()
    gin_files = (*settings.platforms, f"{settings.experiment}_sft.gin")
    folder = _cold_start_folder(start, settings)
    return Point(folder=folder, command=("sft",), gin_files=gin_files, bindings=bindings)


def _before(start: str, variant: Variant, settings: Settings) -> Point:
    """Returns the evaluation of the policy that variants begin with."""
    label = f"{variant.name}, before training" if variant.name else "before training"
    point = Point(
        folder=settings.output / "study" / "-".join(filter(None, ("before", start))),
        command=("evaluate",),
        gin_files=settings.files(),
        bindings=(*variant.bindings, f"evaluate.label = {label!r}"),
        done=EVALUATED,
    )
    return _begun(point, start, settings)


def untrained_point(name: str, variant: Variant, settings: Settings) -> Point:
    """Returns the evaluation of a variant that is not trained."""
    return Point(
        folder=settings.output / "study" / name,
        command=("evaluate",),
        gin_files=settings.files(*variant.files),
        bindings=(*variant.bound(), f"policy.folder = {variant.policy!r}", *settings.bindings),
        done=EVALUATED,
    )


def _begun(point: Point, start: str, settings: Settings) -> Point:
    """Returns a point with the policy of a cold start, if there are any, and the bindings of every point."""
    folders = (_cold_start_folder(start, settings),) if settings.cold_start else ()
    bindings = (*point.bindings, *map(policy_of, folders), *settings.bindings)
    return dataclasses.replace(point, bindings=bindings, needs=folders)

"""Finds runs in folders and reads their configurations and answers."""

import dataclasses
import json
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.app.runs import differences, read_configured
from lcrag.app.runs.answers import AFTER, EVALUATION, answers_path, inference_runs, read_answers, write_answers
from lcrag.app.runs.folder import CONFIG, RUN
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.errors import UserError
from lcrag.evaluation import Answered, Row, evaluate, read_rows, write_rows
from lcrag.evaluation.answerable import STRATA, stratified
from lcrag.evaluation.trials import Trial

METHOD, FOLDER = "Method.name", "policy.folder"

# What runs of one system may differ in: random numbers, the weights they lead to, and settings without effect on
# results.
INCIDENTAL = (
    *("train.seed", "evaluate.seed", FOLDER, "policy.adapter_seed", "evaluate.label"),
    *("sft.seed", "train/golden_answers.seed", "validation/golden_answers.seed", "sft.most_skipped_in_a_row"),
    *("train.checkpoint_every", "train.episodes_every", "train.extreme_groups"),
    *("train.sentinels", "train.most_skipped_in_a_row"),
    *("Sentinels.least", "Sentinels.most", "Sentinels.patience", "Sentinels.shown"),
    *("Evaluation.audit", "Evaluation.runs", "Evaluation.references", "Evaluation.reading", "Evaluation.temperatures"),
    *("remote_collections.url", "routed_collections.hosts", "atlas_collections.folder", "load_collections.folder"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The source of one label's answers in a folder."""

    folder: pathlib.Path
    label: str  # name of the policy in the folder
    name: str
    config: pathlib.Path  # the configuration file of its answers

    @property
    def values(self) -> Mapping[str, Any]:
        """Every binding; for an evaluated policy, its own bindings override those of the run that trained it."""
        own = read_configured(self.config)
        trained = trained_by(own.get(FOLDER, ""))
        return own if trained is None else {**read_configured(trained), **own}

    @property
    def trained(self) -> bool:
        """Whether it is part of a training run, not of an evaluation."""
        return self.config.name == CONFIG

    @property
    def policy(self) -> str:
        """The folder of the policy that answered."""
        if self.trained and self.label == AFTER:
            return str((self.folder / "policy").resolve())
        folder = str(read_configured(self.config).get(FOLDER, "unknown"))
        return str(pathlib.Path(folder).resolve()) if pathlib.Path(folder).is_dir() else folder

    @property
    def about(self) -> dict[str, Any]:
        """Seed, commit and command of its `run.json`.

        Raises:
          UserError: the file is missing or damaged.
        """
        own = answers_path(self.folder, self.label, "run").with_suffix(".json")
        path = own if own.is_file() else self.folder / RUN
        try:
            about = json.loads(path.read_text(encoding="utf-8"))
            return {name: about[name] for name in ("seed", "commit", "command")}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}, the provenance of {self.label!r}, cannot be read: make it again") from error


def run_folders(paths: Iterable[str]) -> list[pathlib.Path]:
    """Returns the folders with evaluations among the given ones and, if one has none, below it, by name.

    Raises:
      UserError: there is no such folder, or none with an evaluation.
    """
    found: list[pathlib.Path] = []
    for path in map(pathlib.Path, paths):
        if not path.is_dir():
            raise UserError(f"there is no folder {path}: give folders of runs, or a folder that contains some")
        own = [path] if (path / EVALUATION).is_file() else sorted(each.parent for each in path.rglob(EVALUATION))
        if not own:
            raise UserError(f"nothing in {path} was evaluated: run `lcrag train` or `lcrag evaluate` into it first")
        found += own
    return list(dict.fromkeys(found))


def sources(folder: pathlib.Path, also: Collection[str] = ()) -> Iterator[tuple[Source, str, str]]:
    """Yields (source, decoding, split) of every method that was evaluated in a folder.

    That is a trained policy, named by its `Method.name`; every result of `lcrag evaluate`, named by its label; and
    other labels of a training run in `also`. Results of a retrieval evaluation (`lcrag index`) are skipped.

    Raises:
      UserError: the configuration of an evaluation is lost.
    """
    rows = read_rows(folder / EVALUATION)
    for method, split in dict.fromkeys((row.method, row.split) for row in rows if "/" not in row.split):
        label, comma, decoding = method.rpartition(", ")
        if not comma:
            continue
        own = answers_path(folder, label, "config").with_suffix(".gin")
        config = own if own.is_file() else folder / CONFIG
        if not config.is_file():
            raise UserError(f"{folder} has lost the configuration of {label!r} ({config.name}): evaluate it again")
        if own.is_file() or label == AFTER or label in also:
            name = str(read_configured(config).get(METHOD, label)) if label == AFTER else label
            yield Source(folder=folder, label=label, name=name, config=config), decoding, split


def stratify(folder: pathlib.Path, audit: str) -> None:
    """Adds the strata of an audit to all answers in a folder, and their rows to its `evaluation.json`.

    Those of an earlier audit are replaced.

    Raises:
      UserError: the audit cannot be read or is one of other questions; nothing is changed.
    """
    rows = read_rows(folder / EVALUATION)
    labels = {row.method.rpartition(", ")[0] for row in rows}
    changed: dict[pathlib.Path, list[Answered]] = {}
    added: list[Row] = []
    for source, decoding, split in sources(folder, labels):
        method, seed, values = f"{source.label}, {decoding}", source.about["seed"], source.values
        for number, path in enumerate(inference_runs(folder, source.label, decoding), start=1):
            changed[path] = stratified(read_answers(path), audit)
            added += evaluate(
                changed[path],
                method=method,
                model=next(row.model for row in rows if row.method == method),
                split=split,
                seed=seed if number == 1 else f"{seed}, run {number}",
                seen_languages=values.get("Evaluation.seen_languages", LCRL_TRAINING),
                languages=values.get("Evaluation.languages", LCRL_LANGUAGES),
            )
    for path, answers in changed.items():
        write_answers(path, answers)
    others = [row for row in rows if row.split.partition("/")[2] not in STRATA]
    write_rows(folder / EVALUATION, [*others, *(row for row in added if row.split.partition("/")[2] in STRATA)])


def trials_of(source: Source, decoding: str, split: str, axis: str | None) -> Iterator[Trial]:
    """Yields a trial for every inference run and data set of a source.

    Raises:
      UserError: its answers are lost or damaged, or it does not set the axis.
    """
    values = source.values
    paths = inference_runs(source.folder, source.label, decoding)
    if not paths:
        lost = answers_path(source.folder, source.label, decoding)
        raise UserError(f"{source.folder} has lost the answers of {source.label!r} ({lost.name}): evaluate it again")
    for path in paths:
        by_dataset: dict[str, list[Answered]] = {}
        for answered in read_answers(path):
            by_dataset.setdefault(answered.dataset, []).append(answered)
        for dataset, answers in by_dataset.items():
            yield Trial.of(
                answers,
                values.get("Evaluation.languages", LCRL_LANGUAGES),
                method=source.name,
                model=base_model(str(values.get(FOLDER, "unknown"))),
                dataset=dataset,
                split=split,
                decoding=decoding,
                run=str(source.folder),
                seen_languages=tuple(values.get("Evaluation.seen_languages", LCRL_TRAINING)),
                point=None if axis is None else _point(source, axis),
            )


def _point(source: Source, axis: str) -> float | str:
    """Position of a source on an axis: a number, the length of a list, or a name."""
    values = source.values
    if axis not in values:
        raise UserError(f"{source.config} sets no {axis}: choose another --axis, or leave that run out")
    value = values[axis]
    if isinstance(value, tuple | list):
        return float(len(value))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def base_model(folder: str) -> str:
    """Returns the name of the model that a policy was trained from, through all runs that trained it."""
    trained = trained_by(folder)
    if trained is not None:
        return base_model(str(read_configured(trained).get(FOLDER, "unknown")))
    return "atlas" if folder.startswith("atlas/") else pathlib.Path(folder).name


def trained_by(folder: str) -> pathlib.Path | None:
    """Returns the configuration of the run that trained the policy in a folder; None for other policies."""
    config = pathlib.Path(folder).parent / CONFIG
    return config if pathlib.Path(folder).name == "policy" and config.is_file() else None


def check_one_configuration(trials: Sequence[Trial], origins: Sequence[Source]) -> None:
    """Checks that only trials of one configuration are averaged, and none twice.

    The trials of one system must agree in their configurations; a training run and an evaluation, in the bindings that
    both set. No policy may be counted twice with one seed.

    Args:
      trials: All trials.
      origins: The source of each.

    Raises:
      UserError: trials differ, or one is counted twice.
    """
    first: dict[tuple, Source] = {}
    counted: dict[tuple, Source] = {}
    for trial, source in zip(trials, origins, strict=True):
        what = (trial.system, trial.dataset, trial.split, trial.decoding)
        first.setdefault((*what, source.trained), source)
        for trained in (True, False):
            other = first.get((*what, trained))
            if other is not None and other.config != source.config:
                _check_agreement(trial.system[1], other, source)
        twice = counted.setdefault((*what, source.policy, source.about["seed"]), source)
        if twice.config != source.config:
            raise UserError(
                f"{twice.folder} and {source.folder} are the same policy, asked with the same seed and both called"
                f" {trial.system[1]!r}: leave one of them out"
            )


def _check_agreement(name: str, other: Source, source: Source) -> None:
    there, here = (each.config.read_text(encoding="utf-8") for each in (other, source))
    if difference := differences(there, here, INCIDENTAL, only_shared=other.trained != source.trained):
        raise UserError(
            f"{other.folder} and {source.folder} are both called {name!r}, but {difference}: give one another"
            " Method.name or evaluate.label, or name what a study varies with --axis"
        )

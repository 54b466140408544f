"""Finds runs in folders and reads their configurations and answers."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.errors import UserError
from lcrag.evaluation import Answered, Curve, read_rows, read_training_log, step_size
from lcrag.evaluation.trials import Trial
from lcrag.runs import differences, read_configured, read_values
from lcrag.runs.answers import AFTER, EVALUATION, answers_path, inference_runs, read_answers
from lcrag.runs.folder import CONFIG, RUN
from lcrag.runs.metrics import METRICS as LOG

QUESTIONS = "questions.json"  # of a folder of records
METHOD, FOLDER = "Method.name", "policy.folder"

# Bindings in which runs of one system may differ: seeds, the folders of the resulting weights, and settings without
# effect on results.
INCIDENTAL = (
    *("train.seed", "evaluate.seed", FOLDER, "policy.adapter_seed", "evaluate.label"),
    *("sft.seed", "train/golden_answers.seed", "validation/golden_answers.seed", "sft.max_consecutive_skips"),
    *("train.checkpoint_every", "train.episodes_every", "train.extreme_groups"),
    *("train.sentinels", "train.max_consecutive_skips"),
    *("Sentinels.least", "Sentinels.most", "Sentinels.patience", "Sentinels.shown"),
    *("Evaluation.audit", "Evaluation.runs", "Evaluation.references", "Evaluation.reading", "Evaluation.temperatures"),
    "Evaluation.before",
    *("remote_collections.url", "atlas_collections.folder", "load_collections.folder"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The source of the answers with one label: the folder of a run or of evaluations, or a record."""

    folder: pathlib.Path
    label: str  # name of the policy in the folder
    name: str
    place: pathlib.Path  # the file of its configuration
    config: str  # the operative configuration of its answers
    trained_config: str  # that of the run that trained an evaluated policy; empty without one
    trained: bool  # whether it is part of a training run, not of an evaluation
    policy: str  # the folder of the policy that answered
    model: str  # name of the model that this was trained from
    about: Mapping[str, Any]  # seed, commit and command
    log: Mapping[str, Curve]  # of the training run whose result it is; empty for all others
    step: str  # how many prompts and episodes its training step has; empty if unknown
    trials: Callable[[str, str], Iterable[Trial]]  # (decoding, split) -> one for every inference run and data set

    @property
    def values(self) -> Mapping[str, Any]:
        """All bindings; for an evaluated policy, those of the evaluation override those of its training run."""
        return {**read_values(self.trained_config), **read_values(self.config, str(self.place))}


def _source(folder: pathlib.Path, label: str, name: str, config: pathlib.Path) -> Source:
    """Returns the source of a label in a folder."""
    own = read_configured(config)
    trained_by_run, trained, log = trained_by(str(own.get(FOLDER, ""))), config.name == CONFIG, folder / LOG
    policy = str(own.get(FOLDER, "unknown"))
    curves = read_training_log(log) if label == AFTER and log.is_file() else {}

    def trials(decoding: str, split: str) -> Iterator[Trial]:
        return _answered_trials(source, decoding, split)

    source = Source(
        folder=folder,
        label=label,
        name=name,
        place=config,
        config=config.read_text(encoding="utf-8"),
        trained_config="" if trained_by_run is None else trained_by_run.read_text(encoding="utf-8"),
        trained=trained,
        policy=f"{folder}/policy" if trained and label == AFTER else policy,
        model=base_model(policy),
        about=_about(folder, label),
        log=curves,
        step=step_size(curves),
        trials=trials,
    )
    return source


def _about(folder: pathlib.Path, label: str) -> dict[str, Any]:
    """Returns seed, commit and command of `run.json`; raises a UserError if it is missing or damaged."""
    own = answers_path(folder, label, "run").with_suffix(".json")
    path = own if own.is_file() else folder / RUN
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return {name: about[name] for name in ("seed", "commit", "command")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}, the provenance of {label!r}, cannot be read: make it again") from error


def _answered_trials(source: Source, decoding: str, split: str) -> Iterator[Trial]:
    """Returns the trials of a label in a folder; raises a UserError if answers are missing or damaged."""
    paths = inference_runs(source.folder, source.label, decoding)
    if not paths:
        lost = answers_path(source.folder, source.label, decoding).name
        raise UserError(f"{source.folder} has lost the answers of {source.label!r} ({lost}): evaluate it again")
    values = source.values
    for path in paths:
        by_dataset: dict[str, list[Answered]] = {}
        for answered in read_answers(path):
            by_dataset.setdefault(answered.dataset, []).append(answered)
        for dataset, answers in by_dataset.items():
            yield Trial.of(
                answers,
                values.get("Evaluation.languages", LCRL_LANGUAGES),
                method=source.name,
                model=source.model,
                dataset=dataset,
                split=split,
                decoding=decoding,
                run=str(source.folder),
                seed=source.about["seed"],
                seen_languages=tuple(values.get("Evaluation.seen_languages", LCRL_TRAINING)),
            )


def run_folders(paths: Iterable[str]) -> list[pathlib.Path]:
    """Returns the folders with evaluations or records; a given folder without any is replaced by its subfolders.

    Raises:
      UserError: a folder does not exist, or contains no evaluation.
    """
    found: list[pathlib.Path] = []
    for path in map(pathlib.Path, paths):
        if not path.is_dir():
            raise UserError(f"there is no folder {path}: give folders of runs, or a folder that contains some")
        own = [path] if any((path / name).is_file() for name in (EVALUATION, QUESTIONS)) else _below(path)
        if not own:
            raise UserError(f"nothing in {path} was evaluated: run `lcrag train` or `lcrag evaluate` into it first")
        found += own
    return list(dict.fromkeys(found))


def _below(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted({each.parent for name in (EVALUATION, QUESTIONS) for each in path.rglob(name)})


def sources(folder: pathlib.Path, also: Collection[str] = ()) -> Iterator[tuple[Source, str, str]]:
    """Yields (source, decoding, split) of every method that was evaluated in a folder.

    Methods are a trained policy, named by its `Method.name`, every result of `lcrag evaluate`, named by its label, and
    the other labels of a training run that are in `also`. Results of retrieval evaluations (`lcrag index`) are ignored.

    Raises:
      UserError: the configuration of an evaluation is missing.
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
            yield _source(folder, label, name, config), decoding, split


def trials_of(source: Source, decoding: str, split: str, axis: str | None) -> list[Trial]:
    """Returns the trials of a source with its position on the axis of a study.

    Raises:
      UserError: answers are missing or damaged, or the configuration does not set the axis.
    """
    point = None if axis is None else _point(source, axis)
    return [dataclasses.replace(trial, point=point) for trial in source.trials(decoding, split)]


def _point(source: Source, axis: str) -> float | str:
    """Returns the position of a source on an axis: a number, the length of a list, or a name."""
    values = source.values
    if axis not in values:
        raise UserError(f"{source.place} sets no {axis}: choose another --axis, or leave that run out")
    value = values[axis]
    if isinstance(value, tuple | list):
        return float(len(value))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def base_model(folder: str) -> str:
    """Returns the name of the model from which a policy was trained, following all of its training runs."""
    trained = trained_by(folder)
    if trained is not None:
        return base_model(str(read_configured(trained).get(FOLDER, "unknown")))
    return "atlas" if folder.startswith("atlas/") else pathlib.Path(folder).name


def trained_by(folder: str) -> pathlib.Path | None:
    """Returns the configuration of the run that trained the policy in a folder; None for other policies."""
    config = pathlib.Path(folder).parent / CONFIG
    return config if pathlib.Path(folder).name == "policy" and config.is_file() else None


def _resolved(folder: str) -> str:
    return str(pathlib.Path(folder).resolve()) if pathlib.Path(folder).is_dir() else folder


def check_one_configuration(trials: Sequence[Trial], origins: Sequence[Source]) -> None:
    """Checks that averaged trials have the same configuration and that none is counted twice.

    The trials of a system must have the same configuration. A training run and an evaluation are compared in the
    bindings that both set. No policy may be counted twice with the same seed.

    Args:
      trials: All trials.
      origins: The source of each trial.

    Raises:
      UserError: configurations differ, or a trial is counted twice.
    """
    first: dict[tuple, Source] = {}
    counted: dict[tuple, Source] = {}
    for trial, source in zip(trials, origins, strict=True):
        what = (trial.system, trial.dataset, trial.split, trial.decoding)
        first.setdefault((*what, source.trained), source)
        for trained in (True, False):
            other = first.get((*what, trained))
            if other is not None and other.place != source.place:
                _check_agreement(trial.system[1], other, source)
        twice = counted.setdefault((*what, _resolved(source.policy), source.about["seed"]), source)
        if twice.place != source.place:
            raise UserError(
                f"{twice.folder} and {source.folder} are the same policy, asked with the same seed and both called"
                f" {trial.system[1]!r}: leave one of them out"
            )


def _check_agreement(name: str, other: Source, source: Source) -> None:
    there, here = (_without_seed(each.config, each.about["seed"]) for each in (other, source))
    if difference := differences(there, here, INCIDENTAL, only_shared=other.trained != source.trained):
        raise UserError(
            f"{other.folder} and {source.folder} are both called {name!r}, but {difference}: give one another"
            " Method.name or evaluate.label, or name what a study varies with --axis"
        )


def _without_seed(config: str, seed: int | str) -> str:
    """Removes the run's seed from the ends of folder names: `lcrag study` names what is made for one seed so."""
    return re.sub(rf"-{re.escape(str(seed))}(?=[/'])", "", config)

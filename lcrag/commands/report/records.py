"""Records of runs: small JSON files from which the tables and figures of several runs can be reproduced.

A folder of records contains `questions.json`, the questions of every split, and one file per run or evaluation with its
configuration, provenance, downsampled training log, and the scores of every question.
"""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pydantic
from jaxtyping import Float

from lcrag.commands.report.run_folders import QUESTIONS, Source, run_folders, sources
from lcrag.errors import UserError
from lcrag.evaluation import Curve
from lcrag.evaluation.metrics import EFFICIENCY, EFFICIENCY_INPUTS
from lcrag.evaluation.training_log import REWARD
from lcrag.evaluation.trials import Questions, Trial
from lcrag.files import file_name
from lcrag.runs import statements, write_text
from lcrag.runs.answers import AFTER

FORMAT = 1
POINTS = 60  # maximum number of points of a downsampled curve
SHOWN = ("episode/policy_tokens", "episode/searches")  # curves that reports draw, with the rewards and tool rates
TOOL_RATES = ("tools/", "/rate")

Numbers = list[int | float | None]
File = TypeVar("File", bound="_File")


class _Model(pydantic.BaseModel, strict=True, extra="forbid"):
    pass


class _File(_Model):
    format: int


class _Kind(_Model):
    subsets: list[str]
    domain: str
    tier: str


class _Split(_Model):
    """The questions of a split of a data set; a row has indices into `clusters`, `languages` and `kinds`."""

    dataset: str
    split: str
    languages: list[str]
    clusters: list[str]
    kinds: list[_Kind]
    rows: list[list[int]]


class _Questions(_File):
    splits: list[_Split]


class _Scores(_Model):
    """The scores of one inference run on one data set, in the order of the questions."""

    label: str
    decoding: str
    dataset: str
    split: str
    questions: str  # their fingerprint
    scores: dict[str, Numbers]


class _Record(_File):
    method: str
    model: str
    seed: int | str
    commit: str | None
    command: list[str]
    folder: str
    policies: dict[str, str]  # label -> the folder of the policy
    trained: bool
    seen_languages: list[str]
    step: str
    log: dict[str, list[Numbers]]
    config: dict[str, str]
    trained_config: dict[str, str]
    answers: list[_Scores]


def evaluated(folders: Sequence[str], also: Sequence[str] = ()) -> list[tuple[Source, str, str]]:
    """Returns (source, decoding, split) of every method in folders of runs or records, or in their subfolders.

    Raises:
      UserError: a folder does not exist, no folder has results, or a file is damaged.
    """
    found: list[tuple[Source, str, str]] = []
    for folder in run_folders(folders):
        found += read_records(folder, also) if (folder / QUESTIONS).is_file() else sources(folder, also)
    if not found:
        raise UserError(f"no policy was evaluated in {', '.join(folders)}: give folders of runs or of evaluations")
    return found


def write_records(
    found: Sequence[tuple[Source, str, str]], folder: pathlib.Path, metrics: Sequence[str]
) -> list[pathlib.Path]:
    """Writes records of runs and evaluations to a folder and returns their paths.

    Args:
      found: (source, decoding, split), from `run_folders.sources`.
      folder: The folder, created if missing; other records in it are kept.
      metrics: The metrics to keep.

    Raises:
      UserError: it is a file or holds records of other questions, or two runs would have the same file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give --records the folder that the records are written into")
    kept = [*metrics, *(EFFICIENCY_INPUTS if EFFICIENCY in metrics else ())]
    of_file: dict[pathlib.Path, list[tuple[Source, str, str]]] = {}
    for each in found:
        of_file.setdefault(each[0].place, []).append(each)
    folders = [own[0][0].folder for own in of_file.values()]
    written: dict[pathlib.Path, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for own in of_file.values():
        source = own[0][0]
        several = folders.count(source.folder) > 1
        path = folder / file_name(f"{source.folder.name}{f'-{source.label}' if several else ''}.json")
        if written.setdefault(path, str(source.place)) != str(source.place):
            raise UserError(f"{written[path]} and {source.place} would both be recorded as {path}: rename one's folder")
        trials = [(each, trial) for each, decoding, split in own for trial in each.trials(decoding, split)]
        with _locked(folder):  # separate processes may record the runs of a study
            _add_questions(folder / QUESTIONS, [trial for _, trial in trials])
        answers = [_scores(each.label, trial, kept) for each, trial in trials]
        _write(path, _record([each for each, _, _ in own], trials[0][1], answers))
    return list(written)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _record(own: Sequence[Source], trial: Trial, answers: list[_Scores]) -> _Record:
    source = next((each for each in own if each.label == AFTER), own[0])
    return _Record(
        format=FORMAT,
        method=source.name,
        model=source.model,
        folder=str(source.folder),
        policies={each.label: each.policy for each in own},
        trained=source.trained,
        seen_languages=list(trial.seen_languages),
        step=source.step,
        log=thinned(source.log),
        config=statements(source.config),
        trained_config=statements(source.trained_config),
        answers=answers,
        **source.about,
    )


def _scores(label: str, trial: Trial, metrics: Sequence[str]) -> _Scores:
    known = {name: trial.scores[name] for name in metrics if name in trial.scores}
    return _Scores(
        label=label,
        decoding=trial.decoding,
        dataset=trial.dataset,
        split=trial.split,
        questions=fingerprint(trial.questions),
        scores={name: _numbers(own) for name, own in known.items() if not np.isnan(own).all()},
    )


def _numbers(values: Float[np.ndarray, " values"]) -> Numbers:
    """Rounds to three digits; whole numbers become int, and NaN becomes None."""
    rounded = (None if math.isnan(value) else round(value, 3) for value in values.tolist())
    return [int(value) if value is not None and value == int(value) else value for value in rounded]


def fingerprint(asked: Questions) -> str:
    """Returns a hash of questions and their languages."""
    return hashlib.sha256(json.dumps(asked.keys).encode()).hexdigest()[:12]


def thinned(log: Mapping[str, Curve]) -> dict[str, list[Numbers]]:
    """Downsamples the curves that reports show to [steps, values] of at most `POINTS` means of consecutive steps."""
    curves: dict[str, list[Numbers]] = {}
    for name, (steps, values) in log.items():
        tool_rate = name.startswith(TOOL_RATES[0]) and name.endswith(TOOL_RATES[1])
        if len(steps) and (name in SHOWN or name.startswith(REWARD) or tool_rate):
            blocks = np.array_split(np.arange(len(steps)), min(len(steps), POINTS))
            middles: Numbers = [int(steps[block[len(block) // 2]]) for block in blocks]
            curves[name] = [middles, [float(f"{values[block].mean():.4g}") for block in blocks]]
    return curves


def _add_questions(path: pathlib.Path, trials: Iterable[Trial]) -> None:
    """Adds the questions of new splits to a file; raises a UserError if a split in the file has other questions."""
    splits = _splits(path) if path.exists() else {}
    before = len(splits)
    for trial in trials:
        key = (trial.dataset, trial.split)
        known = splits.setdefault(key, _split_of(trial))
        if fingerprint(_questions_of(known)) != fingerprint(trial.questions):
            raise UserError(
                f"{path.parent} holds records of other questions of {trial.dataset}, {trial.split}, than {trial.run}"
                " answered: write these records into another folder"
            )
    if len(splits) > before:
        _write(path, _Questions(format=FORMAT, splits=list(splits.values())))


def _split_of(trial: Trial) -> _Split:
    asked = trial.questions
    kinds = list(zip(asked.subsets, asked.domains, asked.tiers, strict=True))
    columns: list[list[Any]] = [list(dict.fromkeys(own)) for own in (asked.clusters, asked.order, kinds)]
    places = [{value: place for place, value in enumerate(own)} for own in columns]
    rows = zip(asked.clusters, asked.languages, kinds, strict=True)
    return _Split(
        dataset=trial.dataset,
        split=trial.split,
        clusters=columns[0],
        languages=columns[1],
        kinds=[_Kind(subsets=list(subsets), domain=domain, tier=tier) for subsets, domain, tier in columns[2]],
        rows=[[own[value] for own, value in zip(places, row, strict=True)] for row in rows],
    )


def _questions_of(split: _Split) -> Questions:
    kinds = [split.kinds[kind] for _, _, kind in split.rows]
    return Questions(
        clusters=tuple(split.clusters[cluster] for cluster, _, _ in split.rows),
        languages=tuple(split.languages[language] for _, language, _ in split.rows),
        subsets=tuple(tuple(kind.subsets) for kind in kinds),
        domains=tuple(kind.domain for kind in kinds),
        tiers=tuple(kind.tier for kind in kinds),
        order=tuple(split.languages),
    )


def _write(path: pathlib.Path, content: _File) -> None:
    """Writes a JSON file with one line per field, and one per item of a list of objects."""
    lines = ",\n".join(f"{json.dumps(name)}: {_lines(value)}" for name, value in content.model_dump().items())
    write_text(path, f"{{\n{lines}\n}}\n")


def _lines(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(_compact, value)) + "\n]"
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_records(folder: pathlib.Path, also: Sequence[str] = ()) -> Iterator[tuple[Source, str, str]]:
    """Yields (source, decoding, split) of every method in a folder of records, as `run_folders.sources` does.

    Raises:
      UserError: a file is damaged, has another format version, or belongs to other questions.
    """
    splits = {key: _questions_of(split) for key, split in _splits(folder / QUESTIONS).items()}
    prints = {key: fingerprint(asked) for key, asked in splits.items()}
    for path in record_files(folder):
        record = _read(path, _Record)
        for own in record.answers:
            _check_scores(path, own, splits, prints)
        for label, policy in record.policies.items():
            if not record.trained or label == AFTER or label in also:
                source = _recorded(path, record, label, policy, splits)
                places = dict.fromkeys((own.decoding, own.split) for own in record.answers if own.label == label)
                yield from ((source, *place) for place in places)


def record_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the records in a folder, by name; none if there is no folder."""
    return [path for path in sorted(folder.glob("*.json")) if path.name != QUESTIONS]


def recorded_command(path: pathlib.Path) -> tuple[list[str], str]:
    """Returns the words of the command whose results a record has, and the folder of the run."""
    record = _read(path, _Record)
    return record.command, record.folder


def recorded_methods(folder: pathlib.Path) -> set[str]:
    """Returns the names of the methods that have a record in a folder."""
    return {_read(path, _Record).method for path in record_files(folder)}


def _recorded(
    path: pathlib.Path, record: _Record, label: str, policy: str, splits: Mapping[tuple[str, str], Questions]
) -> Source:
    name = record.method if label == AFTER or not record.trained else label

    def trials(decoding: str, split: str) -> Iterator[Trial]:
        for own in record.answers:
            if (own.label, own.decoding, own.split) == (label, decoding, split):
                yield Trial(
                    method=name,
                    model=record.model,
                    dataset=own.dataset,
                    split=split,
                    decoding=decoding,
                    run=record.folder,
                    seed=record.seed,
                    seen_languages=tuple(record.seen_languages),
                    questions=splits[own.dataset, split],
                    scores={metric: np.array(values, float) for metric, values in own.scores.items()},
                )

    return Source(
        folder=pathlib.Path(record.folder),
        label=label,
        name=name,
        place=path,
        config=_gin(record.config),
        trained_config=_gin(record.trained_config),
        trained=record.trained,
        policy=policy,
        model=record.model,
        about={"seed": record.seed, "commit": record.commit, "command": record.command},
        log={name: (np.array(steps, np.int64), np.array(values, float)) for name, (steps, values) in record.log.items()}
        if label == AFTER
        else {},
        step=record.step if label == AFTER else "",
        trials=trials,
    )


def _gin(config: Mapping[str, str]) -> str:
    return "".join(f"{name} = {value}\n" for name, value in config.items())


def _check_scores(
    path: pathlib.Path,
    own: _Scores,
    splits: Mapping[tuple[str, str], Questions],
    prints: Mapping[tuple[str, str], str],
) -> None:
    key = (own.dataset, own.split)
    if prints.get(key) != own.questions:
        raise UserError(
            f"{path} has scores of other questions of {own.dataset}, {own.split}, than {path.parent / QUESTIONS} lists:"
            " keep it in a folder of its own, with its questions"
        )
    asked = len(splits[key].clusters)
    for metric, values in own.scores.items():
        if len(values) != asked:
            raise UserError(f"{path} is damaged: it has {len(values):,} scores of {metric} for {asked:,} questions")


def _splits(path: pathlib.Path) -> dict[tuple[str, str], _Split]:
    found = {(split.dataset, split.split): split for split in _read(path, _Questions).splits}
    for split in found.values():
        sizes = [len(own) for own in (split.clusters, split.languages, split.kinds)]
        if any(len(row) != 3 or not all(0 <= i < n for i, n in zip(row, sizes, strict=True)) for row in split.rows):
            raise UserError(f"{path} is damaged: a row of {split.dataset}, {split.split}, is not three known numbers")
    return found


def _read(path: pathlib.Path, kind: type[File]) -> File:
    try:
        content = json.loads(path.read_bytes())
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise UserError(
                f"{path} has the format {content['format']!r}, and this version of lcrag reads {FORMAT}: write it again"
                " with --records, or read it with the version that wrote it"
            )
        return kind.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = "/".join(map(str, first["loc"]))
        raise UserError(f"{path} is damaged ({where}: {first['msg']}): write it again with --records") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as a record ({error}): write it again with --records") from error

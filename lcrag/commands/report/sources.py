"""Where answers come from: the folders of runs and evaluations, and records, the small JSON files made from them.

A folder of records has `questions.json`, the questions of every split, and a file for each run or evaluation with its
configuration, provenance, thinned training log and the scores of every question. Tables and figures of several runs are
made from these alone.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.errors import UserError
from lcrag.evaluation import Answered, Curve, read_rows, read_training_log, step_size
from lcrag.evaluation.metrics import EFFICIENCY, EFFICIENCY_INPUTS
from lcrag.evaluation.scoreboard import Questions, Trial
from lcrag.files import file_name
from lcrag.runs import read_configured, read_values, statements, write_text
from lcrag.runs.answers import AFTER, EVALUATION, answers_path, inference_runs, read_answers
from lcrag.runs.folder import CONFIG, RUN
from lcrag.runs.metrics import METRICS as LOG

QUESTIONS = "questions.json"  # of a folder of records
MAX_POINTS = 60  # of a recorded curve
# What gin files called otherwise when docs/results was recorded: old name -> name.
RENAMED = {
    "Layout.least_episodes": "Layout.min_episodes",
    "Layout.least_micro_batches": "Layout.min_micro_batches",
    "Method.least_std": "Method.min_std",
    "Sampler.wanted": "Sampler.min_finished_share",
    "sft.most_skipped_in_a_row": "sft.max_consecutive_skips",
    "train.couplings": "train.questions_per_step",
    "train.most_rollouts": "train.max_rollouts",
    "train.most_skipped_in_a_row": "train.max_consecutive_skips",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The answers with one label, of a training run, of an evaluation, or of a record of either."""

    folder: pathlib.Path  # of the run
    label: str  # name of the policy in the folder
    name: str  # of the method in tables
    place: pathlib.Path  # the file of its configuration, or the record
    config: str  # the operative configuration of its answers
    trained_config: str  # that of the run that trained an evaluated policy; empty without one
    trained: bool  # whether it is part of a training run, not of an evaluation
    policy: str  # the folder of the policy that answered
    model: str  # name of the model that this was trained from
    about: Mapping[str, Any]  # seed, commit and command
    log: Mapping[str, Curve]  # of the training run whose result it is; empty for all others
    step: str  # how many prompts and episodes its training step has; empty if unknown
    trials: Sequence[Trial]  # one for every inference run and data set

    @property
    def values(self) -> Mapping[str, Any]:
        """All bindings; for an evaluated policy, those of the evaluation override those of its training run."""
        return {**read_values(self.trained_config), **read_values(self.config, str(self.place))}


def read_sources(paths: Sequence[str], also: Collection[str] = ()) -> list[Source]:
    """Reads every method that was evaluated in folders of runs or records, or in the subfolders of other folders.

    Methods are a trained policy, named by its `Method.name`, every result of `lcrag evaluate`, named by its label, and
    the other labels of a training run that are in `also`. Results of retrieval evaluations (`lcrag index`) are ignored.

    Raises:
      UserError: a folder does not exist or has no results, or a file is missing or damaged.
    """
    folders: list[pathlib.Path] = []
    for path in map(pathlib.Path, paths):
        if not path.is_dir():
            raise UserError(f"there is no folder {path}: give folders of runs, or a folder that contains some")
        markers = (EVALUATION, QUESTIONS)
        own = [path] if any((path / name).is_file() for name in markers) else []
        own = own or sorted({each.parent for name in markers for each in path.rglob(name)})
        if not own:
            raise UserError(f"nothing in {path} was evaluated: run `lcrag train` or `lcrag evaluate` into it first")
        folders += own
    found: list[Source] = []
    for folder in dict.fromkeys(folders):
        found += _of_records(folder, also) if (folder / QUESTIONS).is_file() else _of_runs(folder, also)
    if not found:
        raise UserError(f"no policy was evaluated in {', '.join(paths)}: give folders of runs or of evaluations")
    return found


def _of_runs(folder: pathlib.Path, also: Collection[str]) -> Iterator[Source]:
    """Yields the sources of the folder of a training run or of evaluations."""
    places: dict[str, list[tuple[str, str]]] = {}  # label -> its decodings and splits
    for method, split in dict.fromkeys((row.method, row.split) for row in read_rows(folder / EVALUATION)):
        label, comma, decoding = method.rpartition(", ")
        if comma and "/" not in split:
            places.setdefault(label, []).append((decoding, split))
    for label, own in places.items():
        of_label = answers_path(folder, label, "config").with_suffix(".gin")
        config = of_label if of_label.is_file() else folder / CONFIG
        if not config.is_file():
            raise UserError(f"{folder} has lost the configuration of {label!r} ({config.name}): evaluate it again")
        trained = config != of_label
        if trained and label != AFTER and label not in also:
            continue
        configured = read_configured(config)
        policy = str(configured.get("policy.folder", "unknown"))
        trained_by = trained_by_run(policy)
        log = folder / LOG
        curves = read_training_log(log) if label == AFTER and log.is_file() else {}
        source = Source(
            folder=folder,
            label=label,
            name=str(configured.get("Method.name", label)) if label == AFTER else label,
            place=config,
            config=config.read_text(encoding="utf-8"),
            trained_config="" if trained_by is None else trained_by.read_text(encoding="utf-8"),
            trained=trained,
            policy=f"{folder}/policy" if trained and label == AFTER else policy,
            model=base_model(policy),
            about=_provenance(folder, label),
            log=curves,
            step=step_size(curves),
            trials=(),
        )
        yield dataclasses.replace(source, trials=[trial for place in own for trial in _answered_trials(source, *place)])


def _provenance(folder: pathlib.Path, label: str) -> dict[str, Any]:
    of_label = answers_path(folder, label, "run").with_suffix(".json")
    path = of_label if of_label.is_file() else folder / RUN
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        return {name: about[name] for name in ("seed", "commit", "command")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}, the provenance of {label!r}, cannot be read: make it again") from error


def _answered_trials(source: Source, decoding: str, split: str) -> Iterator[Trial]:
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


def base_model(folder: str) -> str:
    """Returns the name of the model from which a policy was trained, following all of its training runs."""
    trained_by = trained_by_run(folder)
    if trained_by is not None:
        return base_model(str(read_configured(trained_by).get("policy.folder", "unknown")))
    return "atlas" if folder.startswith("atlas/") else pathlib.Path(folder).name


def trained_by_run(folder: str) -> pathlib.Path | None:
    """Returns the configuration of the run that trained the policy in a folder; None for other policies."""
    config = pathlib.Path(folder).parent / CONFIG
    return config if pathlib.Path(folder).name == "policy" and config.is_file() else None


def record_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the records in a folder, by name; none if there is no folder."""
    return [path for path in sorted(folder.glob("*.json")) if path.name != QUESTIONS]


def read_record(path: pathlib.Path) -> dict[str, Any]:
    """Reads the JSON object of a record, its configurations with the present names of parameters.

    Raises:
      UserError: it cannot be read, or lacks a field.
    """
    try:
        record = json.loads(path.read_bytes())
        for config in ("config", "trained_config"):
            present = (as_now(f"{name} = {value}") for name, value in record[config].items())
            record[config] = dict(statement.split(" = ", 1) for statement in present)
        return {**record, "command": list(record["command"]), "folder": str(record["folder"])}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, error) from error


def as_now(statement: str) -> str:
    """Returns a statement of an old configuration, or an option of an old command, as it is written now."""
    for old, new in RENAMED.items():
        statement = statement.replace(old, new)
    # Programs and restrictions of collections were calls: @search_r1().
    return re.sub(r"(\bMethod\.(?:program|collections) ?= ?@\w+)\(\)$", r"\1", statement)


def _damaged(path: pathlib.Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read as a record ({type(error).__name__}: {error}): write it with --records")


def _of_records(folder: pathlib.Path, also: Collection[str]) -> Iterator[Source]:
    """Yields the sources of a folder of records."""
    asked = _read_questions(folder / QUESTIONS)
    for path in record_files(folder):
        record = read_record(path)
        try:
            for label, policy in record["policies"].items():
                after = label == AFTER
                if record["trained"] and not after and label not in also:
                    continue
                name = record["method"] if after or not record["trained"] else label
                yield Source(
                    folder=pathlib.Path(record["folder"]),
                    label=label,
                    name=name,
                    place=path,
                    config="".join(f"{name} = {value}\n" for name, value in record["config"].items()),
                    trained_config="".join(f"{name} = {value}\n" for name, value in record["trained_config"].items()),
                    trained=record["trained"],
                    policy=policy,
                    model=record["model"],
                    about={each: record[each] for each in ("seed", "commit", "command")},
                    log={
                        curve: (np.array(steps, np.int64), np.array(values, float))
                        for curve, (steps, values) in (record["log"].items() if after else ())
                    },
                    step=record["step"] if after else "",
                    trials=[
                        Trial(
                            method=name,
                            model=record["model"],
                            dataset=own["dataset"],
                            split=own["split"],
                            decoding=own["decoding"],
                            run=record["folder"],
                            seed=record["seed"],
                            seen_languages=tuple(record["seen_languages"]),
                            questions=asked[own["dataset"], own["split"]],
                            scores=_recorded_scores(path, own, asked),
                        )
                        for own in record["answers"]
                        if own["label"] == label
                    ],
                )
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise _damaged(path, error) from error


def _recorded_scores(
    path: pathlib.Path, own: Mapping[str, Any], asked: Mapping[tuple[str, str], Questions]
) -> dict[str, np.ndarray]:
    questions = asked.get((own["dataset"], own["split"]))
    if questions is None or fingerprint(questions) != own["questions"]:
        raise UserError(
            f"{path} has scores of other questions of {own['dataset']}, {own['split']}, than {path.parent / QUESTIONS}"
            " lists: keep it in a folder of its own, with its questions"
        )
    scores = {metric: np.array(values, float) for metric, values in own["scores"].items()}
    if lost := [metric for metric, values in scores.items() if len(values) != len(questions.clusters)]:
        raise ValueError(f"{len(scores[lost[0]])} scores of {lost[0]} for {len(questions.clusters)} questions")
    return scores


def fingerprint(questions: Questions) -> str:
    """Returns a hash of questions and their languages."""
    return hashlib.sha256(json.dumps(questions.keys).encode()).hexdigest()[:12]


def write_records(sources: Sequence[Source], folder: pathlib.Path, metrics: Sequence[str]) -> list[pathlib.Path]:
    """Writes a record of every run and evaluation into a folder, whose other records are kept; returns their paths.

    Args:
      sources: From `read_sources`.
      folder: Created if missing.
      metrics: The metrics to keep, with three digits.

    Raises:
      UserError: the folder is a file or holds records of other questions, or two runs would have the same file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give --records the folder that the records are written into")
    folder.mkdir(parents=True, exist_ok=True)
    kept = [*metrics, *(EFFICIENCY_INPUTS if EFFICIENCY in metrics else ())]
    of_file: dict[pathlib.Path, list[Source]] = {}
    for source in sources:
        of_file.setdefault(source.place, []).append(source)
    folders = [own[0].folder for own in of_file.values()]
    written: dict[pathlib.Path, pathlib.Path] = {}
    for place, own in of_file.items():
        source = next((each for each in own if each.label == AFTER), own[0])
        several = folders.count(source.folder) > 1
        path = folder / file_name(f"{source.folder.name}{f'-{own[0].label}' if several else ''}.json")
        if written.setdefault(path, place) != place:
            raise UserError(f"{written[path]} and {place} would both be recorded as {path}: rename one's folder")
        _add_questions(folder, [trial for each in own for trial in each.trials])
        record = {
            "method": source.name,
            "model": source.model,
            **source.about,
            "folder": str(source.folder),
            "policies": {each.label: each.policy for each in own},
            "trained": source.trained,
            "seen_languages": list(own[0].trials[0].seen_languages),
            "step": source.step,
            "log": thinned(source.log),
            "config": statements(source.config),
            "trained_config": statements(source.trained_config),
            "answers": [_scores_of(each.label, trial, kept) for each in own for trial in each.trials],
        }
        _write(path, record)
    return list(written)


def _scores_of(label: str, trial: Trial, metrics: Sequence[str]) -> dict[str, Any]:
    known = {name: trial.scores[name] for name in metrics if name in trial.scores}
    return {
        "label": label,
        "decoding": trial.decoding,
        "dataset": trial.dataset,
        "split": trial.split,
        "questions": fingerprint(trial.questions),
        "scores": {name: _numbers(values) for name, values in known.items() if not np.isnan(values).all()},
    }


def _numbers(values: np.ndarray) -> list[int | float | None]:
    """Rounds to three digits; whole numbers become int, and NaN becomes None."""
    rounded = (None if math.isnan(value) else round(value, 3) for value in values.tolist())
    return [int(value) if value is not None and value == int(value) else value for value in rounded]


def thinned(log: Mapping[str, Curve]) -> dict[str, list[list[int | float]]]:
    """Reduces the curves that reports show to [steps, values] of at most `MAX_POINTS` means of consecutive steps."""
    curves: dict[str, list[list[int | float]]] = {}
    for name, (steps, values) in log.items():
        tool_rate = name.startswith("tools/") and name.endswith("/rate")
        shown = tool_rate or name.startswith("reward/") or name in ("episode/policy_tokens", "episode/searches")
        if len(steps) and shown:
            blocks = np.array_split(np.arange(len(steps)), min(len(steps), MAX_POINTS))
            middles: list[int | float] = [int(steps[block[len(block) // 2]]) for block in blocks]
            curves[name] = [middles, [float(f"{values[block].mean():.4g}") for block in blocks]]
    return curves


def _add_questions(folder: pathlib.Path, trials: Iterable[Trial]) -> None:
    """Adds the questions of new splits; raises a UserError if a known split has other questions."""
    path = folder / QUESTIONS
    with _locked(folder):  # processes of one study record their runs at the same time
        known = _read_questions(path) if path.exists() else {}
        added = False
        for trial in trials:
            key = (trial.dataset, trial.split)
            added |= key not in known
            if fingerprint(known.setdefault(key, trial.questions)) != fingerprint(trial.questions):
                raise UserError(
                    f"{folder} holds records of other questions of {trial.dataset}, {trial.split}, than {trial.run}"
                    " answered: write these records into another folder"
                )
        if added:
            _write(path, {"splits": [_split(dataset, split, asked) for (dataset, split), asked in known.items()]})


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _split(dataset: str, split: str, asked: Questions) -> dict[str, Any]:
    """Returns the questions of a split; a row has indices into `clusters`, `languages` and `kinds`."""
    kinds = list(zip(asked.subsets, asked.domains, asked.tiers, strict=True))
    columns: list[list[Any]] = [list(dict.fromkeys(own)) for own in (asked.clusters, asked.order, kinds)]
    places = [{value: place for place, value in enumerate(own)} for own in columns]
    rows = zip(asked.clusters, asked.languages, kinds, strict=True)
    return {
        "dataset": dataset,
        "split": split,
        "languages": columns[1],
        "clusters": columns[0],
        "kinds": [{"subsets": list(subsets), "domain": domain, "tier": tier} for subsets, domain, tier in columns[2]],
        "rows": [[own[value] for own, value in zip(places, row, strict=True)] for row in rows],
    }


def _read_questions(path: pathlib.Path) -> dict[tuple[str, str], Questions]:
    found = {}
    try:
        for split in json.loads(path.read_bytes())["splits"]:
            clusters, languages, kinds = split["clusters"], split["languages"], split["kinds"]
            found[split["dataset"], split["split"]] = Questions(
                clusters=tuple(clusters[cluster] for cluster, _, _ in split["rows"]),
                languages=tuple(languages[language] for _, language, _ in split["rows"]),
                subsets=tuple(tuple(kinds[kind]["subsets"]) for _, _, kind in split["rows"]),
                domains=tuple(kinds[kind]["domain"] for _, _, kind in split["rows"]),
                tiers=tuple(kinds[kind]["tier"] for _, _, kind in split["rows"]),
                order=tuple(languages),
            )
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise _damaged(path, error) from error
    return found


def _write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file with one line per field, and one per item of a list of objects."""

    def compact(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    lines = []
    for name, value in content.items():
        objects = isinstance(value, list) and value and isinstance(value[0], dict)
        shown = "[\n" + ",\n".join(map(compact, value)) + "\n]" if objects else compact(value)
        lines.append(f"{json.dumps(name)}: {shown}")
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")

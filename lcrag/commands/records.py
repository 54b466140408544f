"""Where answers come from: the folders of runs and evaluations, and records, the small JSON files made from them.

A folder of records has `questions.json`, the questions of every split, and a file for each run or evaluation with its
configuration, provenance, thinned training log and the scores of every question. Tables and figures of several runs are
made from these alone.
"""

import dataclasses
import hashlib
import json
import math
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lcrag.data.questions import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.errors import UserError
from lcrag.evaluation import Curve, read_rows, read_training_log, step_size
from lcrag.evaluation.metrics import EFFICIENCY, EFFICIENCY_INPUTS
from lcrag.evaluation.scoreboard import Questions, Trial
from lcrag.files import file_name, is_remote, locked, shown_files
from lcrag.runs import read_configured, read_values, statements, write_text
from lcrag.runs.folder import CONFIG, RUN, read_config
from lcrag.runs.folder import METRICS as LOG
from lcrag.train.evaluation import AFTER, EVALUATION, answers_path, inference_runs, read_answers

QUESTIONS = "questions.json"  # of a folder of records
MAX_POINTS = 60  # of a recorded curve
DAMAGES = (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError)  # of a JSON file


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
    """
    folders: dict[pathlib.Path, None] = {}
    for path in map(pathlib.Path, paths):
        if not path.is_dir():
            raise UserError(f"there is no folder {path}: give folders of runs, or a folder that contains some")
        markers = (EVALUATION, QUESTIONS)
        named = path if path.name.strip(".") else path.resolve()  # a run is known by the name of its folder
        inner = [named] if any((path / name).is_file() for name in markers) else []
        inner = inner or sorted({file.parent for name in markers for file in shown_files(path, f"**/{name}")})
        if not inner:
            raise UserError(f"nothing in {path} was evaluated: run `lcrag train` or `lcrag evaluate` into it first")
        folders |= dict.fromkeys(inner)
    sources: list[Source] = []
    for folder in folders:
        sources += _of_records(folder, also) if (folder / QUESTIONS).is_file() else _of_runs(folder, also)
    if not sources:
        raise UserError(f"no policy was evaluated in {', '.join(paths)}: give folders of runs or of evaluations")
    return sources


def _of_runs(folder: pathlib.Path, also: Collection[str]) -> Iterator[Source]:
    """Yields the sources of the folder of a training run or of evaluations."""
    places: dict[str, dict[tuple[str, str], None]] = {}  # label -> its decodings and splits
    for row in read_rows(folder / EVALUATION):
        label, comma, decoding = row.method.rpartition(", ")
        if comma and "/" not in row.split:
            places.setdefault(label, {})[decoding, row.split] = None
    for label, decodings in places.items():
        # An evaluation keeps configuration and provenance next to its answers, a training run in its folder.
        place, about = (answers_path(folder, label, name) for name in ("config", "run"))
        place, about = place.with_suffix(".gin"), about.with_suffix(".json")
        after, trained = label == AFTER, not place.is_file()
        place, about = folder / CONFIG if trained else place, about if about.is_file() else folder / RUN
        if not place.is_file():
            raise UserError(f"{folder} has lost the configuration of {label!r} ({place.name}): evaluate it again")
        if trained and not after and label not in also:
            continue
        try:
            written = json.loads(about.read_bytes())
            provenance = {name: written[name] for name in ("seed", "commit", "command")}
        except DAMAGES as error:
            raise UserError(f"{about}, the provenance of {label!r}, cannot be read: make it again") from error
        policy = str(read_configured(place).get("policy.folder", "unknown"))
        trained_by = trained_by_run(policy)
        curves = read_training_log(folder / LOG) if after and (folder / LOG).is_file() else {}
        source = Source(
            folder=folder,
            label=label,
            name=str(read_configured(place).get("Method.name", label)) if after else label,
            place=place,
            config=read_config(place),
            trained_config=read_config(trained_by) if trained_by else "",
            trained=trained,
            policy=f"{folder}/policy" if trained and after else policy,
            model=base_model(policy),
            about=provenance,
            log=curves,
            step=step_size(curves),
            trials=[],
        )
        trials, values = [], source.values
        seen = written.get("seen_languages") or values.get("Evaluation.seen_languages") or LCRL_TRAINING
        for decoding, split in decodings:
            files = inference_runs(folder, label, decoding)
            if not files:
                lost = answers_path(folder, label, decoding).name
                raise UserError(f"{folder} has lost the answers of {label!r} ({lost}): evaluate it again")
            for answers in map(read_answers, files):
                for dataset in dict.fromkeys(answer.dataset for answer in answers):
                    trial = Trial.of(
                        [answer for answer in answers if answer.dataset == dataset],
                        values.get("Evaluation.languages", LCRL_LANGUAGES),
                        method=source.name,
                        model=source.model,
                        dataset=dataset,
                        split=split,
                        decoding=decoding,
                        run=str(folder),
                        seed=provenance["seed"],
                        seen_languages=tuple(seen),
                    )
                    trials.append(trial)
        yield dataclasses.replace(source, trials=trials)


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
    return [path for path in sorted(folder.glob("[!.]*.json")) if path.name != QUESTIONS]


def read_record(path: pathlib.Path) -> dict[str, Any]:
    """Reads the JSON object of a record."""
    try:
        record = json.loads(path.read_bytes())
        record |= {config: dict(record[config]) for config in ("config", "trained_config")}
        return {**record, "command": list(record["command"]), "folder": str(record["folder"])}
    except DAMAGES as error:
        raise _damaged(path, error) from error


def _damaged(path: pathlib.Path, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read as a record ({type(error).__name__}: {error}): write it with --records")


def _of_records(folder: pathlib.Path, also: Collection[str]) -> Iterator[Source]:
    """Yields the sources of a folder of records."""
    asked = _read_questions(folder / QUESTIONS)
    for path in record_files(folder):
        record = read_record(path)
        try:
            for answers in record["answers"]:
                questions = asked.get((answers["dataset"], answers["split"]))
                if questions is None or fingerprint(questions) != answers["questions"]:
                    raise UserError(
                        f"{path} has scores of other questions of {answers['dataset']}, {answers['split']}, than"
                        f" {folder / QUESTIONS} lists: keep it in a folder of its own, with its questions"
                    )
                for metric, scores in answers["scores"].items():
                    if len(scores) != len(questions.clusters):
                        raise ValueError(f"{len(scores)} scores of {metric} for {len(questions.clusters)} questions")
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
                    about={field: record[field] for field in ("seed", "commit", "command")},
                    log={
                        curve: (np.array(steps, np.int64), np.array(values, float))
                        for curve, (steps, values) in (record["log"].items() if after else ())
                    },
                    step=record["step"] if after else "",
                    trials=[
                        Trial(
                            method=name,
                            model=record["model"],
                            dataset=answers["dataset"],
                            split=answers["split"],
                            decoding=answers["decoding"],
                            run=record["folder"],
                            seed=record["seed"],
                            seen_languages=tuple(record["seen_languages"]),
                            questions=asked[answers["dataset"], answers["split"]],
                            scores={metric: np.array(scores, float) for metric, scores in answers["scores"].items()},
                        )
                        for answers in record["answers"]
                        if answers["label"] == label
                    ],
                )
        except DAMAGES as error:
            raise _damaged(path, error) from error


def fingerprint(questions: Questions) -> str:
    """Returns a hash of questions and their languages."""
    return hashlib.sha256(json.dumps(questions.keys).encode()).hexdigest()[:12]


def write_records(sources: Sequence[Source], folder: pathlib.Path, metrics: Sequence[str]) -> list[pathlib.Path]:
    """Writes a record of every run and evaluation into a folder, whose other records are kept; returns their paths.

    The scores by `metrics` are kept, with three digits.
    """
    if is_remote(folder):
        raise UserError(f"{folder} is in object storage: write the records into a local folder, and copy it")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give --records the folder that the records are written into")
    folder.mkdir(parents=True, exist_ok=True)
    kept = [*metrics, *(EFFICIENCY_INPUTS if EFFICIENCY in metrics else ())]

    def rounded(values: np.ndarray) -> list[int | float | None]:
        numbers = (None if math.isnan(value) else round(value, 3) for value in values.tolist())
        return [int(number) if number is not None and number == int(number) else number for number in numbers]

    of_file: dict[pathlib.Path, list[Source]] = {}
    for source in sources:
        of_file.setdefault(source.place, []).append(source)
    folders = [labels[0].folder for labels in of_file.values()]
    written: dict[pathlib.Path, pathlib.Path] = {}
    for place, labels in of_file.items():
        source = next((labelled for labelled in labels if labelled.label == AFTER), labels[0])
        several = folders.count(source.folder) > 1
        path = folder / file_name(f"{source.folder.name}{f'-{labels[0].label}' if several else ''}.json")
        if written.setdefault(path, place) != place:
            raise UserError(f"{written[path]} and {place} would both be recorded as {path}: rename one's folder")
        trials = [(labelled.label, trial) for labelled in labels for trial in labelled.trials]
        _add_questions(folder, [trial for _, trial in trials])
        record = {
            "method": source.name,
            "model": source.model,
            **source.about,
            "folder": str(source.folder),
            "policies": {labelled.label: labelled.policy for labelled in labels},
            "trained": source.trained,
            "seen_languages": list(trials[0][1].seen_languages),
            "step": source.step,
            "log": thinned(source.log),
            "config": statements(source.config),
            "trained_config": statements(source.trained_config),
            "answers": [
                {
                    "label": label,
                    "decoding": trial.decoding,
                    "dataset": trial.dataset,
                    "split": trial.split,
                    "questions": fingerprint(trial.questions),
                    "scores": {
                        name: rounded(trial.scores[name])
                        for name in kept
                        if name in trial.scores and not np.isnan(trial.scores[name]).all()
                    },
                }
                for label, trial in trials
            ],
        }
        _write(path, record)
    return list(written)


def thinned(log: Mapping[str, Curve]) -> dict[str, list[list[int | float]]]:
    """Reduces the curves that reports show to [steps, values] of at most `MAX_POINTS` means of consecutive steps."""
    shown = re.compile(r"reward/.*|episode/(policy_tokens|searches(_native_(holds|missing))?)|tools/.*/rate")
    curves: dict[str, list[list[int | float]]] = {}
    for name, (steps, values) in log.items():
        if len(steps) and shown.fullmatch(name):
            blocks = np.array_split(np.arange(len(steps)), min(len(steps), MAX_POINTS))
            middles: list[int | float] = [int(steps[block[len(block) // 2]]) for block in blocks]
            curves[name] = [middles, [float(f"{values[block].mean():.4g}") for block in blocks]]
    return curves


def _add_questions(folder: pathlib.Path, trials: Sequence[Trial]) -> None:
    """Adds the questions of new splits to `QUESTIONS`; raises a UserError if a known split has other questions.

    A row of a split has indices into its `clusters`, `languages` and `kinds`.
    """
    path = folder / QUESTIONS
    with locked(folder):  # processes of one study record their runs at the same time
        known = _read_questions(path) if path.exists() else {}
        before = len(known)
        for trial in trials:
            if fingerprint(known.setdefault((trial.dataset, trial.split), trial.questions)) != fingerprint(
                trial.questions
            ):
                raise UserError(
                    f"{folder} holds records of other questions of {trial.dataset}, {trial.split}, than {trial.run}"
                    " answered: write these records into another folder"
                )
        if len(known) == before:
            return
        splits = []
        for (dataset, split), asked in known.items():
            kinds = list(zip(asked.subsets, asked.domains, asked.tiers, strict=True))
            columns = [list(dict.fromkeys(values)) for values in (asked.clusters, asked.order, kinds)]
            indices = [{value: index for index, value in enumerate(values)} for values in columns]
            rows = zip(asked.clusters, asked.languages, kinds, strict=True)
            splits.append(
                {
                    "dataset": dataset,
                    "split": split,
                    "languages": columns[1],
                    "clusters": columns[0],
                    "kinds": [dict(zip(("subsets", "domain", "tier"), kind, strict=True)) for kind in columns[2]],
                    "rows": [[index[value] for index, value in zip(indices, row, strict=True)] for row in rows],
                }
            )
        _write(path, {"splits": splits})


def _read_questions(path: pathlib.Path) -> dict[tuple[str, str], Questions]:
    questions = {}
    try:
        for split in json.loads(path.read_bytes())["splits"]:
            clusters, languages, kinds = split["clusters"], split["languages"], split["kinds"]
            questions[split["dataset"], split["split"]] = Questions(
                clusters=tuple(clusters[cluster] for cluster, _, _ in split["rows"]),
                languages=tuple(languages[language] for _, language, _ in split["rows"]),
                subsets=tuple(tuple(kinds[kind]["subsets"]) for _, _, kind in split["rows"]),
                domains=tuple(kinds[kind]["domain"] for _, _, kind in split["rows"]),
                tiers=tuple(kinds[kind]["tier"] for _, _, kind in split["rows"]),
                order=tuple(languages),
            )
    except DAMAGES as error:
        raise _damaged(path, error) from error
    return questions


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

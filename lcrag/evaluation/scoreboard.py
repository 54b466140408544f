"""Several systems, each with several runs, on the same questions: their means, spreads and paired tests."""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from lcrag.errors import UserError
from lcrag.evaluation.answered import Answered
from lcrag.evaluation.efficiency import EFFICIENCY, PARTS, score_per_log_token
from lcrag.evaluation.metrics import question_metrics
from lcrag.evaluation.significance import paired_t_test

GROUPS = ("all", "seen", "zero_shot")
System = tuple[str, str]
"""(model, name)."""
Part = tuple[str, str]
"""(subset or "", language or one of GROUPS)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One inference run of one system.

    Attributes:
      method: What was run, e.g. "LcRL".
      model: The policy it began with.
      dataset: The data set.
      split: Its split.
      decoding: How answers were decoded, e.g. "sampled".
      run: Names the training run, or the evaluation, that it belongs to; inference runs of one share it.
      seen_languages: Languages it was trained on.
      answered: Its answers.
      point: Where it lies on the axis of a study; None: there is no study.
    """

    method: str
    model: str
    dataset: str
    split: str
    decoding: str
    run: str
    seen_languages: tuple[str, ...]
    answered: tuple[Answered, ...]
    point: float | str | None = None

    @property
    def system(self) -> System:
        """What its results are averaged with: trials of one system differ in random numbers only."""
        return self.model, self.method if self.point is None else f"{self.method} [{point_name(self.point)}]"


def point_name(point: float | str) -> str:
    """How a point of a study's axis reads."""
    return point if isinstance(point, str) else f"{point:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemScore:
    """How a system does.

    Attributes:
      value: Mean over its runs, each the mean over its inference runs.
      standard_error: Between training runs if there are several, else between inference runs; NaN for a single one.
      runs: Training runs, or evaluations.
      trials: Inference runs in all.
    """

    value: float
    standard_error: float
    runs: int
    trials: int


class Scoreboard:
    """The scores of every trial on one data set's split in one way of decoding.

    Args:
      trials: At least one.
      languages: All languages of the runs, among which an answer's is identified.

    Raises:
      UserError: two of them answered different questions.
    """

    def __init__(self, trials: Sequence[Trial], languages: Collection[str] = ()):
        self.trials = tuple(trials)
        self._places = [_places(trial) for trial in trials]
        order = sorted(self._places[0])
        for trial, places in zip(trials, self._places, strict=True):
            if places.keys() != self._places[0].keys():
                raise UserError(
                    f"{trials[0].run} and {trial.run} answered different questions of {trial.dataset}:"
                    " evaluate both on the same split and sample, or report them apart"
                )
        self._questions = [trials[0].answered[self._places[0][key]] for key in order]
        self._codes = np.array([question.language for question in self._questions])
        self._clusters = np.unique([question.cluster for question in self._questions], return_inverse=True)[1]
        self._scores = [
            {
                name: values[[places[key] for key in order]]
                for name, values in question_metrics(trial.answered, languages).items()
            }
            for trial, places in zip(trials, self._places, strict=True)
        ]

    @property
    def dataset(self) -> str:
        return self.trials[0].dataset

    @property
    def systems(self) -> list[System]:
        """In the order in which they came."""
        return list(dict.fromkeys(trial.system for trial in self.trials))

    def rival(self, system: System, method: str) -> System | None:
        """The system that another method of the same model is at the same point of a study, None if it was not run."""
        own = next((trial for trial in self.trials if trial.system == system), None)
        if own is None:
            return None
        same = (t.system for t in self.trials if (t.method, t.model, t.point) == (method, own.model, own.point))
        return next(same, None)

    @functools.cached_property
    def languages(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(trained on by every system, the others), each in the order in which they came."""
        seen = set.intersection(*(set(trial.seen_languages) for trial in self.trials))
        codes = tuple(dict.fromkeys(question.language for question in self.trials[0].answered))
        return tuple(c for c in codes if c in seen), tuple(c for c in codes if c not in seen)

    @functools.cached_property
    def subsets(self) -> tuple[str, ...]:
        """Parts of the data set that are reported apart."""
        return tuple(sorted({subset for question in self._questions for subset in question.subsets}))

    @functools.cached_property
    def _members(self) -> dict[str, Bool[np.ndarray, " questions"]]:
        """Subset -> which questions belong to it."""
        return {name: np.array([name in question.subsets for question in self._questions]) for name in self.subsets}

    def standing(self, system: System, metric: str, part: Part) -> SystemScore | None:
        """The system's result in a part of the data, None where it has none."""
        by_run: dict[str, list[float]] = {}
        for index, trial in enumerate(self.trials):
            if trial.system == system and not np.isnan(value := self._value(index, metric, part)):
                by_run.setdefault(trial.run, []).append(value)
        if not by_run:
            return None
        means = [float(np.mean(values)) for values in by_run.values()]
        spread = means if len(means) > 1 else next(iter(by_run.values()))
        error = np.std(spread, ddof=1) / np.sqrt(len(spread)) if len(spread) > 1 else np.nan
        trials = sum(map(len, by_run.values()))
        return SystemScore(value=float(np.mean(means)), standard_error=float(error), runs=len(by_run), trials=trials)

    def p_value(self, system: System, other: System, metric: str, part: Part) -> float:
        """Of the paired t-test over the questions of a part, a question's score being the mean over the trials.

        All language versions of a question are one observation. NaN where the two were trained on different
        languages and the part depends on that, where fewer than two questions are scored on both sides, or where the
        metric is no question's.
        """
        if metric not in self._scores[0]:
            return float("nan")
        chosen = [
            self._chosen(index, part) for index, trial in enumerate(self.trials) if trial.system in (system, other)
        ]
        if not all(np.array_equal(mask, chosen[0]) for mask in chosen):
            return float("nan")
        first, second = self._question_means(system, metric), self._question_means(other, metric)
        both = chosen[0] & ~np.isnan(first) & ~np.isnan(second)
        if len(np.unique(self._clusters[both])) < 2:
            return float("nan")
        return paired_t_test(first[both], second[both], self._clusters[both])

    def _question_means(self, system: System, metric: str) -> Float[np.ndarray, " questions"]:
        own = [
            scores[metric] for trial, scores in zip(self.trials, self._scores, strict=True) if trial.system == system
        ]
        scored = ~np.isnan(own)
        with np.errstate(invalid="ignore"):
            return np.where(scored, own, 0.0).sum(axis=0) / scored.sum(axis=0)

    def _value(self, index: int, metric: str, part: Part) -> float:
        """Of one trial: a subset's mean over its questions, a group of languages' mean over the languages' means."""
        if metric == EFFICIENCY:
            return score_per_log_token(*(self._value(index, each, part) for each in PARTS))
        if metric not in self._scores[index]:
            return float("nan")
        scores, chosen = self._scores[index][metric], self._chosen(index, part)
        chosen = chosen & ~np.isnan(scores)
        if part[0]:
            return float(scores[chosen].mean()) if chosen.any() else float("nan")
        means = [scores[chosen & (self._codes == code)].mean() for code in np.unique(self._codes[chosen])]
        return float(np.mean(means)) if means else float("nan")

    def _chosen(self, index: int, part: Part) -> Bool[np.ndarray, " questions"]:
        subset, language = part
        seen = np.isin(self._codes, self.trials[index].seen_languages)
        groups: Mapping[str, np.ndarray] = {"all": np.ones(len(seen), bool), "seen": seen, "zero_shot": ~seen}
        chosen = groups[language] if language in groups else self._codes == language
        return chosen & self._members[subset] if subset else chosen


def _places(trial: Trial) -> dict[tuple[str, str], int]:
    """(question, language) -> its place among the trial's answers."""
    return {(answered.cluster, answered.language): place for place, answered in enumerate(trial.answered)}


def scoreboards(trials: Iterable[Trial], languages: Collection[str] = ()) -> dict[tuple[str, str, str], Scoreboard]:
    """(data set, split, decoding) -> the scoreboard of its trials, in the order in which they came."""
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.dataset, trial.split, trial.decoding), []).append(trial)
    return {key: Scoreboard(own, languages) for key, own in groups.items()}

"""Compares systems, each with several runs, on the same questions: means, 95 % intervals and paired tests.

A trial is one inference run of a system on one split of a data set; trials of a system differ in random numbers only.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from lcrag.errors import UserError
from lcrag.evaluation.answered import Answered
from lcrag.evaluation.metrics import EFFICIENCY, EFFICIENCY_INPUTS, question_metrics, score_per_log_token
from lcrag.evaluation.significance import Estimate, RunMeans, crossed_estimate, paired_runs, run_means

System = tuple[str, str]
"""(model, name)."""
Part = tuple[str, str]
"""(subset or "", language or one of "all", "seen", "zero_shot")."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """The questions of one split of a data set, one entry per language version, sorted by (cluster, language)."""

    clusters: tuple[str, ...]  # identifies the question across languages
    languages: tuple[str, ...]
    subsets: tuple[tuple[str, ...], ...]  # reported parts of the data set with the question
    domains: tuple[str, ...]  # empty for data sets with one way of answering
    tiers: tuple[str, ...]  # empty for data sets without tiers
    order: tuple[str, ...]  # every language once, as tables show them

    @classmethod
    def of(cls, answered: Sequence[Answered]) -> "Questions":
        """Returns the questions of answers, which may be in any order."""
        questions = sorted(answered, key=lambda question: (question.cluster, question.language))
        return cls(
            clusters=tuple(question.cluster for question in questions),
            languages=tuple(question.language for question in questions),
            subsets=tuple(question.subsets for question in questions),
            domains=tuple(question.domain for question in questions),
            tiers=tuple(question.tier for question in questions),
            order=tuple(dict.fromkeys(question.language for question in answered)),
        )

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """A key that is equal for the same questions in the same languages."""
        return self.clusters, self.languages


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One inference run of one system."""

    method: str  # e.g. "LcRL"
    model: str  # the policy that it started from
    dataset: str
    split: str
    decoding: str  # how answers were decoded, e.g. "sampled"
    run: str  # name of the training run or evaluation that it belongs to, shared by its inference runs
    seen_languages: tuple[str, ...]  # languages it was trained on
    questions: Questions
    scores: Mapping[str, Float[np.ndarray, " questions"]]  # metric -> score of every question; NaN without one
    answered: tuple[Answered, ...] = ()  # in the order of the questions; empty if only the scores are known
    point: float | str | None = None  # its position on the axis of a study; None: no study
    seed: int | str | None = None  # of the training run or evaluation; None: unknown

    @classmethod
    def of(cls, answered: Sequence[Answered], languages: Collection[str] = (), **labels: Any) -> "Trial":
        """Returns the trial of answers, scored by every metric.

        Args:
          answered: The answers, in any order.
          languages: All languages of the run, from which the language of an answer is identified.
          **labels: The other fields.
        """
        ordered = sorted(answered, key=lambda question: (question.cluster, question.language))
        scores = question_metrics(ordered, languages)
        return cls(questions=Questions.of(answered), scores=scores, answered=tuple(ordered), **labels)

    def at(self, point: float | str | None) -> "Trial":
        """Returns the trial with its position on the axis of a study."""
        return dataclasses.replace(self, point=point)

    @property
    def system(self) -> System:
        """The key of trials that are averaged, which differ only in random numbers."""
        return self.model, self.method if self.point is None else f"{self.method} [{point_name(self.point)}]"


def point_name(point: float | str) -> str:
    """Returns the displayed name of a point of a study's axis."""
    return point if isinstance(point, str) else f"{point:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemScore:
    """The score of a system with its 95 % interval over questions and, if there are several, training runs."""

    value: float  # mean over its training runs, the inference runs of each averaged question by question
    low: float  # NaN if nothing varies
    high: float
    runs: int  # number of training runs, or evaluations
    trials: int  # number of inference runs
    count: int  # number of answers scored in all of them

    @property
    def half(self) -> float:
        """Half of the interval's width; NaN without an interval."""
        return (self.high - self.low) / 2


class Scoreboard:
    """The scores of all trials on one split of a data set with one decoding.

    The mean over a group of languages is the mean of the languages' means; one over a subset is over its questions.

    Args:
      trials: The trials, at least one.
      paired_seeds: Whether differences are paired by seed where both systems have the same seeds, each once and at
        least two: what was made for a seed, such as an SFT, then cancels out.
    """

    def __init__(self, trials: Sequence[Trial], paired_seeds: bool = False):
        self.trials = tuple(trials)
        self.paired_seeds = paired_seeds
        self.questions = trials[0].questions
        for trial in trials:
            if trial.questions.keys != self.questions.keys:
                raise UserError(
                    f"{trials[0].run} and {trial.run} answered different questions of {trial.dataset}:"
                    " evaluate both on the same split and sample, or report them separately"
                )
        self._codes = np.array(self.questions.languages)
        self._language = np.unique(self._codes, return_inverse=True)[1]
        self._clusters = np.unique(self.questions.clusters, return_inverse=True)[1]
        self._runs: dict[System, dict[str, list[Trial]]] = {}
        for trial in trials:
            self._runs.setdefault(trial.system, {}).setdefault(trial.run, []).append(trial)

    @property
    def dataset(self) -> str:
        return self.trials[0].dataset

    @property
    def systems(self) -> list[System]:
        """All systems, in the order of their first trials."""
        return list(self._runs)

    @functools.cached_property
    def languages(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(languages that every system was trained on, the others), in the order of the answers."""
        seen = set.intersection(*(set(trial.seen_languages) for trial in self.trials))
        codes = self.questions.order
        return tuple(c for c in codes if c in seen), tuple(c for c in codes if c not in seen)

    @functools.cached_property
    def subsets(self) -> tuple[str, ...]:
        """Subsets of the data set that are reported separately."""
        return tuple(sorted({subset for subsets in self.questions.subsets for subset in subsets}))

    @functools.cached_property
    def _members(self) -> dict[str, Bool[np.ndarray, " questions"]]:
        return {name: np.array([name in subsets for subsets in self.questions.subsets]) for name in self.subsets}

    def is_proper(self, part: Part) -> bool:
        """Whether a part is neither empty nor the whole data set, for at least one trial."""
        return any(0 < self._chosen(trial, part).sum() < len(self._codes) for trial in self.trials)

    def rival(self, system: System, method: str) -> System | None:
        """Returns the system of another method with the same model and point; None if it was not run."""
        trial = next((trial for trial in self.trials if trial.system == system), None)
        if trial is None:
            return None
        same = (t.system for t in self.trials if (t.method, t.model, t.point) == (method, trial.model, trial.point))
        return next(same, None)

    def score(self, system: System, metric: str, part: Part) -> SystemScore | None:
        """Returns the system's score on a part of the data; None if no question of it is scored."""
        runs = self._run_means(system, metric, part)
        if runs is None:
            return None
        whole = crossed_estimate(runs)
        # A metric that is not defined per question counts all questions.
        scored = [
            int((self._chosen(trial, part) & ~np.isnan(trial.scores.get(metric, np.zeros(len(self._codes))))).sum())
            for trials in self._runs[system].values()
            for trial in trials
        ]
        return SystemScore(
            value=whole.value,
            low=whole.low,
            high=whole.high,
            runs=len(runs.means),
            trials=sum(map(bool, scored)),
            count=sum(scored),
        )

    def difference(self, system: System, other: System, metric: str, part: Part) -> Estimate | None:
        """Returns a system's score minus another's with interval and test, paired by question and perhaps by seed.

        None if one of them has no score, or if the part depends on the languages trained on and these differ.
        """
        masks = [self._chosen(trial, part) for trial in self.trials if trial.system in (system, other)]
        if not all(np.array_equal(mask, masks[0]) for mask in masks):
            return None
        first, second = (self._run_means(side, metric, part) for side in (system, other))
        if first is None or second is None:
            return None
        one, two = self._seeds(system), self._seeds(other)
        same = set(one) == set(two) and 1 < len(one) == len(first.means) == len(second.means)
        if self.paired_seeds and same:
            order = np.array([two.index(seed) for seed in one])
            return crossed_estimate(
                paired_runs(first, second._replace(means=second.means[order], parts=second.parts[order]))
            )
        return crossed_estimate(first, second)

    def _seeds(self, system: System) -> list[int | str]:
        """Returns the seed of each run, in the order of the runs; empty if one is unknown or there twice."""
        seeds = [trials[0].seed for trials in self._runs.get(system, {}).values()]
        known = [seed for seed in seeds if seed is not None]
        return known if len(set(known)) == len(seeds) else []

    def _run_means(self, system: System, metric: str, part: Part) -> RunMeans | None:
        """Returns the means of the system's runs that have scores on a part."""
        if metric == EFFICIENCY:
            return self._efficiency(system, part)
        rows = []
        for trials in self._runs.get(system, {}).values():  # the scores of a run, averaged over its inference runs
            nothing = np.full(len(self._codes), math.nan)
            rows_of_run = [
                np.where(self._chosen(trial, part), trial.scores.get(metric, nothing), math.nan) for trial in trials
            ]
            scored = ~np.isnan(rows_of_run)
            sums = np.where(scored, rows_of_run, 0.0).sum(axis=0)
            if scored.any():
                rows.append(np.divide(sums, scored.sum(axis=0), out=nothing, where=scored.any(0)))
        groups = np.zeros_like(self._language) if part[0] else self._language
        return run_means(np.stack(rows), groups, self._clusters) if rows else None

    def _efficiency(self, system: System, part: Part) -> RunMeans | None:
        """Returns the run means of `score_per_log_token`, a function of three means, by the delta method."""
        inputs = [self._run_means(system, metric, part) for metric in EFFICIENCY_INPUTS]
        known = [each for each in inputs if each is not None]
        if len(known) < len(inputs) or len({len(each.means) for each in known}) > 1:
            return None
        exact, f1, tokens = (float(each.means.mean()) for each in known)
        means = np.array([score_per_log_token(*each) for each in zip(*(mean.means for mean in known), strict=True)])
        if np.isnan(means).any():
            return None
        log = math.log(tokens)
        slopes = (0.5 / log, 0.5 / log, -(exact + f1) / 2 / (tokens * log**2))
        parts = sum(slope * each.parts for slope, each in zip(slopes, known, strict=True))
        return RunMeans(means=means, parts=np.asarray(parts), asked=known[0].asked)

    def _chosen(self, trial: Trial, part: Part) -> Bool[np.ndarray, " questions"]:
        subset, language = part
        seen = np.isin(self._codes, trial.seen_languages)
        groups = {"all": np.ones(len(seen), bool), "seen": seen, "zero_shot": ~seen}
        chosen = groups[language] if language in groups else self._codes == language
        return chosen & self._members[subset] if subset else chosen


def scoreboards(trials: Iterable[Trial], paired_seeds: bool = False) -> dict[tuple[str, str, str], Scoreboard]:
    """Returns (data set, split, decoding) -> the scoreboard of its trials."""
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.dataset, trial.split, trial.decoding), []).append(trial)
    return {key: Scoreboard(same, paired_seeds) for key, same in groups.items()}

"""Trials, which tables of several runs compare: the scores of an inference run on one split of a data set."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from lcrag.evaluation.answered import Answered
from lcrag.evaluation.metrics import question_metrics

System = tuple[str, str]
"""(model, name)."""


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
        questions = sorted(answered, key=_key)
        return cls(
            clusters=tuple(each.cluster for each in questions),
            languages=tuple(each.language for each in questions),
            subsets=tuple(each.subsets for each in questions),
            domains=tuple(each.domain for each in questions),
            tiers=tuple(each.tier for each in questions),
            order=tuple(dict.fromkeys(each.language for each in answered)),
        )

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """A key that is equal for the same questions in the same languages."""
        return self.clusters, self.languages


def _key(question: Answered) -> tuple[str, str]:
    return question.cluster, question.language


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
        ordered = sorted(answered, key=_key)
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

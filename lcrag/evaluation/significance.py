"""Intervals and tests of means over dependent observations: language versions of questions, and training runs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import ArrayLike

Clusters = Sequence[str] | Shaped[np.ndarray, " answers"]
NORMAL = 1.959964  # 97.5 % quantile of the normal distribution


def clustered_standard_error(
    values: Float[np.ndarray, " questions"], clusters: Shaped[np.ndarray, " questions"]
) -> tuple[float, float]:
    """Returns the mean and its standard error, with the language versions of a question as one cluster.

    The error is sqrt(C/(C-1) Σ_c (Σ_{i in c} (x_i - mean))²) / n, which is s/√n for clusters of one and NaN for a
    single cluster. Without values both are NaN.
    """
    if not len(values):
        return float("nan"), float("nan")
    mean = values.mean()
    sums = np.bincount(np.unique(clusters, return_inverse=True)[1], weights=values - mean)
    if len(sums) < 2:
        return float(mean), float("nan")
    return float(mean), float(np.sqrt(len(sums) / (len(sums) - 1) * np.square(sums).sum()) / len(values))


class Estimate(NamedTuple):
    """A mean or a difference of two means, its 95 % interval, and the p-value of the two-sided test that it is 0.

    If the variance cannot be estimated, the interval's ends are NaN and the p-value is 1.
    """

    value: float
    low: float
    high: float
    p_value: float

    @property
    def half(self) -> float:
        """Half of the interval's width; NaN without an interval."""
        return (self.high - self.low) / 2


class RunMeans(NamedTuple):
    """The means of a system's training runs, and the contribution of each question to them."""

    means: Float[np.ndarray, " runs"]
    parts: Float[np.ndarray, "runs clusters"]  # a question's share of a run's deviation from the system's mean
    asked: Bool[np.ndarray, " clusters"]  # whether any run was scored on the question


def run_means(
    scores: Float[np.ndarray, "runs answers"],
    groups: Int[np.ndarray, " answers"],
    clusters: Int[np.ndarray, " answers"],
) -> RunMeans:
    """Returns each run's mean of the groups' means, and each cluster's contribution to its deviation from all runs.

    The n_l scored answers of group l of L have the weight 1/(L n_l). The part of cluster c in run r is the sum over its
    answers of the weight times x_ri - m_l, with the mean m_l of the answer's group over all runs: the influence of the
    cluster on a mean with these weights.

    Args:
      scores: Score of each answer; NaN for an answer without a score, which has no weight. Every run has a score.
      groups: Number of each answer's group, such as its language.
      clusters: Number of each answer's question, from 0.
    """
    scored = ~np.isnan(scores)
    known, index = np.where(scored, scores, 0.0), np.unique(groups, return_inverse=True)[1]
    counts, sums = _summed(scored, index), _summed(known, index)
    number = (counts > 0).sum(axis=1, keepdims=True)  # of groups with a scored answer
    means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    weights = np.divide(1 / number, counts, out=np.zeros_like(sums), where=counts > 0)
    centre = means.sum(axis=0) / np.maximum((counts > 0).sum(axis=0), 1)
    parts = _summed(weights[:, index] * scored * (known - centre[index]), clusters)
    asked = np.bincount(clusters, scored.any(axis=0)) > 0
    return RunMeans(means=means.sum(axis=1) / number[:, 0], parts=parts, asked=asked)


def _summed(
    values: Shaped[np.ndarray, "runs answers"], index: Int[np.ndarray, " answers"]
) -> Float[np.ndarray, "runs _sums"]:
    return np.stack([np.bincount(index, row) for row in values])


def crossed_estimate(system: RunMeans, other: RunMeans | None = None) -> Estimate:
    """Estimates a system's mean, or its difference from another's, generalising over questions and training runs.

    The variance is V = V_questions + Σ (V_runs - V_residual), at least the larger of V_questions and Σ V_runs, where
    the sum is over the systems with several runs: two-way clustering (Cameron, Gelbach & Miller 2011, "Robust inference
    with multiway clustering", section 2), with the unbiased mean squares of crossed random effects (Searle, Casella &
    McCulloch 1992, "Variance components", chapter 4) instead of Cameron's terms, which are too small for few runs.
    V_residual is the variance of the interaction, which both other terms include. Two systems are paired by question,
    and their runs are independent; for runs that are paired too, give the differences of means and parts as one system.
    The distribution is Student's t with Satterthwaite's (1946) degrees of freedom. With one run per system the result
    is the paired t-test over questions, which does not generalise over runs.

    Args:
      system: The system's result of `run_means`.
      other: That of another system on the same clusters, whose mean is subtracted; None: nothing is subtracted.
    """
    sides = [system] if other is None else [system, other]
    asked = np.any([side.asked for side in sides], axis=0)
    value = system.means.mean() - (other.means.mean() if other else 0.0)
    questions = system.parts.mean(axis=0) - (other.parts.mean(axis=0) if other else 0.0)
    clusters = int(asked.sum())
    unknown = Estimate(float(value), math.nan, math.nan, 1.0)
    if clusters < 2:
        return unknown
    spread = [clusters * questions[asked].var(ddof=1)]
    freedom = [clusters - 1]
    runs = interaction = 0.0
    for side in sides:
        if (count := len(side.means)) > 1:
            parts = side.parts[:, asked]
            crossed = parts - parts.mean(axis=0) - parts.mean(axis=1, keepdims=True) + parts.mean()
            freedom += [count - 1, (count - 1) * (clusters - 1)]
            spread += [side.means.var(ddof=1) / count, clusters * np.square(crossed).sum() / (count * freedom[-1])]
            runs, interaction = runs + spread[-2], interaction + spread[-1]
    variance = max(spread[0] + runs - interaction, spread[0], runs)
    scale = max(np.abs(side.means).max() for side in sides)
    if math.sqrt(variance) <= 1e-12 * scale:
        return unknown
    degrees = variance**2 / sum(part**2 / free for part, free in zip(spread, freedom, strict=True))
    import scipy.special  # here, since every command imports this module

    value, error = float(value), math.sqrt(variance)
    half = float(scipy.special.stdtrit(degrees, 0.975)) * error
    return Estimate(value, value - half, value + half, float(2 * scipy.special.stdtr(degrees, -abs(value) / error)))


def paired_difference(first: ArrayLike, second: ArrayLike, clusters: Clusters | None = None) -> Estimate:
    """Estimates the mean of first - second over the answers of one run each, by the paired t-test over questions.

    Args:
      first: Scores of the first system, without NaN.
      second: Scores of the second system on the same questions, in the same order.
      clusters: The question of each score, whose language versions are one observation; None: every score is one.

    Raises:
      ValueError: the two sides differ in length, or are empty.
    """
    one, other = np.asarray(first, float), np.asarray(second, float)
    if one.shape != other.shape or one.ndim != 1 or not len(one):
        raise ValueError(f"two systems answer the same questions, but there are {one.shape} and {other.shape} scores")
    index = np.arange(len(one)) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
    group = np.zeros(len(one), int)
    return crossed_estimate(run_means(one[None], group, index), run_means(other[None], group, index))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for multiple tests (Holm 1979, "A simple sequentially rejective test").

    Rejecting the tests whose adjusted p-value is below a level bounds the probability of any false rejection by this
    level. NaN marks a missing test and is not counted.
    """
    known = sorted((value, place) for place, value in enumerate(p_values) if not math.isnan(value))
    adjusted, least = list(p_values), 0.0
    for rank, (value, place) in enumerate(known):
        adjusted[place] = least = max(least, min(1.0, (len(known) - rank) * value))
    return adjusted

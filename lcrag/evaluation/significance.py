"""Standard errors and paired comparisons that respect what is not independent."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import scipy.stats
from jaxtyping import Float, Shaped
from numpy.typing import ArrayLike


def clustered_standard_error(
    values: Float[np.ndarray, " questions"], clusters: Shaped[np.ndarray, " questions"]
) -> tuple[float, float]:
    """The mean and its standard error, where questions of one cluster (one fact in many languages) go together.

    The error is sqrt(C/(C-1) Σ_c (Σ_{i in c} (x_i - mean))²) / n; with clusters of one it is the
    familiar s/√n. NaN for a single cluster.
    """
    mean = values.mean()
    sums = np.bincount(np.unique(clusters, return_inverse=True)[1], weights=values - mean)
    if len(sums) < 2:
        return float(mean), float("nan")
    return float(mean), float(np.sqrt(len(sums) / (len(sums) - 1) * np.square(sums).sum()) / len(values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """How much one system is above another on the same questions.

    Attributes:
      difference: Mean over clusters of (first - second).
      standard_error: Its standard error.
      p_value: Of the two-sided paired t-test; 1 where all differences are the same, and so say nothing of how they
        vary.
      interval: The 95 % percentile interval of the bootstrap over clusters.
      clusters: How many there are.
    """

    difference: float
    standard_error: float
    p_value: float
    interval: tuple[float, float]
    clusters: int


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    clusters: Sequence[str] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> PairedDifference:
    """Compares two systems question by question.

    Args:
      first: Scores of the first system.
      second: Scores of the second, of the same questions in the same order.
      clusters: Names what belongs together (a question's language versions); its differences are
        averaged first, and everything is then over clusters. None: each question is its own.
      resamples: Of the bootstrap.
      seed: Of the bootstrap.

    Raises:
      ValueError: the two sides differ in length, or there are fewer than two clusters.
    """
    one, other = np.asarray(first, float), np.asarray(second, float)
    if one.shape != other.shape or one.ndim != 1:
        raise ValueError(f"two systems answer the same questions, but there are {one.shape} and {other.shape} scores")
    differences = _by_cluster(one - other, clusters)
    if len(differences) < 2:
        raise ValueError("a paired comparison needs two questions or more")
    draws = np.random.default_rng(seed).integers(len(differences), size=(resamples, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), [0.025, 0.975])
    spread = differences.std(ddof=1)
    return PairedDifference(
        difference=float(differences.mean()),
        standard_error=float(spread / np.sqrt(len(differences))),
        p_value=_p_value(differences),
        interval=(float(low), float(high)),
        clusters=len(differences),
    )


def paired_t_test(
    first: ArrayLike, second: ArrayLike, clusters: Shaped[np.ndarray, " questions"] | None = None
) -> float:
    """The p-value of the two-sided paired t-test over clusters, as in `paired_difference`, without its bootstrap.

    Raises:
      ValueError: there are fewer than two clusters.
    """
    differences = _by_cluster(np.asarray(first, float) - np.asarray(second, float), clusters)
    if len(differences) < 2:
        raise ValueError("a paired comparison needs two questions or more")
    return _p_value(differences)


def _p_value(differences: np.ndarray) -> float:
    """Of the one-sample t-test of mean 0; 1 where all differences are the same: without variance it says nothing."""
    constant = differences.std(ddof=1) <= 1e-12 * np.abs(differences).max()
    return 1.0 if constant else float(scipy.stats.ttest_1samp(differences, 0.0).pvalue)


def _by_cluster(
    values: Float[np.ndarray, " questions"], clusters: Sequence[str] | Shaped[np.ndarray, " questions"] | None
) -> np.ndarray:
    if clusters is None:
        return values
    index = np.unique(np.asarray(clusters), return_inverse=True)[1]
    return np.bincount(index, weights=values) / np.bincount(index)

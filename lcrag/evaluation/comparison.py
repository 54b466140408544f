"""Two systems on the same questions: the paired difference of every metric in every part of the data."""

from collections.abc import Collection, Sequence

import numpy as np

from lcrag.evaluation.answered import Answered
from lcrag.evaluation.metrics import question_metrics
from lcrag.evaluation.significance import PairedDifference, paired_difference
from lcrag.evaluation.slices import slices, split_name

Place = tuple[str, str]
"""(split, language) as in a row."""


def compare(
    before: Sequence[Answered],
    after: Sequence[Answered],
    *,
    split: str,
    seen_languages: Collection[str],
    languages: Collection[str] = (),
    seed: int = 0,
) -> dict[tuple[Place, str], PairedDifference]:
    """After minus before, for every (place, metric) where at least two questions are scored on both sides.

    Args:
      before: Answers of the first system.
      after: Answers of the second to the same questions, in any order.
      split: Name of the split.
      seen_languages: Languages of the training data.
      languages: All languages of the run.
      seed: Of the bootstrap.

    Raises:
      ValueError: the two systems did not answer the same questions.
    """
    one, other = sorted(before, key=_key), sorted(after, key=_key)
    if [_key(question) for question in one] != [_key(question) for question in other]:
        raise ValueError("before and after answer different questions: evaluate both on the same split and sample")
    first, second = question_metrics(other, languages), question_metrics(one, languages)
    clusters = np.array([question.cluster for question in one])
    differences = {}
    for subset, language, chosen in slices(one, seen_languages):
        for metric in first:
            both = chosen & ~np.isnan(first[metric]) & ~np.isnan(second[metric])
            if len(np.unique(clusters[both])) > 1:
                differences[(split_name(split, subset), language), metric] = paired_difference(
                    first[metric][both], second[metric][both], clusters[both].tolist(), seed=seed
                )
    return differences


def _key(question: Answered) -> tuple[str, str]:
    return question.cluster, question.language

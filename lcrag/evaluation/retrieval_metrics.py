"""How well searches find the passages that were judged relevant: recall, reciprocal rank, discounted gain.

The definitions are trec_eval's, by which MIRACL (nDCG@10, recall@100) and Mr. TyDi (MRR@100, recall@100) report.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from lcrag.errors import UserError
from lcrag.evaluation.rows import Row


def grades_found(
    found: Sequence[Sequence[str]], judged: Sequence[Mapping[str, int]], depth: int
) -> Int[np.ndarray, "queries {depth}"]:
    """The grade of every passage found, best rank first; 0 for one that was not judged, and beyond the last.

    Args:
      found: For each query the ids of what was found; an id that comes twice counts where it comes first.
      judged: For each query the grade of each judged passage.
      depth: Ranks that are looked at.
    """
    grades = np.zeros((len(found), depth), np.int64)
    for row, (ids, own) in enumerate(zip(found, judged, strict=True)):
        for rank, passage in enumerate(tuple(dict.fromkeys(ids))[:depth]):
            grades[row, rank] = max(0, own.get(passage, 0))
    return grades


def recall(
    grades: Int[np.ndarray, "queries depth"], relevant: Int[np.ndarray, " queries"], k: int
) -> Float[np.ndarray, " queries"]:
    """The share of each query's relevant passages that is among the first `k`.

    Args:
      grades: What `grades_found` returned.
      relevant: How many relevant passages each query has, found or not; at least one.
      k: Ranks that count.
    """
    return (grades[:, :k] > 0).sum(axis=1) / relevant


def reciprocal_rank(grades: Int[np.ndarray, "queries depth"], k: int) -> Float[np.ndarray, " queries"]:
    """One over the rank of the first relevant passage among the first `k`; 0 if there is none."""
    hits = grades[:, :k] > 0
    return np.where(hits.any(axis=1), 1.0 / (1 + hits.argmax(axis=1)), 0.0)


def discounted_gain(
    grades: Int[np.ndarray, "queries depth"], judged: Sequence[Mapping[str, int]], k: int
) -> Float[np.ndarray, " queries"]:
    """nDCG@k with gain = grade and discount log2(rank + 1) (Järvelin and Kekäläinen 2002, as in trec_eval)."""
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = grades_found([sorted(own, key=own.__getitem__, reverse=True) for own in judged], judged, k)
    return (grades[:, :k] @ discounts[: grades.shape[1]]) / (ideal @ discounts)


def retrieval_rows(
    found: Sequence[Sequence[str]],
    judged: Sequence[Mapping[str, int]],
    languages: Sequence[str],
    *,
    method: str,
    model: str,
    dataset: str,
    split: str,
    cuts: Sequence[int] = (1, 3, 10, 100),
) -> list[Row]:
    """The means of all metrics in each language and over all queries; those without a relevant passage are left out.

    Args:
      found: For each query the ids of what was found, best first, at least as many as the largest cut asks for.
      judged: For each query the grade of each judged passage; relevant are those above 0.
      languages: Of the queries.
      method: What to call the search.
      model: The encoder.
      dataset: Where the judgements are from.
      split: Its split.
      cuts: Recall and reciprocal rank are taken at each; nDCG at 10.

    Raises:
      UserError: no query has a relevant passage.
    """
    asked = [row for row, own in enumerate(judged) if any(grade > 0 for grade in own.values())]
    if not asked:
        raise UserError(f"no query of {dataset}, {split} has a passage that was judged relevant: name other judgements")
    own = [judged[row] for row in asked]
    grades = grades_found([found[row] for row in asked], own, max(*cuts, 10))
    relevant = np.array([sum(grade > 0 for grade in each.values()) for each in own])
    values = {f"recall@{k}": recall(grades, relevant, k) for k in cuts}
    values |= {f"mrr@{k}": reciprocal_rank(grades, k) for k in cuts if k > 1}
    values["ndcg@10"] = discounted_gain(grades, own, 10)
    spoken = np.array([languages[row] for row in asked])
    groups = {language: spoken == language for language in dict.fromkeys(spoken.tolist())}
    if len(groups) > 1:
        groups["all"] = np.ones(len(asked), bool)
    labels: dict[str, str | int] = {"method": method, "model": model, "dataset": dataset, "split": split, "seed": 0}
    return [
        _row(metric, per_query[members], language, labels)
        for language, members in groups.items()
        for metric, per_query in values.items()
    ]


def _row(metric: str, values: np.ndarray, language: str, labels: Mapping[str, str | int]) -> Row:
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Row(
        **labels,  # type: ignore[arg-type]
        language=language,
        metric=metric,
        value=float(values.mean()),
        count=len(values),
        standard_error=error,
    )

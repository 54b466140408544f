"""Retrieval metrics against relevance judgements: recall, reciprocal rank and nDCG.

The definitions are trec_eval's, by which MIRACL (nDCG@10, recall@100) and Mr. TyDi (MRR@100, recall@100) report.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from lcrag.errors import UserError
from lcrag.evaluation.answered import Row


def grades_found(
    retrieved: Sequence[Sequence[str]], judged: Sequence[Mapping[str, int]], depth: int
) -> Int[np.ndarray, "queries {depth}"]:
    """Returns the grade of every retrieved passage, best rank first; 0 for unjudged ones and after the last.

    Args:
      retrieved: Retrieved passage ids of each query; a repeated id counts at its first rank.
      judged: Passage id -> grade, for each query.
      depth: Number of ranks.
    """
    grades = np.zeros((len(retrieved), depth), np.int64)
    for row, (ids, known) in enumerate(zip(retrieved, judged, strict=True)):
        for rank, passage in enumerate(tuple(dict.fromkeys(ids))[:depth]):
            grades[row, rank] = max(0, known.get(passage, 0))
    return grades


def recall(
    grades: Int[np.ndarray, "queries depth"], relevant: Int[np.ndarray, " queries"], k: int
) -> Float[np.ndarray, " queries"]:
    """Returns the share of each query's relevant passages (`relevant` of them, at least 1) among the first `k`."""
    return (grades[:, :k] > 0).sum(axis=1) / relevant


def reciprocal_rank(grades: Int[np.ndarray, "queries depth"], k: int) -> Float[np.ndarray, " queries"]:
    """Returns one over the rank of the first relevant passage among the first `k`; 0 without one."""
    hits = grades[:, :k] > 0
    return np.where(hits.any(axis=1), 1.0 / (1 + hits.argmax(axis=1)), 0.0)


def discounted_gain(
    grades: Int[np.ndarray, "queries depth"], judged: Sequence[Mapping[str, int]], k: int
) -> Float[np.ndarray, " queries"]:
    """Returns nDCG@k with gain = grade and discount log2(rank + 1) (Järvelin and Kekäläinen 2002, as in trec_eval)."""
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = grades_found([sorted(known, key=known.__getitem__, reverse=True) for known in judged], judged, k)
    return (grades[:, :k] @ discounts[: grades.shape[1]]) / (ideal @ discounts)


def retrieval_rows(
    retrieved: Sequence[Sequence[str]],
    judged: Sequence[Mapping[str, int]],
    languages: Sequence[str],
    *,
    method: str,
    model: str,
    dataset: str,
    split: str,
    cuts: Sequence[int] = (1, 3, 10, 100),
) -> list[Row]:
    """Returns the means of all metrics by language and over all queries.

    Queries without relevant passages are left out.

    Args:
      retrieved: Retrieved passage ids of each query, best first, at least as many as the largest cut.
      judged: Passage id -> grade (0: not relevant), for each query.
      languages: Language of each query.
      method, model, dataset, split: Labels of the rows; the model is the encoder.
      cuts: Depths of recall and reciprocal rank; nDCG is at 10.
    """
    asked = [row for row, known in enumerate(judged) if any(grade > 0 for grade in known.values())]
    if not asked:
        raise UserError(f"no query of {dataset}, {split} has a passage that was judged relevant: name other judgements")
    grades_of = [judged[row] for row in asked]
    grades = grades_found([retrieved[row] for row in asked], grades_of, max(*cuts, 10))
    relevant = np.array([sum(grade > 0 for grade in known.values()) for known in grades_of])
    values = {f"recall@{k}": recall(grades, relevant, k) for k in cuts}
    values |= {f"mrr@{k}": reciprocal_rank(grades, k) for k in cuts if k > 1}
    values["ndcg@10"] = discounted_gain(grades, grades_of, 10)
    codes = np.array([languages[row] for row in asked])
    groups = {language: codes == language for language in dict.fromkeys(codes.tolist())}
    if len(groups) > 1:
        groups["all"] = np.ones(len(asked), bool)
    return [
        Row(
            method=method,
            model=model,
            dataset=dataset,
            split=split,
            seed=0,
            language=language,
            metric=metric,
            value=float((chosen := per_query[members]).mean()),
            count=len(chosen),
            standard_error=float(chosen.std(ddof=1)) / math.sqrt(len(chosen)) if len(chosen) > 1 else math.nan,
        )
        for language, members in groups.items()
        for metric, per_query in values.items()
    ]

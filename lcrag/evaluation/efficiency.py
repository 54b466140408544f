"""What an answer's quality costs: performance per logarithm of the tokens sampled (GlobalRAG, equation 16)."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from lcrag.evaluation.rows import Row

EFFICIENCY = "score_per_log_token"
PARTS = ("squad_exact_match", "squad_f1", "sampled_tokens")


def score_per_log_token(exact_match: float, f1: float, tokens: float) -> float:
    """((EM + F1) / 2) / ln(tokens): GlobalRAG, equation 16, whose logarithm is natural in the published code.

    Args:
      exact_match: Mean exact match, in [0, 1].
      f1: Mean word F1, in [0, 1].
      tokens: Mean number of tokens sampled for a question; what searches showed is not sampled.

    Returns:
      The ratio; NaN for one token or fewer.
    """
    return (exact_match + f1) / 2 / math.log(tokens) if tokens > 1 else math.nan


def efficiency_rows(rows: Sequence[Row]) -> Iterator[Row]:
    """The ratio at every place of an inference run whose rows have all three means; its error is unknown."""
    found: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        if row.metric in PARTS:
            found.setdefault((row.dataset, row.split, row.language), {})[row.metric] = row
    for own in found.values():
        if len(own) == len(PARTS):
            value = score_per_log_token(*(own[metric].value for metric in PARTS))
            if not math.isnan(value):
                yield dataclasses.replace(own[PARTS[0]], metric=EFFICIENCY, value=value, standard_error=math.nan)

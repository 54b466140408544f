"""Per-episode indicators of policy collapse (LcRL, section 6.2): repetition, surprisal, wrong language."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from jaxtyping import Float

from lcrag.episodes import EpisodeRecord
from lcrag.episodes.prompts import answer_language
from lcrag.evaluation.answered import Answered
from lcrag.evaluation.correct_language import correct_language

REPEATED_TOKENS = 4


def repetition(records: Sequence[EpisodeRecord], size: int = REPEATED_TOKENS) -> Float[np.ndarray, " episodes"]:
    """Returns the share of the policy's token n-grams that repeat an earlier one of the episode, in [0, 1).

    1 - distinct / all, the seq-rep-n of Welleck et al. 2020 (arXiv:1908.04319, section 6), over n-grams within one
    stretch of the policy's tokens; 0 for an episode without any.
    """
    return np.array([_repeated_share(record, size) for record in records], float)


def _repeated_share(record: EpisodeRecord, size: int) -> float:
    if len(record.tokens) < size:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(record.tokens, size)
    own = windows[np.lib.stride_tricks.sliding_window_view(record.by_policy, size).all(axis=1)]
    return 1.0 - len(np.unique(own, axis=0)) / len(own) if len(own) else 0.0


def surprisal(records: Sequence[EpisodeRecord]) -> Float[np.ndarray, " episodes"]:
    """Returns the mean of -log p over the policy's tokens, in nats: a one-sample entropy estimate; NaN without any."""
    return _over_policy_tokens(records, np.mean)


def largest_surprisal(records: Sequence[EpisodeRecord]) -> Float[np.ndarray, " episodes"]:
    """Returns -log p of the policy's least likely token, in nats; NaN without tokens."""
    return _over_policy_tokens(records, np.max)


def _over_policy_tokens(
    records: Sequence[EpisodeRecord], statistic: Callable[[np.ndarray], float]
) -> Float[np.ndarray, " episodes"]:
    own = (-record.log_probabilities[record.by_policy] for record in records)
    return np.array([statistic(values) if len(values) else np.nan for values in own], float)


def wrong_language(records: Sequence[EpisodeRecord], languages: Collection[str]) -> Float[np.ndarray, " episodes"]:
    """Returns 1 for an answer in another language than the question asks for, else 0; NaN if `correct_language` is NaN.

    Args:
      records: Episodes.
      languages: All languages of the run, among which an answer's is identified.
    """
    answered = [
        Answered(
            question_id=record.question.id,
            dataset=record.question.dataset,
            language=answer_language(record.question),
            answer=record.outcome.answer,
            golds=record.question.answers,
        )
        for record in records
    ]
    return 1.0 - correct_language(answered, languages)

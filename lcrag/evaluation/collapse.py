"""Signs that a policy collapses, each a number per episode (LcRL, section 6.2: repetition, length, language)."""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Float

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord
from lcrag.episodes.prompts import answer_language
from lcrag.evaluation.answered import Answered
from lcrag.evaluation.correct_language import correct_language

REPEATED_TOKENS = 4


def repetition(records: Sequence[EpisodeRecord], size: int = REPEATED_TOKENS) -> Float[np.ndarray, " episodes"]:
    """Share of the policy's token n-grams that it has written before in the same episode, in [0, 1).

    1 - distinct / all, the seq-rep-n of Welleck et al. 2020 (arXiv:1908.04319, section 6), over n-grams that lie
    within one stretch of the policy's own tokens; 0 for an episode without any.
    """
    return np.array([_repeated_share(record, size) for record in records], float)


def _repeated_share(record: EpisodeRecord, size: int) -> float:
    if len(record.tokens) < size:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(record.tokens, size)
    own = windows[np.lib.stride_tricks.sliding_window_view(record.by_policy, size).all(axis=1)]
    return 1.0 - len(np.unique(own, axis=0)) / len(own) if len(own) else 0.0


def surprisal(records: Sequence[EpisodeRecord]) -> Float[np.ndarray, " episodes"]:
    """Mean of -log p over the policy's tokens, in nats: what one sample tells of its entropy; NaN without tokens."""
    own = [-record.log_probabilities[record.by_policy] for record in records]
    return np.array([values.mean() if len(values) else np.nan for values in own], float)


def largest_surprisal(records: Sequence[EpisodeRecord]) -> Float[np.ndarray, " episodes"]:
    """-log p of the policy's rarest token, in nats; NaN without tokens."""
    own = [-record.log_probabilities[record.by_policy] for record in records]
    return np.array([values.max() if len(values) else np.nan for values in own], float)


def wrong_language(records: Sequence[EpisodeRecord], languages: Collection[str]) -> Float[np.ndarray, " episodes"]:
    """1 where the answer is not in the language asked for, 0 where it is, NaN where that is not scored.

    Args:
      records: Episodes.
      languages: All languages of the run, among which an answer's is identified (see `correct_language`).
    """
    return 1.0 - correct_language([_answered(record.question, record.outcome.answer) for record in records], languages)


def _answered(question: Question, answer: str | None) -> Answered:
    return Answered(
        question_id=question.id,
        dataset=question.dataset,
        language=answer_language(question),
        answer=answer,
        golds=question.answers,
    )

"""Rewards of written texts: summaries, translations and instructions followed (Translate-R1, section 4.5).

Inexpensive heuristics come first (appendices B and L); then a judge scores the text, or chrF where there is no judge.
"""

import collections
import dataclasses
import html
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import sacrebleu
from jaxtyping import Bool, Float

from lcrag.rewards.domains.constraints import read_constraints, satisfied_share
from lcrag.rewards.domains.judging import FLUENCY, RETRIES, SUMMARISATION, TRANSLATION, Judge, judged, score_in

Scores: TypeAlias = Float[np.ndarray, " texts"]
LEAST_FLUENT = 0.5  # texts that the judge scores lower are not fluent
REPETITION_SIZE, MOST_REPETITION = 10, 0.3
LEAST_LENGTH, MOST_LENGTH = 0.2, 3.0
MOST_ECHO = 0.9
COPY_SIZE, MOST_COPIED = 20, 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """A text written by a policy.

    Attributes:
      question: The instruction, the article, or the text to translate.
      text: The policy's text; may be empty.
      golds: References.
      language: The required language.
      constraints: Those of an instruction; see `lcrag.rewards.domains.constraints`.
    """

    question: str
    text: str
    golds: tuple[str, ...] = ()
    language: str = "en"
    constraints: Any = None


def summarisation(written: Sequence[Written], judge: Judge | None = None, retries: int = RETRIES) -> Scores:
    """Returns the judge's scores in [0, 1], or chrF against the best reference where there is no judge.

    A summary scores 0 without either if it is empty, repeats itself, is copied from the article (over 90 % of its
    20-character pieces), or is shorter than a fifth or longer than three times every reference.

    Args:
      written: Summaries.
      judge: Scores them; None: chrF does.
      retries: Further requests where the judge gives no score.

    Returns:
      Scores; NaN where the judge gives none.
    """
    original = [copied_share(each.text, each.question) <= MOST_COPIED for each in written]
    return _graded(SUMMARISATION, written, np.array(original, bool), judge, retries)


def translation(written: Sequence[Written], judge: Judge | None = None, retries: int = RETRIES) -> Scores:
    """Scores translations like `summarisation`; one counts as copied if its chrF against the source exceeds 0.9."""
    original = [chrf(each.text, [each.question]) <= MOST_ECHO for each in written]
    return _graded(TRANSLATION, written, np.array(original, bool), judge, retries)


def instruction_following(written: Sequence[Written], judge: Judge | None = None, retries: int = RETRIES) -> Scores:
    """Returns the share of satisfied constraints, 0 for a text that is not fluent (Translate-R1, section 4.5).

    A text is not fluent if it is empty or repeats itself, or if the judge scores it below 0.5. A text that satisfies no
    constraint is not judged.

    Args:
      written: Texts with their constraints.
      judge: Scores fluency; None: every text that is not degenerate is fluent.
      retries: Further requests where the judge gives no score.

    Returns:
      Scores; NaN where the judge gives none.

    Raises:
      UserError: An instruction has no constraints, or an unknown one.
    """
    demanded = [read_constraints(each.constraints, repr(each.question[:60])) for each in written]
    shares = np.array([satisfied_share(each.text, own) for each, own in zip(written, demanded, strict=True)], float)
    scores = np.where([is_degenerate(each.text) for each in written], 0.0, shares)
    if judge is None:
        return scores
    fluency = _judged(FLUENCY, written, scores > 0, judge, retries)
    return scores * np.where(np.isnan(fluency), np.nan, fluency >= LEAST_FLUENT)


def _graded(
    prompt: str, written: Sequence[Written], original: Bool[np.ndarray, " texts"], judge: Judge | None, retries: int
) -> Scores:
    acceptable = original & np.array(
        [not is_degenerate(each.text) and has_plausible_length(each.text, each.golds) for each in written], bool
    )
    if judge is not None:
        return _judged(prompt, written, acceptable, judge, retries)
    return np.array(
        [chrf(each.text, each.golds) if good else 0.0 for each, good in zip(written, acceptable, strict=True)]
    )


def _judged(
    prompt: str, written: Sequence[Written], asked: Bool[np.ndarray, " texts"], judge: Judge, retries: int
) -> Scores:
    """Returns the judge's scores: 0 where it is not asked, NaN where it gives none."""
    places = np.flatnonzero(asked)
    answers = judged(judge, [_prompt(prompt, written[place]) for place in places.tolist()], score_in, retries)
    scores = np.zeros(len(written))
    scores[places] = [np.nan if score is None else score for score in answers]
    return scores


def _prompt(prompt: str, written: Written) -> str:
    """Returns the judge's prompt, with escaped fields that can neither close a tag nor contain a score."""
    fields = {"question": written.question, "answer": written.text, "reference": next(iter(written.golds), "")}
    return prompt.format(language=written.language, **{name: html.escape(text, False) for name, text in fields.items()})


def repetition_ratio(text: str, size: int = REPETITION_SIZE) -> float:
    """Returns the share of a text's character n-grams that repeat an earlier one, in [0, 1); 0 without n-grams."""
    grams = _grams(text, size)
    return 1 - len(grams) / total if (total := grams.total()) else 0.0


def copied_share(text: str, source: str, size: int = COPY_SIZE) -> float:
    """Returns the share of a text's character n-grams that occur in its source; 0 without n-grams."""
    grams, known = _grams(text, size), _grams(source, size)
    copied = sum(count for gram, count in grams.items() if gram in known)
    return copied / total if (total := grams.total()) else 0.0


def length_ratio(text: str, reference: str) -> float:
    """Returns the length of a text divided by its reference's, in characters; infinite for an empty reference."""
    length = len(" ".join(reference.split()))
    return len(" ".join(text.split())) / length if length else float("inf")


def chrf(text: str, references: Sequence[str]) -> float:
    """Returns sacreBLEU's chrF2 (character 6-grams, no words) against the best reference, in [0, 1]."""
    return sacrebleu.sentence_chrf(text, list(references)).score / 100


def is_degenerate(text: str) -> bool:
    """Whether a text is empty or repeats itself."""
    return not text.strip() or repetition_ratio(text) > MOST_REPETITION


def has_plausible_length(text: str, references: Sequence[str]) -> bool:
    """Whether a text is between a fifth and three times as long as one of its references."""
    return any(LEAST_LENGTH <= length_ratio(text, reference) <= MOST_LENGTH for reference in references)


def _grams(text: str, size: int) -> collections.Counter[str]:
    text = " ".join(text.split())
    return collections.Counter(text[place : place + size] for place in range(len(text) - size + 1))

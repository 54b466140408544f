"""Summarisation, translation and instruction following: heuristics first, then a judge, chrF where there is none."""

import dataclasses
import html
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from lcrag.rewards.domains import prompts
from lcrag.rewards.domains.constraints import read_constraints, satisfied_share
from lcrag.rewards.domains.heuristics import (
    MOST_COPIED,
    MOST_ECHO,
    chrf,
    copied_share,
    has_plausible_length,
    is_degenerate,
)
from lcrag.rewards.domains.judging import RETRIES, Judge, judged, score_in

Scores: TypeAlias = Float[np.ndarray, " texts"]
LEAST_FLUENT = 0.5  # a text that a judge scores below is not fluent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """A text that a policy wrote.

    Attributes:
      question: What it was asked: the instruction, the article, or the text to translate.
      text: What it wrote, empty for nothing.
      golds: References.
      language: The language it was wanted in.
      constraints: What an instruction demands; see `lcrag.rewards.domains.constraints`.
    """

    question: str
    text: str
    golds: tuple[str, ...] = ()
    language: str = "en"
    constraints: Any = None


def summarisation(written: Sequence[Written], judge: Judge | None = None, retries: int = RETRIES) -> Scores:
    """A judge's score in [0, 1], chrF against the best reference where there is no judge.

    0 without either for a summary that is empty, goes in circles, is copied from the article (over 90 % of its
    20-character pieces stand there), or is under a fifth or over three times as long as every reference.

    Args:
      written: Summaries.
      judge: Whom to ask.
      retries: How often a judge is asked again.

    Returns:
      Scores; NaN where the judge says none.
    """
    original = [copied_share(each.text, each.question) <= MOST_COPIED for each in written]
    return _graded(prompts.SUMMARISATION, written, np.array(original, bool), judge, retries)


def translation(written: Sequence[Written], judge: Judge | None = None, retries: int = RETRIES) -> Scores:
    """As `summarisation`; a translation is copied where its chrF against the source is over 0.9."""
    original = [chrf(each.text, [each.question]) <= MOST_ECHO for each in written]
    return _graded(prompts.TRANSLATION, written, np.array(original, bool), judge, retries)


def instruction_following(written: Sequence[Written], judge: Judge | None = None, retries: int = RETRIES) -> Scores:
    """The share of satisfied constraints, 0 for a text that is not fluent (Translate-R1, section 4.5).

    A text is not fluent if it is empty or goes in circles, or if the judge scores it below 0.5; a text that satisfies
    nothing is not judged.

    Args:
      written: Texts with their constraints.
      judge: Of fluency; None: every text that is not degenerate is fluent.
      retries: How often a judge is asked again.

    Returns:
      Scores; NaN where the judge says none.

    Raises:
      UserError: an instruction without constraints, or with one that is not known.
    """
    demanded = [read_constraints(each.constraints, repr(each.question[:60])) for each in written]
    shares = np.array([satisfied_share(each.text, own) for each, own in zip(written, demanded, strict=True)], float)
    scores = np.where([is_degenerate(each.text) for each in written], 0.0, shares)
    if judge is None:
        return scores
    fluency = _judged(prompts.FLUENCY, written, scores > 0, judge, retries)
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
    """The judge's scores, 0 where it is not asked, NaN where it says none."""
    places = np.flatnonzero(asked)
    said = judged(judge, [_prompt(prompt, written[place]) for place in places.tolist()], score_in, retries)
    scores = np.zeros(len(written))
    scores[places] = [np.nan if score is None else score for score in said]
    return scores


def _prompt(prompt: str, written: Written) -> str:
    """The judge's prompt; what the policy or the data wrote cannot close a tag in it, nor name a score."""
    fields = {"question": written.question, "answer": written.text, "reference": next(iter(written.golds), "")}
    return prompt.format(language=written.language, **{name: html.escape(text, False) for name, text in fields.items()})

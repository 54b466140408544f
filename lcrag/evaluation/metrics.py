"""Metrics per question, their means as rows of `evaluation.json`, and paired differences of two systems."""

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Float

from lcrag import rewards
from lcrag.evaluation.answered import Answered, Row, slices, split_name
from lcrag.evaluation.correct_language import correct_language
from lcrag.evaluation.significance import Estimate, clustered_standard_error, paired_difference

METRIC_NAMES = {
    "c3_recall": "c3 recall",
    "c3_recall_bergen": "c3 recall (BERGEN)",
    "flexible_exact_match": "fEM",
    "exact_match": "EM",
    "squad_exact_match": "EM (SQuAD)",
    "squad_f1": "F1 (SQuAD)",
    "squad_accuracy": "accuracy (SQuAD)",
    "correct_language": "correct language",
    "searches": "searches",
    "retrieval_rounds": "retrieval rounds",
    "seconds_per_question": "seconds a question",
    "sampled_tokens": "sampled tokens",
    "total_tokens": "tokens in all",
    "score_per_log_token": "score per log token",
    "failures_without_passage": "failures without a passage",
    "plan_diversity": "distinct plans",
    "reward": "reward",
    "tool_rate": "tool rate",
    "tool_calls": "tool calls",
    "answered": "answered",
    "failed": "failed episodes",
    "unscored": "not judged",
}
EFFICIENCY = "score_per_log_token"
EFFICIENCY_INPUTS = ("squad_exact_match", "squad_f1", "total_tokens")
# Metrics that score only some answers: rows and tables give the number, and the value is missing if it is 0.
COUNTED = ("correct_language",)

Place = tuple[str, str]
"""(split, language) as in a row."""


def question_metrics(
    answered: Sequence[Answered], languages: Collection[str] = ()
) -> dict[str, Float[np.ndarray, " questions"]]:
    """Scores each question by every metric; NaN where a metric does not score it.

    Args:
      answered: Answered questions.
      languages: The languages of the run, from which the language of an answer is identified.

    Returns:
      `c3_recall`, `c3_recall_bergen` (the c3 recall of LcRL's tables, section 4.1), `flexible_exact_match` and
      `exact_match` (0 without an answer). The metrics of the English benchmarks, with SQuAD's normalisation:
      `squad_exact_match`, `squad_f1` ("yes" and "no" count as a whole only, as in HotpotQA's script) and
      `squad_accuracy` (the answer contains a gold). `correct_language` (see there), `searches`, `retrieval_rounds`,
      `sampled_tokens`, `total_tokens` (prompts and observations too), `reward`, `tool_calls`, `tool_rate` (1 if the
      tool was called), `answered` (1 if there is an answer) and, where some episode failed or was not judged, `failed`
      and `unscored`; all others are NaN for a failed episode. `failures_without_passage` (GlobalRAG, appendix B): 1
      for a wrong answer (exact match below 1) without any retrieved passage that contains a gold, else 0; NaN for
      right answers, and for all of a method that never searched.
    """
    answers, golds = [question.answer for question in answered], [question.golds for question in answered]

    def field(name: str) -> Float[np.ndarray, " questions"]:
        return np.array([getattr(question, name) for question in answered], float)  # None becomes NaN

    right, calls, failed = rewards.squad_exact_match(answers, golds), field("tool_calls"), field("failed") > 0
    searched = any(question.searches for question in answered)
    metrics = {
        "c3_recall": rewards.c3_recall(answers, golds),
        "c3_recall_bergen": rewards.c3_recall_bergen(answers, golds),
        "flexible_exact_match": rewards.flexible_exact_match(answers, golds),
        "exact_match": rewards.exact_match(answers, golds),
        "squad_exact_match": right,
        "squad_f1": rewards.token_f1(answers, golds, rewards.VERDICTS),
        "squad_accuracy": rewards.squad_accuracy(answers, golds),
        "correct_language": correct_language(answered, languages),
        **{name: field(name) for name in ("searches", "retrieval_rounds", "sampled_tokens", "total_tokens")},
        "failures_without_passage": np.where((right < 1) & searched, 1.0 - field("answer_retrieved"), np.nan),
        "reward": field("reward"),
        "tool_rate": np.where(np.isnan(calls), np.nan, calls > 0),
        "tool_calls": calls,
        "answered": np.array([bool((answer or "").strip()) for answer in answers], float),
    }
    failures = {name: field(name) for name in ("failed", "unscored")}
    return {
        **{name: np.where(failed, np.nan, values) for name, values in metrics.items()},
        **{name: values if values.any() else np.full(len(values), np.nan) for name, values in failures.items()},
    }


def score_per_log_token(exact_match: float, f1: float, tokens: float) -> float:
    """Returns ((EM + F1) / 2) / ln(tokens), GlobalRAG's equation 16; its published code uses the natural logarithm.

    Args:
      exact_match: Mean exact match in [0, 1].
      f1: Mean F1 in [0, 1].
      tokens: Mean number of tokens per question, sampled and not ("total token usage per query"); the result is NaN for
        1 or fewer.
    """
    return (exact_match + f1) / 2 / math.log(tokens) if tokens > 1 else math.nan


def evaluate(
    answered: Sequence[Answered],
    *,
    method: str,
    model: str,
    split: str,
    seed: int | str,
    seen_languages: Collection[str],
    languages: Collection[str] = (),
) -> list[Row]:
    """Returns the mean of every metric by language, over all, seen and zero-shot languages, and by subset.

    A metric that scores no question has no row, except for the metrics `COUNTED`, whose row has the value NaN and the
    count 0. Standard errors treat questions as a random sample and the language versions of a question as one cluster.

    Args:
      answered: Answered questions, of one or several data sets.
      method, model, split, seed: Labels of the rows; a subset's rows have the split "held_out/native_missing".
      seen_languages: Languages of the training data; the others are zero-shot.
      languages: All languages of the run.
    """
    labels = {"method": method, "model": model, "seed": seed}
    rows: list[Row] = []
    for dataset in dict.fromkeys(question.dataset for question in answered):
        asked = [question for question in answered if question.dataset == dataset]
        values, clusters = question_metrics(asked, languages), np.array([question.cluster for question in asked])
        for subset, language, chosen in slices(asked, seen_languages):
            place = {"dataset": dataset, "split": split_name(split, subset), "language": language}
            for metric, scores in values.items():
                scored = chosen & ~np.isnan(scores)
                count = int(scored.sum())
                if count or metric in COUNTED:
                    mean, error = clustered_standard_error(scores[scored], clusters[scored])
                    rows.append(Row(**labels, **place, metric=metric, value=mean, standard_error=error, count=count))  # type: ignore[arg-type]
    # The score per log token is a function of three means, without a standard error.
    inputs: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        if row.metric in EFFICIENCY_INPUTS:
            inputs.setdefault((row.dataset, row.split, row.language), {})[row.metric] = row
    for known in inputs.values():
        if len(known) == len(EFFICIENCY_INPUTS):
            value = score_per_log_token(*(known[metric].value for metric in EFFICIENCY_INPUTS))
            if not math.isnan(value):
                first = known[EFFICIENCY_INPUTS[0]]
                rows.append(dataclasses.replace(first, metric=EFFICIENCY, value=value, standard_error=math.nan))
    return rows


def compare(
    before: Sequence[Answered],
    after: Sequence[Answered],
    *,
    split: str,
    seen_languages: Collection[str],
    languages: Collection[str] = (),
) -> dict[tuple[Place, str], Estimate]:
    """Returns after minus before for every (place, metric) with at least two questions scored on both sides.

    Intervals are over questions. The answers may be in any order; see `evaluate` for the other arguments.

    Raises:
      ValueError: the two systems did not answer the same questions.
    """

    def key(question: Answered) -> tuple[str, str]:
        return question.cluster, question.language

    before, after = sorted(before, key=key), sorted(after, key=key)
    if list(map(key, before)) != list(map(key, after)):
        raise ValueError("before and after answer different questions: evaluate both on the same split and sample")
    old_scores, new_scores = question_metrics(before, languages), question_metrics(after, languages)
    clusters = np.array([question.cluster for question in before])
    differences = {}
    for subset, language, chosen in slices(before, seen_languages):
        for metric, new in new_scores.items():
            old = old_scores[metric]
            both = chosen & ~np.isnan(new) & ~np.isnan(old)
            if len(np.unique(clusters[both])) > 1:
                place = split_name(split, subset), language
                differences[place, metric] = paired_difference(new[both], old[both], clusters[both])
    return differences

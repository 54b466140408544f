"""Every metric of every question, and their means with standard errors as rows of `evaluation.json`."""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Float

from lcrag import rewards
from lcrag.evaluation.answered import Answered
from lcrag.evaluation.correct_language import correct_language
from lcrag.evaluation.efficiency import efficiency_rows
from lcrag.evaluation.rows import Row
from lcrag.evaluation.significance import clustered_standard_error
from lcrag.evaluation.slices import slices, split_name


def question_metrics(
    answered: Sequence[Answered], languages: Collection[str] = ()
) -> dict[str, Float[np.ndarray, " questions"]]:
    """Scores each question by every metric; NaN where a metric does not score it.

    Args:
      answered: Answered questions.
      languages: The languages of the run, among which the answer's language is identified.

    Returns:
      `c3_recall`, `c3_recall_bergen`, `flexible_exact_match`, `exact_match` (of no answer: 0); the English benchmarks'
      own, after SQuAD's normalisation: `squad_exact_match`, `squad_f1` (where "yes" and "no" are right as a whole only,
      as in HotpotQA's script) and `squad_accuracy` (a gold is contained in the answer); `correct_language` (its rule:
      `correct_language`), `searches`, `retrieval_rounds`, `sampled_tokens`, `failures_without_passage` (see
      `failures_without_passage`), `reward` and `tool_calls` as they were noted, `tool_rate` (1 if the tool was called)
      and `answered` (1 if there is an answer).
    """
    answers, golds = [question.answer for question in answered], [question.golds for question in answered]
    right = rewards.squad_exact_match(answers, golds)
    calls = np.array([question.tool_calls for question in answered], float)  # None becomes NaN
    return {
        "c3_recall": rewards.c3_recall(answers, golds),
        "c3_recall_bergen": rewards.c3_recall_bergen(answers, golds),
        "flexible_exact_match": rewards.flexible_exact_match(answers, golds),
        "exact_match": rewards.exact_match(answers, golds),
        "squad_exact_match": right,
        "squad_f1": rewards.token_f1(answers, golds, rewards.VERDICTS),
        "squad_accuracy": rewards.squad_accuracy(answers, golds),
        "correct_language": correct_language(answered, languages),
        "searches": np.array([question.searches for question in answered], float),
        "retrieval_rounds": np.array([question.retrieval_rounds for question in answered], float),
        "sampled_tokens": np.array([question.sampled_tokens for question in answered], float),
        "failures_without_passage": failures_without_passage(answered, right),
        "reward": np.array([question.reward for question in answered], float),
        "tool_rate": np.where(np.isnan(calls), np.nan, calls > 0),
        "tool_calls": calls,
        "answered": np.array([bool((answer or "").strip()) for answer in answers], float),
    }


def failures_without_passage(
    answered: Sequence[Answered], right: Float[np.ndarray, " questions"]
) -> Float[np.ndarray, " questions"]:
    """1 for a wrong answer where no retrieved passage held a golden one, 0 where one did (GlobalRAG, appendix B).

    NaN for a right answer, and of a method that never searched.

    Args:
      answered: Answered questions.
      right: Their exact match; what is below 1 is a failure.
    """
    held = np.array([question.answer_retrieved for question in answered], float)  # None becomes NaN
    searched = any(question.searches for question in answered)
    return np.where((right < 1) & searched, 1.0 - held, np.nan)


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
    """Means of every metric: by language, over all, seen and zero-shot languages, and by subset.

    Args:
      answered: Answered questions, of one or several data sets.
      method: What produced them, e.g. "LcRL".
      model: The policy, e.g. "atlas-tiny".
      split: e.g. "held_out"; a subset's rows have the split "held_out/native_missing".
      seed: The seed of this inference run, or what tells it from others.
      seen_languages: Languages of the training data; the others are zero-shot.
      languages: All languages of the run.

    Returns:
      Rows in reading order, those of `efficiency_rows` behind the others. A standard error is that of a mean over
      questions drawn at random, all language versions of a question together.
    """
    rows: list[Row] = []
    for dataset in dict.fromkeys(question.dataset for question in answered):
        own = [question for question in answered if question.dataset == dataset]
        values, clusters = question_metrics(own, languages), np.array([question.cluster for question in own])
        for subset, language, chosen in slices(own, seen_languages):
            for metric, scores in values.items():
                scored = chosen & ~np.isnan(scores)
                if scored.any():
                    mean, error = clustered_standard_error(scores[scored], clusters[scored])
                    rows.append(
                        Row(
                            method=method,
                            model=model,
                            dataset=dataset,
                            split=split_name(split, subset),
                            language=language,
                            metric=metric,
                            value=mean,
                            standard_error=error,
                            count=int(scored.sum()),
                            seed=seed,
                        )
                    )
    return [*rows, *efficiency_rows(rows)]

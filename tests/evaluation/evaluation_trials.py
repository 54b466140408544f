"""Answered questions and trials written by hand."""

from lcrag.evaluation import Answered
from lcrag.evaluation.scoreboard import Trial


def asked(number=0, language="en", answer="Helsinki", golds=("Helsinki",), dataset="toy", **fields):
    """An answered question, right unless another answer is given."""
    return Answered(
        question_id=str(number), language=language, answer=answer, golds=golds, dataset=dataset, **fields
    )  # fmt: skip


def trial(
    method,
    right,
    *,
    languages=("en", "fi"),
    run=None,
    seen=("en",),
    point=None,
    seed=None,
    dataset="toy",
    model="m",
    **fields,
):
    """A trial whose question i in language l is right where `right[l][i]` is 1; odd ones are in the subset "odd"."""
    answered = tuple(
        asked(
            number,
            language,
            "Helsinki" if score else "Oslo",
            dataset=dataset,
            searches=number,
            subsets=("odd",) if number % 2 else (),
            **fields,
        )
        for language in languages
        for number, score in enumerate(right[language])
    )
    return Trial.of(
        answered, method=method, model=model, dataset=dataset, split="held_out", decoding="greedy", run=run or method,
        seen_languages=seen, point=point, seed=seed,
    )  # fmt: skip

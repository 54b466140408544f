"""Trials written by hand: which questions are right, system by system."""

from lcrag.evaluation import Answered
from lcrag.evaluation.scoreboard import Trial


def trial(method, right, *, languages=("en", "fi"), run=None, seen=("en",), point=None, dataset="toy", model="m"):
    """A trial whose question i in language l is right where `right[l][i]` is 1; odd ones are in the subset "odd"."""
    answered = tuple(
        Answered(
            question_id=str(number),
            dataset=dataset,
            language=language,
            answer="Helsinki" if score else "Oslo",
            golds=("Helsinki",),
            searches=number,
            subsets=("odd",) if number % 2 else (),
        )
        for language in languages
        for number, score in enumerate(right[language])
    )
    return Trial(
        method=method, model=model, dataset=dataset, split="held_out", decoding="greedy", run=run or method,
        seen_languages=seen, answered=answered, point=point,
    )  # fmt: skip

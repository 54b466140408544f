"""Answered questions and trials written by hand."""

from lcrag.evaluation import Answered
from lcrag.evaluation.scoreboard import Trial


def asked(number=0, language="en", answer="Helsinki", golds=("Helsinki",), dataset="toy", **fields):
    """An answered question, right unless another answer is given."""
    about = dict(question_id=str(number), language=language, answer=answer, golds=golds, dataset=dataset)
    return Answered(**about, **fields)


def trial(method, right, *, languages=("en", "fi"), run=None, seen=("en",), dataset="toy", model="m", point=None,
          seed=None, **fields):  # fmt: skip
    """A trial whose question i in language l is right where `right[l][i]` is 1; odd ones are in the subset "odd"."""
    answered = []
    for language in languages:
        for number, score in enumerate(right[language]):
            about = fields | dict(searches=number, subsets=("odd",) if number % 2 else ())
            answered.append(asked(number, language, "Helsinki" if score else "Oslo", dataset=dataset, **about))
    labels = dict(method=method, model=model, dataset=dataset, split="held_out", decoding="greedy", point=point)
    return Trial.of(answered, run=run or method, seen_languages=seen, seed=seed, **labels)

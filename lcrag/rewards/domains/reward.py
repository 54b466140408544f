"""Rewards episodes by the domain of their question (Translate-R1, section 4.5)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from lcrag.errors import UserError, typed
from lcrag.rewards.domains.constraints import read_constraints
from lcrag.rewards.domains.exact_answers import mathematics, multiple_choice
from lcrag.rewards.domains.written_texts import (
    RETRIES,
    Judge,
    Scores,
    Written,
    instruction_following,
    summarisation,
    translation,
)
from lcrag.rewards.terms import Episodes, Term, TermSum, Values

Scorer: TypeAlias = Callable[[Sequence[Written], Judge | None, int], Scores]

SCORERS: Mapping[str, Scorer] = {
    "mathematics": lambda written, *_: mathematics([each.text for each in written], [each.golds for each in written]),
    "multiple_choice": lambda written, *_: multiple_choice(
        [each.text for each in written], [each.golds for each in written]
    ),
    "instruction_following": instruction_following,
    "summarisation": summarisation,
    "translation": translation,
}


@typed
def domain_reward(judge: Judge | None = None, retries: int = RETRIES) -> TermSum:
    """Returns Translate-R1's task reward: each episode is scored by the domain of its question, in [0, 1].

    Args:
      judge: Scores summaries, translations and the fluency of answers to instructions; None: chrF for the first two,
        heuristics for fluency.
      retries: Further requests where the judge gives no score; an episode that it never scores has the reward NaN.

    Returns:
      A reward that names "total" and "domain" (the total before any adjustment). It rejects questions without a domain
      and instructions without constraints.
    """
    if retries < 0:
        raise UserError(f"domain_reward.retries is {retries}: set it to 0 or more")

    def score(episodes: Episodes) -> Values:
        pairs = zip(episodes.questions, episodes.known, strict=True)
        domains = [_domain(repr(question[:60]), known) for question, known in pairs]
        scores = np.zeros(len(episodes.answers))
        for domain in dict.fromkeys(domains):
            places = [place for place, other in enumerate(domains) if other == domain]
            written = [
                Written(
                    question=episodes.questions[place],
                    text=episodes.answers[place] or "",
                    golds=tuple(episodes.golds[place]),
                    language=episodes.languages[place],
                    constraints=episodes.known[place].get("constraints"),
                )
                for place in places
            ]
            scores[places] = SCORERS[domain](written, judge, retries)
        return scores

    def check(name: str, known: Mapping[str, Any]) -> None:
        if _domain(name, known) == "instruction_following":
            read_constraints(known.get("constraints"), name)

    models = {} if judge is None else {"judge": judge}
    return TermSum(terms=(Term("domain", score),), models=models, checks=(check,))


def _domain(name: str, known: Mapping[str, Any]) -> str:
    domain = known.get("domain", "")
    if domain not in SCORERS:
        problem = f"has the unknown domain {domain!r}" if domain else "has no domain"
        raise UserError(
            f"the question {name} {problem}, which domain_reward needs: set its extra.domain to one of"
            f" {', '.join(SCORERS)}"
        )
    return domain

"""Tiers of languages by their number of digital speakers, and their shares of the data (Translate-R1, section 3)."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import gin

from lcrag.data.batches import seeded_order
from lcrag.data.questions import Question
from lcrag.errors import UserError, typed

# Tier -> its languages (table 1; the constructed ones: section 3.4; the held-out ones: section 6.6).
TIERS: Mapping[str, tuple[str, ...]] = {
    "high": ("en", "ar", "zh", "fr", "ja", "ru"),
    "low": ("am", "ay", "gn", "ha", "rw", "lg", "qu", "so", "ug", "wo", "yo", "zu"),
    "xlow": ("bm", "ee", "ln", "tw"),
    "synthetic": ("qki", "qto"),
}
HELD_OUT_TIERS: Mapping[str, tuple[str, ...]] = {
    "held_out_high": ("hi", "tr", "ko"),
    "held_out_low": ("ig", "sn", "st", "om", "tn", "mi"),
}
ALL_TIERS: Mapping[str, tuple[str, ...]] = {**TIERS, **HELD_OUT_TIERS}

# Tier -> training questions of a language in a domain (appendix L; of the constructed ones: section 3.4).
QUOTAS: Mapping[str, float] = {"high": 610, "low": 4880, "xlow": 3660, "synthetic": 2000}


def tier_of(language: str, tiers: Mapping[str, Sequence[str]] = ALL_TIERS) -> str:
    """Returns the tier of a language."""
    for tier, languages in tiers.items():
        if language in languages:
            return tier
    raise UserError(
        f"the language {language!r} is in no tier of {', '.join(tiers)}: name its tier, or leave its questions out"
    )


def with_tiers(questions: Iterable[Question], tiers: Mapping[str, Sequence[str]] = ALL_TIERS) -> list[Question]:
    """Returns the questions with the tier of their language in `extra`."""
    return [
        dataclasses.replace(question, extra=question.extra | {"tier": tier_of(question.language, tiers)})
        for question in questions
    ]


def inverse_resource_rates(
    languages: Iterable[str],
    weights: Mapping[str, float] = QUOTAS,
    tiers: Mapping[str, Sequence[str]] = ALL_TIERS,
) -> dict[str, float]:
    """Returns language -> its rate in a seqio mixture: the weight of its tier."""
    return {language: _weight(tier_of(language, tiers), weights) for language in languages}


def _weight(tier: str, weights: Mapping[str, float]) -> float:
    if weights.get(tier, 0.0) <= 0:
        named = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        raise UserError(f"the tier {tier!r} has no weight above 0 ({named}): give it one, or leave its languages out")
    return weights[tier]


@gin.configurable
@typed
def tiered_questions(
    questions: Sequence[Question],
    languages_of_tiers: Mapping[str, Sequence[str]] = ALL_TIERS,
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
) -> list[Question]:
    """Adds a tier to each question and, given weights, takes as many as possible in proportion to them.

    With weights, returns the largest subset in which the languages of every domain are in proportion to their tiers'
    weights. The choice depends on seed and ids: of two languages with the same questions, the one with less weight
    keeps a subset. Questions are never repeated, so a language with too few questions reduces the others.

    Args:
      weights: Tier -> weight of each of its languages within each domain.
    """
    questions = with_tiers(questions, languages_of_tiers)
    if weights is None:
        return questions
    cells: dict[str, dict[str, list[Question]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for question in questions:
        cells[question.domain][question.language].append(question)
    kept: set[tuple[str, str, str]] = set()
    for domain, languages in cells.items():
        weight = {language: _weight(cell[0].tier, weights) for language, cell in languages.items()}
        scale = min(len(cell) / weight[language] for language, cell in languages.items())
        for language, cell in languages.items():
            order = seeded_order((question.coupling for question in cell), seed)
            kept |= {(domain, language, name) for name in order[: max(1, round(scale * weight[language]))]}
    return [q for q in questions if (q.domain, q.language, q.coupling) in kept]

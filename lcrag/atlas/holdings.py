"""What each language's collection holds: some facts are missing there, some are outdated."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from lcrag.atlas.facts import Fact

CURRENCY_LIKE = ("currency", "currency_code", "currency_year")  # relations of which CLDR knows former values
OUTDATED_SHARE = 0.12  # of the currency-like passages


@dataclasses.dataclass(frozen=True)
class Holdings:
    """State of each fact in each language's collection.

    Attributes:
      current: Ids of the facts it holds as they are, by language.
      outdated: Ids of the facts it gives as they were before, by language.
    """

    current: Mapping[str, frozenset[str]]
    outdated: Mapping[str, frozenset[str]]


def draw_holdings(facts: Sequence[Fact], seed: int, coverage: Mapping[str, float], outdated_share: float) -> Holdings:
    """Draws for every fact and language whether the collection has a passage on it, and whether it is outdated.

    A fact missing everywhere (a draw in 10^5) is given to English.
    """
    generator = np.random.default_rng([seed, 3])
    languages = tuple(coverage)
    nominal = np.array([coverage[language] for language in languages])
    held = generator.random((len(facts), len(languages))) < nominal
    held[~held.any(axis=1), 0] = True
    currency_like = sum(fact.relation in CURRENCY_LIKE for fact in facts)
    datable = np.array([fact.relation in CURRENCY_LIKE and fact.outdated is not None for fact in facts])
    rate = min(1.0, outdated_share * currency_like / max(1, int(datable.sum())))
    outdated = held & datable[:, None] & (generator.random(held.shape) < rate)

    def ids(mask: np.ndarray) -> dict[str, frozenset[str]]:
        return {
            language: frozenset(fact.id for fact, chosen in zip(facts, mask[:, column], strict=True) if chosen)
            for column, language in enumerate(languages)
        }

    return Holdings(current=ids(held & ~outdated), outdated=ids(outdated))

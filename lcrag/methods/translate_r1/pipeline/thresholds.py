"""The numbers at which a translation is removed."""

import dataclasses

from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.domains import TRANSLATION, Domain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thresholds:
    """What the stages compare with (Translate-R1, Appendix L).

    Attributes:
      natural_language: Least share of a source that is natural language.
      characters: A source has fewer characters than this.
      repetition: Highest repetition ratio of a translation's 10-grams of characters.
      least_length: Least ratio of a translation's length to its source's, in characters.
      most_length: Highest such ratio.
      copy: Highest chrF of a translation to its source.
      round_trip: Least chrF of a back-translation to the source.
      round_trip_texts: The same for the domain `translation`, whose short texts vary more.
    """

    natural_language: float = 0.8
    characters: int = 2000
    repetition: float = 0.3
    least_length: float = 0.2
    most_length: float = 3.0
    copy: float = 0.9
    round_trip: float = 0.4
    round_trip_texts: float = 0.35

    def __post_init__(self):
        for name in ("natural_language", "repetition", "copy", "round_trip", "round_trip_texts"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"Thresholds.{name} is {getattr(self, name):g}: give a value between 0 and 1")
        if not 0 <= self.least_length < self.most_length:
            raise UserError(
                f"Thresholds.least_length is {self.least_length:g} and most_length {self.most_length:g}: no length is"
                " between them"
            )

    def least_round_trip(self, domain: Domain) -> float:
        """Least chrF of a back-translation to its source in a domain."""
        return self.round_trip_texts if domain is TRANSLATION else self.round_trip

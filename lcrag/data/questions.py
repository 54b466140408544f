"""Questions, as every data set gives them, and the domains that they belong to."""

import dataclasses
from typing import Any

MATHEMATICS = "mathematics"
MULTIPLE_CHOICE = "multiple_choice"
INSTRUCTION_FOLLOWING = "instruction_following"
SUMMARISATION = "summarisation"
TRANSLATION = "translation"
DOMAINS: tuple[str, ...] = (MATHEMATICS, MULTIPLE_CHOICE, INSTRUCTION_FOLLOWING, SUMMARISATION, TRANSLATION)


QUESTION_MARKS = ("?", "？", "؟", ";", "\u037e")  # the last two are Greek


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One question in one language.

    Attributes:
      id: Stable id, the same in every language version of the question.
      dataset: Name of the data set, e.g. "atlas".
      language: ISO 639-1 code of the language it is asked, and to be answered, in.
      text: The question.
      answers: Golden answers, aliases included, in `language`.
      extra: What one method needs and others do not: golden plan, domain, tier, kind, whether
        the native collection holds the fact.
    """

    id: str
    dataset: str
    language: str
    text: str
    answers: tuple[str, ...]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def coupling(self) -> str:
        """Names the question across languages: what LcRL's coupled groups share."""
        return f"{self.dataset}/{self.id}"

    @property
    def key(self) -> str:
        """Names the question in its language."""
        return f"{self.coupling}/{self.language}"

    @property
    def domain(self) -> str:
        """How it is answered and judged, one of `lcrag.data.questions.DOMAINS`; empty where there is one way only."""
        return self.extra.get("domain", "")

    @property
    def tier(self) -> str:
        """The tier of its language, a key of `lcrag.data.tiers.ALL_TIERS` or a name of one's own; empty: none."""
        return self.extra.get("tier", "")


def with_question_mark(text: str) -> str:
    """Appends `?` unless the text already ends with a question mark of some script (LcRL's MKQA preprocessing)."""
    text = text.strip()
    return text if text.endswith(QUESTION_MARKS) else text + "?"

"""The `Question` value that every data set produces, and the task domains."""

import dataclasses
import re
import unicodedata
from typing import Any

MATHEMATICS = "mathematics"
MULTIPLE_CHOICE = "multiple_choice"
INSTRUCTION_FOLLOWING = "instruction_following"
SUMMARISATION = "summarisation"
TRANSLATION = "translation"
DOMAINS: tuple[str, ...] = (MATHEMATICS, MULTIPLE_CHOICE, INSTRUCTION_FOLLOWING, SUMMARISATION, TRANSLATION)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")  # all of ASCII except white space
QUESTION_MARKS = ("?", "？", "؟", ";", "\u037e")  # the last two are Greek


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One question in one language.

    Attributes:
      id: Stable id, the same in every language version of the question.
      dataset: Name of the data set, e.g. "atlas".
      language: ISO 639-1 code of the language of question and answers.
      text: The question.
      answers: Golden answers in `language`, aliases included.
      extra: Data for single methods: golden plan, domain, tier, kind, whether the native collection holds the fact.
    """

    id: str
    dataset: str
    language: str
    text: str
    answers: tuple[str, ...]
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def coupling(self) -> str:
        """Key of the question across languages, shared by LcRL's coupled groups."""
        return f"{self.dataset}/{self.id}"

    @property
    def key(self) -> str:
        """Key of the question in its language."""
        return f"{self.coupling}/{self.language}"

    @property
    def domain(self) -> str:
        """Its task domain, one of `lcrag.data.questions.DOMAINS`; empty for plain question answering."""
        return self.extra.get("domain", "")

    @property
    def tier(self) -> str:
        """The tier of its language, a key of `lcrag.data.tiers.ALL_TIERS` or user-defined; empty: none."""
        return self.extra.get("tier", "")


def fault_of(text: str) -> str:
    """Returns why a text cannot be a question or an answer, as a predicate for a message; empty if it can."""
    if control := _CONTROL.search(text):
        return f"holds the control character U+{ord(control[0]):04X}"
    if not any(unicodedata.category(character)[0] in "LNPS" for character in text):
        return "has no visible character"
    return ""


def with_question_mark(text: str) -> str:
    """Appends `?` unless the text ends with a question mark of some script (LcRL's MKQA preprocessing)."""
    text = text.strip()
    return text if text.endswith(QUESTION_MARKS) else text + "?"

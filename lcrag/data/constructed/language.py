"""The two constructed languages, and questions asked in them."""

import dataclasses
from collections.abc import Iterable, Sequence

from lcrag.data.constructed.substitution import WordSubstitution
from lcrag.data.questions import Question
from lcrag.errors import UserError

ENGLISH = "en"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConstructedLanguage:
    """A language that is English with other words.

    Attributes:
      code: A code that ISO 639 keeps for private use.
      name: Its name, as a natural language might have it.
      seed: Of its `WordSubstitution`.
    """

    code: str
    name: str
    seed: int

    def over(self, vocabulary: Iterable[str]) -> WordSubstitution:
        """The language's words for a vocabulary."""
        return WordSubstitution(vocabulary, self.seed)


KIVARI = ConstructedLanguage(code="qki", name="Kivari", seed=1)
TOQAL = ConstructedLanguage(code="qto", name="Toqal", seed=2)
CONSTRUCTED = {language.code: language for language in (KIVARI, TOQAL)}


def constructed_language(code: str) -> ConstructedLanguage:
    """The constructed language of a code.

    Raises:
      UserError: there is none.
    """
    if code not in CONSTRUCTED:
        known = ", ".join(f"{each.code} ({each.name})" for each in CONSTRUCTED.values())
        raise UserError(f"there is no constructed language {code!r}: use one of {known}")
    return CONSTRUCTED[code]


def constructed_questions(
    questions: Sequence[Question], codes: Sequence[str], vocabulary: Iterable[str]
) -> list[Question]:
    """English questions in constructed languages, all versions of a question together.

    Only the text is replaced: golden answers and everything in `extra` stay as they are.

    Args:
      questions: English ones.
      codes: Of the constructed languages.
      vocabulary: The English words that the languages have words for; a word that is not among them stays English.

    Raises:
      UserError: a question is not in English, or there is no such language.
    """
    if stranger := next((each for each in questions if each.language != ENGLISH), None):
        raise UserError(
            f"question {stranger.id} of {stranger.dataset} is in {stranger.language!r}: only English questions have"
            " a version in a constructed language"
        )
    words = list(vocabulary)
    tables = {code: constructed_language(code).over(words) for code in codes}
    return [
        dataclasses.replace(question, language=code, text=table.constructed(question.text))
        for question in questions
        for code, table in tables.items()
    ]

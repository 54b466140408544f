"""The `/translate` API in JSON: `{"texts", "source", "target"}` -> `{"translations": [{"text"} or {"failure"}]}`."""

from collections.abc import Sequence

import pydantic

from lcrag.episodes import Translated, TranslationFailure

PATH = "/translate"


class TranslateRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """What `POST /translate` takes."""

    texts: list[str] = pydantic.Field(description="The texts to translate.")
    source: str | None = pydantic.Field(default=None, description="Code of their language; null: it is found out.")
    target: str = pydantic.Field(description="Code of the language wanted.")


class Translation(pydantic.BaseModel):
    """One text's: `text`, or why there is none."""

    text: str | None = None
    failure: str | None = None

    @pydantic.model_validator(mode="after")
    def _is_one_of_both(self) -> "Translation":
        if (self.text is None) == (self.failure is None):
            raise ValueError("a translation has either a text or a failure")
        return self


class TranslateAnswer(pydantic.BaseModel):
    """What it answers: one translation a text, in equal order."""

    translations: list[Translation]


def answer_of(translated: Sequence[Translated]) -> TranslateAnswer:
    """Some translations as they are sent."""
    return TranslateAnswer(
        translations=[
            Translation(failure=each.reason) if isinstance(each, TranslationFailure) else Translation(text=each)
            for each in translated
        ]
    )


def translations_of(answer: bytes, count: int) -> list[Translated]:
    """Translations as they were sent.

    Raises:
      ValueError: it is no answer to a request with `count` texts; the message says why.
    """
    translations = TranslateAnswer.model_validate_json(answer).translations
    if len(translations) != count:
        raise ValueError(f"it answers {len(translations)} texts of {count}")
    return [each.text if each.text is not None else TranslationFailure(each.failure or "") for each in translations]

"""Constraints of an instruction that a program can check: keywords and structure, as data.

A constraint is an object with a `kind` and that kind's fields, such as `{"kind": "words", "least": 50, "most": 80}`;
`Question.extra["constraints"]` is a list of them. Words are separated by white space; in scripts without spaces each
character is a word. Letters are compared without case.
"""

import json
import re
from typing import Annotated, Any, Literal, TypeAlias

import pydantic

from lcrag.errors import UserError
from lcrag.rewards.text import segmented

_Count = Annotated[int, pydantic.Field(ge=0)]
_Text = Annotated[str, pydantic.StringConstraints(min_length=1)]
_SENTENCE = re.compile(r"[.!?。！？؟।።]+(?:\s|$|(?<=[。！？]))")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)


class _Constraint(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class _Range(_Constraint):
    """At least `least`, and at most `most` where it is given."""

    least: _Count = 0
    most: _Count | None = None

    def holds(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)


class Keywords(_Constraint):
    """All words occur, or none does."""

    kind: Literal["include", "exclude"]
    words: Annotated[list[_Text], pydantic.Field(min_length=1)]

    def satisfied(self, text: str) -> bool:
        occur = [word.casefold() in text.casefold() for word in self.words]
        return all(occur) if self.kind == "include" else not any(occur)


class Frequency(_Range):
    """A word occurs within a range of times."""

    kind: Literal["frequency"]
    word: _Text

    def satisfied(self, text: str) -> bool:
        return self.holds(text.casefold().count(self.word.casefold()))


class Count(_Range):
    """The number of words, sentences, paragraphs or list items is within a range.

    Text after the last end mark counts as a sentence; blank lines separate paragraphs; lines that begin with a bullet
    or a number are list items.
    """

    kind: Literal["words", "sentences", "paragraphs", "bullets"]

    def satisfied(self, text: str) -> bool:
        return self.holds(_COUNTS[self.kind](text))


class Affix(_Constraint):
    """The answer begins or ends with a text."""

    kind: Literal["starts_with", "ends_with"]
    text: _Text

    def satisfied(self, text: str) -> bool:
        text, affix = text.strip().casefold(), self.text.casefold()
        return text.startswith(affix) if self.kind == "starts_with" else text.endswith(affix)


class Form(_Constraint):
    """The answer is JSON, without commas, in capitals, in small letters, in double quotes, or has a title."""

    kind: Literal["json", "no_commas", "capitals", "small_letters", "quoted", "title"]

    def satisfied(self, text: str) -> bool:
        return _FORMS[self.kind](text.strip())


def _is_json(text: str) -> bool:
    try:
        json.loads(re.sub(r"^```(?:json)?\s*|\s*```$", "", text))
    except ValueError:
        return False
    return True


_COUNTS = {
    "words": lambda text: len(segmented(text).split()),
    "sentences": lambda text: sum(bool(part.strip()) for part in _SENTENCE.split(text)),
    "paragraphs": lambda text: sum(bool(part.strip()) for part in re.split(r"\n\s*\n", text)),
    "bullets": lambda text: len(_BULLET.findall(text)),
}
_FORMS = {
    "json": _is_json,
    "no_commas": lambda text: not re.search("[,，、،]", text),
    "capitals": lambda text: text == text.upper(),
    "small_letters": lambda text: text == text.lower(),
    "quoted": lambda text: len(text) > 1 and text[0] in '"“„«' and text[-1] in '"”“»',
    "title": lambda text: re.search(r"<<[^<>\n]+>>", text) is not None,
}
Constraint: TypeAlias = Annotated[Keywords | Frequency | Count | Affix | Form, pydantic.Field(discriminator="kind")]
_CONSTRAINTS: pydantic.TypeAdapter[list[Constraint]] = pydantic.TypeAdapter(list[Constraint])


def read_constraints(objects: Any, question: str) -> list[Constraint]:
    """Returns the constraints of a list of objects; `question` names their question in messages."""
    try:
        constraints = _CONSTRAINTS.validate_python(objects)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "constraints"
        raise UserError(
            f"the constraint {place} of question {question} is wrong ({first['msg']}): correct it"
        ) from error
    if not constraints:
        raise UserError(f"question {question} has no constraints: add at least one to extra.constraints")
    return constraints

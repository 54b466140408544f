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

Count = Annotated[int, pydantic.Field(ge=0)]
Words = Annotated[list[Annotated[str, pydantic.StringConstraints(min_length=1)]], pydantic.Field(min_length=1)]
_SENTENCE = re.compile(r"[.!?。！？؟।።]+(?:\s|$|(?<=[。！？]))")
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)


class _Constraint(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class _Range(_Constraint):
    """At least `least`, and at most `most` where it is given."""

    least: Count = 0
    most: Count | None = None

    def holds(self, count: int) -> bool:
        return self.least <= count and (self.most is None or count <= self.most)


class Include(_Constraint):
    """All words occur."""

    kind: Literal["include"]
    words: Words

    def satisfied(self, text: str) -> bool:
        return all(word.casefold() in text.casefold() for word in self.words)


class Exclude(_Constraint):
    """No word occurs."""

    kind: Literal["exclude"]
    words: Words

    def satisfied(self, text: str) -> bool:
        return not any(word.casefold() in text.casefold() for word in self.words)


class Frequency(_Range):
    """A word occurs within a range of times."""

    kind: Literal["frequency"]
    word: Annotated[str, pydantic.StringConstraints(min_length=1)]

    def satisfied(self, text: str) -> bool:
        return self.holds(text.casefold().count(self.word.casefold()))


class WordCount(_Range):
    """The number of words is within a range."""

    kind: Literal["words"]

    def satisfied(self, text: str) -> bool:
        return self.holds(len(segmented(text).split()))


class SentenceCount(_Range):
    """The number of sentences is within a range; text after the last end mark counts as one."""

    kind: Literal["sentences"]

    def satisfied(self, text: str) -> bool:
        return self.holds(sum(bool(part.strip()) for part in _SENTENCE.split(text)))


class ParagraphCount(_Range):
    """The number of paragraphs, separated by blank lines, is within a range."""

    kind: Literal["paragraphs"]

    def satisfied(self, text: str) -> bool:
        return self.holds(sum(bool(part.strip()) for part in re.split(r"\n\s*\n", text)))


class BulletCount(_Range):
    """The number of list items (lines that begin with a bullet or a number) is within a range."""

    kind: Literal["bullets"]

    def satisfied(self, text: str) -> bool:
        return self.holds(len(_BULLET.findall(text)))


class Start(_Constraint):
    """The answer begins with a text."""

    kind: Literal["starts_with"]
    text: Annotated[str, pydantic.StringConstraints(min_length=1)]

    def satisfied(self, text: str) -> bool:
        return text.strip().casefold().startswith(self.text.casefold())


class End(_Constraint):
    """The answer ends with a text."""

    kind: Literal["ends_with"]
    text: Annotated[str, pydantic.StringConstraints(min_length=1)]

    def satisfied(self, text: str) -> bool:
        return text.strip().casefold().endswith(self.text.casefold())


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


_FORMS = {
    "json": _is_json,
    "no_commas": lambda text: not re.search("[,，、،]", text),
    "capitals": lambda text: text == text.upper(),
    "small_letters": lambda text: text == text.lower(),
    "quoted": lambda text: len(text) > 1 and text[0] in '"“„«' and text[-1] in '"”“»',
    "title": lambda text: re.search(r"<<[^<>\n]+>>", text) is not None,
}
Constraint: TypeAlias = Annotated[
    Include | Exclude | Frequency | WordCount | SentenceCount | ParagraphCount | BulletCount | Start | End | Form,
    pydantic.Field(discriminator="kind"),
]
_CONSTRAINTS: pydantic.TypeAdapter[list[Constraint]] = pydantic.TypeAdapter(list[Constraint])


def read_constraints(objects: Any, question: str) -> list[Constraint]:
    """Returns the constraints of a question.

    Args:
      objects: A list of objects.
      question: Names the question in messages.

    Raises:
      UserError: There are none, or one has an unknown kind or wrong fields.
    """
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


def satisfied_share(text: str, constraints: list[Constraint]) -> float:
    """Returns the share of the constraints that a text satisfies."""
    return sum(constraint.satisfied(text) for constraint in constraints) / len(constraints)

"""What an instruction may demand of an answer and a program can check: keywords and structure, as data.

A constraint is an object with a `kind` and that kind's fields, such as `{"kind": "words", "least": 50, "most": 80}`;
`Question.extra["constraints"]` is a list of them. Words are those between white space, and each character of a script
that does not space its words; letters are compared without case.
"""

import json
import re
from typing import Annotated, Any, Literal, TypeAlias

import pydantic

from lcrag.errors import UserError
from lcrag.rewards.mixed_segmentation import segmented

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
    """Every one of the words occurs."""

    kind: Literal["include"]
    words: Words

    def satisfied(self, text: str) -> bool:
        return all(word.casefold() in text.casefold() for word in self.words)


class Exclude(_Constraint):
    """None of the words occurs."""

    kind: Literal["exclude"]
    words: Words

    def satisfied(self, text: str) -> bool:
        return not any(word.casefold() in text.casefold() for word in self.words)


class Frequency(_Range):
    """A word occurs so many times."""

    kind: Literal["frequency"]
    word: Annotated[str, pydantic.StringConstraints(min_length=1)]

    def satisfied(self, text: str) -> bool:
        return self.holds(text.casefold().count(self.word.casefold()))


class WordCount(_Range):
    """So many words."""

    kind: Literal["words"]

    def satisfied(self, text: str) -> bool:
        return self.holds(len(segmented(text).split()))


class SentenceCount(_Range):
    """So many sentences, each with an end mark of some script; what follows the last one counts as one."""

    kind: Literal["sentences"]

    def satisfied(self, text: str) -> bool:
        return self.holds(sum(bool(part.strip()) for part in _SENTENCE.split(text)))


class ParagraphCount(_Range):
    """So many paragraphs, blank lines between them."""

    kind: Literal["paragraphs"]

    def satisfied(self, text: str) -> bool:
        return self.holds(sum(bool(part.strip()) for part in re.split(r"\n\s*\n", text)))


class BulletCount(_Range):
    """So many list items: lines that begin with a bullet or a number."""

    kind: Literal["bullets"]

    def satisfied(self, text: str) -> bool:
        return self.holds(len(_BULLET.findall(text)))


class Start(_Constraint):
    """It begins with a text."""

    kind: Literal["starts_with"]
    text: Annotated[str, pydantic.StringConstraints(min_length=1)]

    def satisfied(self, text: str) -> bool:
        return text.strip().casefold().startswith(self.text.casefold())


class End(_Constraint):
    """It ends with a text."""

    kind: Literal["ends_with"]
    text: Annotated[str, pydantic.StringConstraints(min_length=1)]

    def satisfied(self, text: str) -> bool:
        return text.strip().casefold().endswith(self.text.casefold())


class Form(_Constraint):
    """It is all of one form: JSON, without commas, in capitals or in small letters, in double quotes, or titled."""

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
    """The constraints of a question.

    Args:
      objects: A list of objects.
      question: The question's name, for messages.

    Raises:
      UserError: there are none, or one has an unknown kind or wrong fields.
    """
    try:
        constraints = _CONSTRAINTS.validate_python(objects)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "constraints"
        raise UserError(f"the constraint {place} of question {question} is wrong: {first['msg']}; mend it") from error
    if not constraints:
        raise UserError(f"question {question} demands nothing that can be checked: give it constraints")
    return constraints


def satisfied_share(text: str, constraints: list[Constraint]) -> float:
    """The share of the constraints that a text satisfies."""
    return sum(constraint.satisfied(text) for constraint in constraints) / len(constraints)

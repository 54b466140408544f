"""Translation rules by domain: what must stay unchanged, the maximum length, and what the judge compares."""

import dataclasses

from lcrag.data import questions as names
from lcrag.data.questions import Question
from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextKind:
    """How a translator's prompt describes a kind of text.

    Attributes:
      called: Name of the kind.
      keep: What the translator must not change.
      max_tokens: Maximum length of a model's translation.
    """

    called: str
    keep: str
    max_tokens: int = 2048


@dataclasses.dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain of questions.

    Attributes:
      name: One of `lcrag.data.questions.DOMAINS`, or "question" for questions without a domain.
      text: Kind of the text that is translated, the question with everything in the same request.
      compared: What the judge decides.
      answers: Whether golden answers are texts in the question's language, which are translated too.
      label: Kind of the answers if they are translated and checked separately, before the text.
    """

    name: str
    text: TextKind
    compared: str
    answers: bool = False
    label: TextKind | None = None


_SAME_ANSWER = "whether the two have the same correct answer"
_SAME_MEANING = "whether the two mean the same"
_NUMBERS_AND_NAMES = "Keep numbers and dates right, and use the usual form of a name in the other language."

MATHEMATICS = Domain(
    name=names.MATHEMATICS,
    text=TextKind(
        called="a mathematical problem",
        keep="Keep all mathematical notation (LaTeX, equations, numbers, variable names) exactly as it is. Translate"
        " only the natural language.",
    ),
    compared=_SAME_ANSWER,
)
MULTIPLE_CHOICE = Domain(
    name=names.MULTIPLE_CHOICE,
    text=TextKind(
        called="a multiple-choice question",
        keep="Keep all mathematical notation, numbers, units and formulas exactly as they are, and every option under"
        " its own key.",
    ),
    compared=_SAME_ANSWER,
)
INSTRUCTION_FOLLOWING = Domain(
    name=names.INSTRUCTION_FOLLOWING,
    text=TextKind(
        called="an instruction to a writer",
        keep="Keep every word between quotation marks, every number and every mark of format exactly as it is: the"
        " result of the instruction is checked against them.",
    ),
    compared="whether the two ask for the same text under the same constraints",
)
SUMMARISATION = Domain(
    name=names.SUMMARISATION,
    text=TextKind(called="an article", keep=_NUMBERS_AND_NAMES),
    compared=_SAME_MEANING,
    answers=True,
    label=TextKind(called="a summary of an article", keep=_NUMBERS_AND_NAMES, max_tokens=512),
)
TRANSLATION = Domain(
    name=names.TRANSLATION,
    text=TextKind(called="a text", keep=_NUMBERS_AND_NAMES, max_tokens=512),
    compared=_SAME_MEANING,
)
QUESTION = Domain(
    name="question",
    text=TextKind(called="a question of a quiz with its answers", keep=_NUMBERS_AND_NAMES),
    compared=_SAME_ANSWER,
    answers=True,
)

DOMAINS = {
    domain.name: domain
    for domain in (MATHEMATICS, MULTIPLE_CHOICE, INSTRUCTION_FOLLOWING, SUMMARISATION, TRANSLATION, QUESTION)
}


def domain_of(question: Question) -> Domain:
    """Returns the domain of a question, `QUESTION` (short answers in its language) if it names none.

    Raises:
      UserError: the domain is unknown.
    """
    name = question.domain or QUESTION.name
    if name not in DOMAINS:
        raise UserError(
            f"the question {question.id} of {question.dataset} is of the domain {name!r}: give it one of"
            f" {', '.join(DOMAINS)}"
        )
    return DOMAINS[name]

"""What the policy did in one generation."""

import dataclasses
import re

from lcrag.episodes.tags import ANSWER, SEARCH, TAGS


@dataclasses.dataclass(frozen=True)
class SearchAction:
    """The policy asks for passages about `query`."""

    query: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """The policy gives its answer."""

    text: str


@dataclasses.dataclass(frozen=True)
class Invalid:
    """The policy did nothing the environment understands."""

    reason: str


# A pair whose content holds no tag of ours: of nested or repeated tags only the innermost pair counts.
_PAIR = re.compile(
    rf"<({SEARCH}|{ANSWER})>((?:(?!</?(?:{'|'.join(TAGS)})>).)*)</\1>",
    re.DOTALL,
)


def parse_action(text: str) -> SearchAction | Answer | Invalid:
    """The action that ended the policy's own text of one generation.

    It is the tag pair whose closing tag ends the text (white space aside); earlier pairs and anything
    around it are reasoning. Tags are exact and lower case, as the stop strings are; content is stripped.
    A pair that is empty, or that holds another tag, is no action.
    """
    text = text.rstrip()
    pairs = list(_PAIR.finditer(text))
    if not pairs or pairs[-1].end() != len(text):
        return Invalid("the text does not end with a complete search or answer")
    tag, content = pairs[-1][1], pairs[-1][2].strip()
    if not content:
        return Invalid(f"the {tag} is empty")
    return SearchAction(content) if tag == SEARCH else Answer(content)


def answer_in(text: str) -> str | None:
    """The content of the last complete, non-empty answer in the policy's own text; None if there is none."""
    answers = (pair[2].strip() for pair in _PAIR.finditer(text) if pair[1] == ANSWER)
    return next((answer for answer in reversed(list(answers)) if answer), None)

"""The tags of the dialogue: neutralises them in external text, and parses actions and pairs in the policy's text."""

import dataclasses
import re
from collections.abc import Iterable

from lcrag.rewards.text import COMMAS, is_visible

TAGS = (
    *("think", "search", "information", "answer", "observation", "original_evidence"),
    *("plan", "subPlan", "subAnswer", "tool_call", "tool_response"),
)
THINK, SEARCH, INFORMATION, ANSWER, OBSERVATION, EVIDENCE, PLAN, SUB_PLAN, SUB_ANSWER, TOOL_CALL, TOOL_RESPONSE = TAGS


def opening(tag: str) -> str:
    return f"<{tag}>"


def closing(tag: str) -> str:
    return f"</{tag}>"


# Characters that a reader or a tokenizer's normaliser may take for `<`, `>`, `/` and `|`, or skip.
_LEFT = "[<＜﹤‹〈⟨《❮]"
_RIGHT = "[>＞﹥›〉⟩》❯]"
_SLASH = r"[/／⁄∕\\＼]"
_PIPE = "[|｜]"
_SKIPPED = r"[\s\x00-\x1f\x7f\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]*"


# Matches one of `TAGS`, closed or not (text after the passage could close it), any other complete tag, and control
# tokens such as <|im_end|> or <eos>. Look-alikes such as book-title marks only count around the names in `TAGS`.
# Names may be of full width, and have skipped characters inside.
_OWN = "|".join(_SKIPPED.join(f"[{letter}{chr(ord(letter) + 0xFEE0)}]" for letter in tag) for tag in TAGS)
_TAG_LIKE = re.compile(
    rf"{_LEFT}{_SKIPPED}(?P<own>(?:{_SLASH}{_SKIPPED})?(?:{_OWN}))(?:{_SKIPPED}{_RIGHT})?"
    r"|[<＜﹤](?P<other>/?\w[\w:.-]{0,40}\s?/?)[>＞﹥]"
    rf"|(?P<left>[<＜﹤])(?={_PIPE})"
    rf"|(?<={_PIPE})[>＞﹥]",
    re.IGNORECASE,
)


def neutralise(text: str) -> str:
    """Brackets everything in external text that a parser or a tokenizer could read as a tag; idempotent.

    `<answer>` becomes `[answer]`, in any case, width or inner white space, and so do HTML-like tags and control tokens
    such as `<|im_end|>`, which may be single tokens of the vocabulary.
    """

    def bracketed(match: re.Match[str]) -> str:
        if content := match["own"] or match["other"]:
            return f"[{content}]"
        return "[" if match["left"] else "]"

    return _TAG_LIKE.sub(bracketed, without_surrogates(text))


def without_surrogates(text: str) -> str:
    """Replaces lone surrogates by U+FFFD: external JSON may contain them, but tokenizers and files cannot."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
    """The policy's text has no valid action."""

    reason: str


# A pair whose content holds none of `TAGS`: of nested or repeated tags only the innermost pair counts.
_PAIR = re.compile(rf"<({SEARCH}|{ANSWER})>((?:(?!</?(?:{'|'.join(TAGS)})>).)*)</\1>", re.DOTALL)


def parse_action(text: str) -> SearchAction | Answer | Invalid:
    """Returns the action that ends the policy's text of one generation.

    The action is the tag pair whose closing tag ends the text (white space aside); everything before it is reasoning.
    Tags are exact and lower case, as the stop strings are; content is stripped. A pair without a visible character,
    or that holds another tag, is no action.
    """
    text = text.rstrip()
    pairs = list(_PAIR.finditer(text))
    if not pairs or pairs[-1].end() != len(text):
        return Invalid("the text does not end with a complete search or answer")
    tag, content = pairs[-1][1], pairs[-1][2].strip()
    if not is_visible(content):
        return Invalid(f"the {tag} is empty")
    return SearchAction(content) if tag == SEARCH else Answer(content)


def answer_in(text: str) -> str | None:
    """Returns the content of the last complete answer with a visible character in the policy's text, or None."""
    answers = (pair[2].strip() for pair in _PAIR.finditer(text) if pair[1] == ANSWER)
    return next((answer for answer in reversed(list(answers)) if is_visible(answer)), None)


TAG = re.compile(rf"<(/?)({'|'.join(TAGS)})>")


QUOTES = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』"}  # opening mark -> what may close it


def quoted(query: str) -> str:
    """Writes one of several queries of a search so that neither its commas nor its marks change where it ends."""
    if not any(character in query for character in (*COMMAS, *QUOTES)):
        return query
    for opens, closes in QUOTES.items():
        if not any(mark in query for mark in opens + closes):
            return f"{opens}{query}{closes[0]}"
    return re.sub(f"[{COMMAS}]", " ", query)  # it has every kind of mark


@dataclasses.dataclass(frozen=True)
class Boxes:
    """The pairs of one tag in a text, and its tags that are not part of a pair."""

    contents: tuple[str, ...]  # stripped, of each pair that encloses no other of `TAGS`
    stray: int  # number of tags of this name outside such pairs

    @property
    def sole(self) -> str | None:
        """The content of the only pair; None unless there is exactly one, not empty, and no stray tag."""
        return self.contents[0] or None if len(self.contents) == 1 and not self.stray else None

    @property
    def malformed(self) -> int:
        """Number of stray tags and empty pairs."""
        return self.stray + self.contents.count("")

    @property
    def tags(self) -> int:
        """Number of all tags of this name."""
        return self.stray + 2 * len(self.contents)


def boxes_in(texts: Iterable[str], tag: str) -> Boxes:
    """Finds the pairs of a tag in the texts of the policy's turns, exact and lower case; no pair spans two texts."""
    contents, stray = [], 0
    for text in texts:
        matches = list(TAG.finditer(text))
        places = [place for place, match in enumerate(matches) if match[2] == tag]
        pairs = [place for place in places if place + 1 in places and not matches[place][1] and matches[place + 1][1]]
        contents += [text[matches[place].end() : matches[place + 1].start()].strip() for place in pairs]
        stray += len(places) - 2 * len(pairs)
    return Boxes(tuple(contents), stray)

"""The tags of the dialogue, and how text from outside is kept from looking like one."""

import re

THINK, SEARCH, INFORMATION, ANSWER, OBSERVATION, EVIDENCE, PLAN, SUB_PLAN, SUB_ANSWER, TOOL_CALL, TOOL_RESPONSE = (
    TAGS
) = (
    "think",
    "search",
    "information",
    "answer",
    "observation",
    "original_evidence",
    "plan",
    "subPlan",
    "subAnswer",
    "tool_call",
    "tool_response",
)


def opening(tag: str) -> str:
    return f"<{tag}>"


def closing(tag: str) -> str:
    return f"</{tag}>"


# Characters a reader or a tokenizer's normaliser may take for `<`, `>`, `/` and `|`, or skip over.
_LEFT = "[<＜﹤‹〈⟨《❮]"
_RIGHT = "[>＞﹥›〉⟩》❯]"
_SLASH = r"[/／⁄∕\\＼]"
_PIPE = "[|｜]"
_SKIPPED = r"[\s\x00-\x1f\x7f\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]*"


def _any_width(letter: str) -> str:
    """One ASCII letter, or its full-width form; the pattern ignores case."""
    return f"[{letter}{chr(ord(letter) + 0xFEE0)}]"


def _name(tag: str) -> str:
    return _SKIPPED.join(_any_width(letter) for letter in tag)


# One of our tags, finished or not (whatever follows the passage could finish it); any other complete
# tag and any control token such as <|im_end|> or <eos>, which a tokenizer may hold as one token.
# Book-title marks and the like only count around our own names.
_OWN = "|".join(_name(tag) for tag in TAGS)
_TAG_LIKE = re.compile(
    rf"{_LEFT}{_SKIPPED}(?P<own>(?:{_SLASH}{_SKIPPED})?(?:{_OWN}))(?:{_SKIPPED}{_RIGHT})?"
    r"|[<＜﹤](?P<other>/?\w[\w:.-]{0,40}\s?/?)[>＞﹥]"
    rf"|(?P<left>[<＜﹤])(?={_PIPE})"
    rf"|(?<={_PIPE})[>＞﹥]",
    re.IGNORECASE,
)


def neutralise(text: str) -> str:
    """Text from outside, without anything that a parser or a tokenizer could take for a tag.

    `<answer>` becomes `[answer]`, whatever its case, width or inner white space; HTML-like tags and control
    tokens (`<|im_end|>`) likewise, because a tokenizer may hold them as single tokens. The rest is unchanged.
    Applying it twice changes nothing more.
    """
    return _TAG_LIKE.sub(_bracketed, text)


def _bracketed(match: re.Match[str]) -> str:
    if content := match["own"] or match["other"]:
        return f"[{content}]"
    return "[" if match["left"] else "]"

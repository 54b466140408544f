"""A call of the translation tool in what the policy wrote, and everything that can be wrong with one (Translate-R1)."""

import dataclasses
import functools
import json
from collections.abc import Collection
from typing import Any

from lcrag.data.languages import LANGUAGES
from lcrag.episodes.tags import TOOL_CALL, closing, opening

TOOL = "translate"
ARGUMENTS = ("text", "target")


@dataclasses.dataclass(frozen=True)
class TranslateCall:
    """A call as it should be: translate `text` into the language of code `target`."""

    text: str
    target: str


@dataclasses.dataclass(frozen=True)
class ToolError:
    """What the policy is told instead of a translation.

    Attributes:
      cause: One of `CAUSES`, for counting.
      message: One or two sentences for the policy.
    """

    cause: str
    message: str


MALFORMED = ToolError("malformed_call", f"A call stands between {opening(TOOL_CALL)} and {closing(TOOL_CALL)}.")
INVALID_JSON = ToolError("invalid_json", 'A call is a JSON object with a "name" and "arguments".')
OVER_LIMIT = ToolError("over_limit", "No call is left. Give the answer.")
FAILED = ToolError("failed", "The text could not be translated.")
EMPTY_TEXT = ToolError("empty_text", 'The "text" is empty.')
CAUSES = (
    "malformed_call",
    "invalid_json",
    "unknown_tool",
    "missing_argument",
    "extra_argument",
    "wrong_type",
    "empty_text",
    "long_text",
    "unknown_target",
    "over_limit",
    "failed",
)


def call_in(
    text: str, *, targets: Collection[str] | None = None, text_characters: int = 8000
) -> TranslateCall | ToolError | None:
    """The call that ends the policy's text of one generation, or what is wrong with it; None where there is none.

    A call is what stands between the last opening tag and the closing tag that ends the text. An opening tag that
    nothing closes, and a closing tag that nothing opens, are malformed calls.

    Args:
      text: Up to and including the stop string.
      targets: Codes of the languages to translate into; None: all that `lcrag.data.languages` knows.
      text_characters: Longest text to translate.
    """
    before, closed, behind = text.rpartition(closing(TOOL_CALL))
    if not closed:
        return MALFORMED if opening(TOOL_CALL) in text else None
    _, opened, content = before.rpartition(opening(TOOL_CALL))
    if not opened or behind.strip():
        return MALFORMED
    return _read(content, targets, text_characters)


def _read(content: str, targets: Collection[str] | None, text_characters: int) -> TranslateCall | ToolError:
    try:
        call = json.loads(content)
    except (ValueError, RecursionError):
        return INVALID_JSON
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return INVALID_JSON
    if call["name"] != TOOL:
        return ToolError("unknown_tool", f'There is no tool of this name. The tool is called "{TOOL}".')
    if not isinstance(call.get("arguments"), dict):
        return INVALID_JSON
    if len(call) > 2:
        return ToolError("extra_argument", 'A call has a "name" and "arguments", and nothing else.')
    return _checked(call["arguments"], targets, text_characters)


def _checked(
    arguments: dict[str, Any], targets: Collection[str] | None, text_characters: int
) -> TranslateCall | ToolError:
    if missing := [name for name in ARGUMENTS if name not in arguments]:
        return ToolError("missing_argument", f'The argument "{missing[0]}" is missing.')
    if len(arguments) > len(ARGUMENTS):
        return ToolError("extra_argument", 'The arguments are "text" and "target", and no others.')
    if wrong := [name for name in ARGUMENTS if not isinstance(arguments[name], str)]:
        return ToolError("wrong_type", f'The argument "{wrong[0]}" must be a text.')
    text, target = (_unicode(arguments[name]).strip() for name in ARGUMENTS)
    if not text:
        return EMPTY_TEXT
    if len(text) > text_characters:
        return ToolError("long_text", f"The text has {len(text)} characters. The most is {text_characters}.")
    code = _codes().get(target.casefold())
    if code is None or (targets is not None and code not in targets):
        return ToolError("unknown_target", "The target is not a known language. Name one such as English.")
    return TranslateCall(text, code)


def _unicode(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can write and nobody can encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@functools.cache
def _codes() -> dict[str, str]:
    """The code of each language by its code, its English name and its own, whatever their case."""
    names: dict[str, str] = {}
    for code, language in LANGUAGES.items():
        names |= dict.fromkeys((language.endonym.casefold(), language.name.casefold(), code), code)
    return names

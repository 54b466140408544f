"""The translation tool: parsing calls in the policy's text, their errors, and carrying them out in an episode."""

import collections
import dataclasses
import json
from collections.abc import Collection, Generator, Sequence
from typing import NamedTuple

from lcrag.data.languages import LANGUAGES, language_of
from lcrag.episodes.host_services import Translated
from lcrag.episodes.observation import Information, Style, statements
from lcrag.episodes.requests import Translate, TranslationFailure
from lcrag.episodes.tags import TOOL_CALL, TOOL_RESPONSE, closing, opening, without_surrogates

TOOL = "translate"
ARGUMENTS = ("text", "target")


class TranslateCall(NamedTuple):
    """A valid call: translate `text` into the language with code `target`."""

    text: str
    target: str


class ToolError(NamedTuple):
    """The error that the policy is shown instead of a translation; `cause` is one of `CAUSES`, for counting."""

    cause: str
    message: str


MALFORMED = ToolError("malformed_call", f"A call stands between {opening(TOOL_CALL)} and {closing(TOOL_CALL)}.")
INVALID_JSON = ToolError("invalid_json", 'A call is a JSON object with a "name" and "arguments".')
OVER_LIMIT = ToolError("over_limit", "No call is left. Give the answer.")
FAILED = ToolError("failed", "The text could not be translated.")
CAUSES = (
    *("malformed_call", "invalid_json", "unknown_tool", "missing_argument", "extra_argument", "wrong_type"),
    *("empty_text", "long_text", "unknown_target", "over_limit", "failed"),
)
# Code, English name or endonym of a language, case-folded -> its code.
_CODES = {
    name.casefold(): code for code, language in LANGUAGES.items() for name in (language.endonym, language.name, code)
}
RESPONSE = Style(
    before=f"{opening(TOOL_RESPONSE)}\n",
    after=f"{closing(TOOL_RESPONSE)}\n",
    passage=lambda number, title, text: f"{text}\n",
)


def call_in(
    text: str, *, targets: Collection[str] | None = None, text_characters: int = 8000
) -> TranslateCall | ToolError | None:
    """Returns the call that ends the policy's text of one generation, or its error; None if there is no call.

    A call stands between the last opening tag and the closing tag that ends the text. An opening tag without a closing
    one, and the reverse, are malformed calls.

    Args:
      text: The text, including the stop string.
      targets: Codes of the allowed target languages; None: all that `lcrag.data.languages` knows.
      text_characters: Maximum length of a text to translate.
    """
    before, closed, after = text.rpartition(closing(TOOL_CALL))
    if not closed:
        return MALFORMED if opening(TOOL_CALL) in text else None
    _, opened, content = before.rpartition(opening(TOOL_CALL))
    if not opened or after.strip():
        return MALFORMED
    try:
        call = json.loads(content)
    except (ValueError, RecursionError):
        return INVALID_JSON
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return INVALID_JSON
    if call["name"] != TOOL:
        return ToolError("unknown_tool", f'There is no tool of this name. The tool is called "{TOOL}".')
    arguments = call.get("arguments")
    if not isinstance(arguments, dict):
        return INVALID_JSON
    if len(call) > 2:
        return ToolError("extra_argument", 'A call has a "name" and "arguments", and nothing else.')
    if missing := [name for name in ARGUMENTS if name not in arguments]:
        return ToolError("missing_argument", f'The argument "{missing[0]}" is missing.')
    if len(arguments) > len(ARGUMENTS):
        return ToolError("extra_argument", 'The arguments are "text" and "target", and no others.')
    if wrong := [name for name in ARGUMENTS if not isinstance(arguments[name], str)]:
        return ToolError("wrong_type", f'The argument "{wrong[0]}" must be a text.')
    said, target = (without_surrogates(arguments[name]).strip() for name in ARGUMENTS)
    if not said:
        return ToolError("empty_text", 'The "text" is empty.')
    if len(said) > text_characters:
        return ToolError("long_text", f"The text has {len(said)} characters. The most is {text_characters}.")
    code = _CODES.get(target.casefold())
    if code is None or (targets is not None and code not in targets):
        return ToolError("unknown_target", "The target is not a known language. Name one such as English.")
    return TranslateCall(said, code)


@dataclasses.dataclass(kw_only=True)
class ToolUse:
    """The limits of the tool, and its calls in one episode.

    Attributes:
      calls, targets, text_characters, response_tokens: See `translate_r1`; without calls, they are ordinary text.
      made: Number of calls so far, including malformed and refused ones.
      errors: Cause -> number of calls that got no translation.
    """

    calls: int
    targets: Collection[str] | None
    text_characters: int
    response_tokens: int
    made: int = 0
    errors: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __post_init__(self):
        for code in self.targets or ():
            language_of(code)

    @property
    def over(self) -> bool:
        """Whether a call was refused because none was left."""
        return self.made > self.calls

    def call_in(self, text: str) -> TranslateCall | ToolError | None:
        """Returns the call that ends the policy's text; None without a call or a tool."""
        if not self.calls:
            return None
        return call_in(text, targets=self.targets, text_characters=self.text_characters)

    def respond(self, call: TranslateCall | ToolError) -> Generator[Translate, Translated, Information]:
        """Carries out a call; returns the observation."""
        self.made += 1
        response: Translated | ToolError | TranslateCall = OVER_LIMIT if self.over else call
        if isinstance(response, TranslateCall):
            response = yield Translate(response.text, None, response.target)
        if isinstance(response, TranslationFailure):
            response = FAILED
        if isinstance(response, ToolError):
            self.errors[response.cause] += 1
            response = f"Error: {response.message}"
        return statements([f"{response}\n"], RESPONSE, self.response_tokens)

    def unanswered(self) -> None:
        """Counts a call in the last turn, which gets no response."""
        self.made += 1
        self.errors[OVER_LIMIT.cause] += 1

    def counts(self, written: Sequence[str]) -> dict[str, int]:
        """Returns the counts of an episode, logged as `episode/<name>`, given the policy's text of each turn."""
        return {
            "tool_calls": self.made,
            "tool_errors": self.errors.total(),
            **{f"tool_error_{cause}": self.errors[cause] for cause in CAUSES},
            "forged_tool_response": sum(text.count(opening(TOOL_RESPONSE)) for text in written),
        }

    @property
    def mistakes(self) -> int:
        """Number of calls with an error of the policy's."""
        return self.errors.total() - self.errors[FAILED.cause]

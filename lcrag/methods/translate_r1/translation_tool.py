"""The translation tool in an episode: calls are counted, carried out, and answered with a translation or an error."""

import collections
import dataclasses
from collections.abc import Collection, Generator, Sequence

from lcrag.data.languages import language_of
from lcrag.episodes.host_services import Translated
from lcrag.episodes.observation import Information, Style
from lcrag.episodes.requests import Translate, TranslationFailure
from lcrag.episodes.tags import TOOL_RESPONSE, closing, neutralise, opening
from lcrag.methods.translate_r1.tool_calls import CAUSES, FAILED, OVER_LIMIT, ToolError, TranslateCall, call_in

RESPONSE = Style(
    before=f"{opening(TOOL_RESPONSE)}\n",
    after=f"{closing(TOOL_RESPONSE)}\n",
    passage=lambda number, title, text: f"{text}\n",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolRules:
    """What the tool allows.

    Attributes:
      calls: Calls that are carried out; 0: there is no tool, and what looks like a call is a text like any other.
      targets: Codes of the languages to translate into; None: all that are known.
      text_characters: Longest text to translate.
      response_tokens: At most this many tokens for a response, tags included.

    Raises:
      UserError: a target is no language that is known.
    """

    calls: int
    targets: Collection[str] | None
    text_characters: int
    response_tokens: int

    def __post_init__(self):
        for code in self.targets or ():
            language_of(code)


@dataclasses.dataclass
class ToolUse:
    """The calls of one episode.

    Attributes:
      rules: What is allowed.
      made: Calls so far; a malformed or refused one is a call, too.
      errors: Of those that got no translation, how many for each cause.
    """

    rules: ToolRules
    made: int = 0
    errors: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    @property
    def over(self) -> bool:
        """Whether a call has been refused because there was none left."""
        return self.made > self.rules.calls

    def call_in(self, text: str) -> TranslateCall | ToolError | None:
        """The call that ends the policy's text; None where there is none, or no tool."""
        rules = self.rules
        if not rules.calls:
            return None
        return call_in(text, targets=rules.targets, text_characters=rules.text_characters)

    def respond(self, call: TranslateCall | ToolError) -> Generator[Translate, Translated, Information]:
        """Carries out a call, and gives what the environment shows of it."""
        self.made += 1
        error = OVER_LIMIT if self.over else call
        if isinstance(error, TranslateCall):
            answer = yield Translate(error.text, None, error.target)
            if not isinstance(answer, TranslationFailure):
                return self._shown(answer)
            error = FAILED
        self.errors[error.cause] += 1
        return self._shown(f"Error: {error.message}")

    def unanswered(self) -> None:
        """Counts a call that nobody answers any more."""
        self.made += 1
        self.errors[OVER_LIMIT.cause] += 1

    def counts(self, written: Sequence[str]) -> dict[str, int]:
        """The account of an episode, logged as `episode/<name>`.

        Args:
          written: What the policy wrote in each turn.
        """
        return {
            "tool_calls": self.made,
            "tool_errors": self.errors.total(),
            **{f"tool_error_{cause}": self.errors[cause] for cause in CAUSES},
            "forged_tool_response": sum(text.count(opening(TOOL_RESPONSE)) for text in written),
        }

    @property
    def mistakes(self) -> int:
        """Calls that the policy got wrong."""
        return self.errors.total() - self.errors[FAILED.cause]

    def _shown(self, text: str) -> Information:
        return Information((f"{neutralise(text)}\n",), RESPONSE, self.rules.response_tokens)

"""Encodes environment text into contexts: the opening in the model's chat template, and the text that follows."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from lcrag.episodes.passage_cuts import MATCHING
from lcrag.episodes.requests import FittedText
from lcrag.errors import UserError, typed
from lcrag.policy import ChatPrompt, Tokenizer

REMEMBERED_TEXTS = 2**16


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Chat:
    """How the opening of an episode is given to a model with a chat template: as the user's turn.

    The model's turn then lasts to the end of the episode and contains later observations unchanged (Search-R1,
    section 3.2). Without a template the opening is unchanged too.
    """

    template: bool = True  # whether to use the template of a model that has one
    system: str | None = None  # the system prompt; None: the template's default
    enable_thinking: bool | None = None  # Qwen3's switch: False begins the answer with an empty thought

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises a UserError if the tokenizer's template does not support a setting."""
        template = tokenizer.chat_template
        asked = [name for name in ("system", "enable_thinking") if getattr(self, name) is not None]
        if asked and not self.template:
            raise UserError(f"Chat.{asked[0]} is set, but Chat.template is False: remove one of the two")
        if asked and template is None:
            raise UserError(
                f"Chat.{asked[0]} is set, but the policy's tokenizer has no chat template: remove the setting, or add"
                " chat_template.jinja to the policy's folder"
            )
        if template is not None and self.enable_thinking is not None and "enable_thinking" not in template.source:
            raise UserError(
                "Chat.enable_thinking is set, but the policy's chat template knows no such switch: remove the setting"
            )

    def opening(self, tokenizer: Tokenizer, text: str, system: str | None = None) -> ChatPrompt:
        """Returns the beginning of a context, as text and as tokens.

        The method's instructions, `system`, are placed after the run's system prompt.
        """
        given = [each for each in (self.system, system) if each is not None]
        instructions = "\n\n".join(filter(None, given))
        if not self.template or tokenizer.chat_template is None:
            text = f"{instructions}\n\n{text}" if instructions else text
            return ChatPrompt(text, [*tokenizer.beginning_ids, *tokenizer.encode_ordinary(text)])
        first = [{"role": "system", "content": instructions}] if given else []
        options: dict[str, Any] = {"enable_thinking": self.enable_thinking} if self.enable_thinking is not None else {}
        return tokenizer.encode_chat([*first, {"role": "user", "content": text}], **options)


@dataclasses.dataclass(frozen=True)
class PlacedText:
    """Environment text with its tokens, as it appears in a context."""

    text: str  # in the chat template if it opens the context of a chat model
    tokens: Sequence[int]
    written: str  # the program's text
    system: str | None = None  # the program's instructions, if it opens the context


class ContextTokenizer:
    """Encodes environment text; caches encodings, since prompts repeat within a group and passages over a run."""

    def __init__(self, tokenizer: Tokenizer, chat: Chat, cut_passages: str = MATCHING):
        self._tokenizer, self.cut_passages = tokenizer, cut_passages
        self.opening = functools.lru_cache(REMEMBERED_TEXTS)(functools.partial(chat.opening, tokenizer))
        self.encode = functools.lru_cache(REMEMBERED_TEXTS)(  # the tokens of a text that continues a context
            lambda text: tuple(tokenizer.encode_ordinary(text, continues=True))
        )

    def max_characters(self, tokens: int) -> int:
        """Returns a length in characters; a longer text has more than `tokens` tokens, and need not be encoded.

        No token spells more than the bytes of the longest one, and Unicode's composition (NFC), which some tokenizers
        apply first, joins at most four characters. This ignores tokenizers that encode any run of spaces, or of
        unknown characters, as one token: only a text of such runs could be longer.
        """
        return 4 * self._longest_token_bytes * tokens

    @functools.cached_property
    def _longest_token_bytes(self) -> int:
        return max(map(len, self._tokenizer.token_bytes))

    def place(self, text: str, *, opens: bool, system: str | None = None) -> PlacedText:
        """Returns a text with its tokens, at the opening of a context or in its continuation."""
        if not opens:
            return PlacedText(text, self.encode(text), text)
        opening = self.opening(text, system)
        return PlacedText(opening.text, opening.ids, text, system)

    def fit(self, text: FittedText, room_tokens: int, *, opens: bool, system: str | None = None) -> PlacedText | None:
        """Returns the text, with its markup, in at most `room_tokens`; None if it does not fit."""
        target = room_tokens
        while (fitted := text.fit(self, target)) is not None:
            placed = self.place(fitted, opens=opens, system=system)
            if (excess := len(placed.tokens) - room_tokens) <= 0:
                return placed
            target -= excess
        return None

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids that continue a context."""
        return self._tokenizer.decode_bytes(ids).decode("utf-8", errors="replace")

"""Environment text as a model reads it: a chat template around prompts and observations, and their tokens."""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Any, Literal

from lcrag.episodes.programs import FittedText, Generate
from lcrag.episodes.searches import MATCHING
from lcrag.episodes.tools import (
    DESCRIPTION,
    OFFER,
    PROBE,
    SCHEMA,
    SEARCH_TOOL,
    CallForm,
    form_of,
    reworded,
    reworded_instructions,
    speaks_of_searches,
)
from lcrag.errors import UserError, typed
from lcrag.policy import ChatPrompt, Tokenizer
from lcrag.policy.tokenizer import CONTROL, QUESTION, REPLY, Conversation, Message

REMEMBERED_TEXTS = 2**16
# An observation with which templates are tried: its characters are those that templates may escape.
_PASSAGE = "<information>\n'Turku' & \"Åbo\": in Finland.\n</information>"


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Chat:
    """How texts are given to a model with a chat template; the opening of an episode is the user's turn.

    With "single" turns, the model's turn lasts to the end of the episode and contains later observations unchanged
    (Search-R1, section 3.2). With "messages", each observation after a text of the policy is a message of the template,
    in the role "tool" where the template has it, else "user": the model's turn is closed and a new one opened, as the
    template writes it. An end of turn that the policy sampled is its own token; otherwise the environment writes it.
    An observation that follows another one begins the model's turn. Without a template nothing is added to any text.

    "messages" promises that the context is the template's text of the whole conversation, and refuses a template that
    writes earlier turns anew (Qwen3 without thinking removes their empty thoughts). "appended" keeps every turn as it
    was sampled: after each, what the template writes after the model's latest message in the whole conversation so far
    is appended, so that sampled tokens and all before them stay as they were when their log-probabilities were taken.

    With `tools`, a search is a call of the model's own kind: the template describes the tool "search" by its JSON
    schema, an observation is a message of the role "tool" in whatever form the template writes it, and programs read a
    call as the tags of a search (`CallForm.as_tags`). Sampled ids stay as they are. A template without tools gets the
    description of Qwen's templates in the system message; the role is then "user".
    """

    template: bool = True  # whether to use the template of a model that has one
    turns: Literal["single", "messages", "appended"] = "single"
    system: str | None = None  # the system prompt; None: the template's default
    enable_thinking: bool | None = None  # Qwen3's switch: False begins the answer with an empty thought
    tools: bool = False  # whether a search is a tool call instead of the text between <search> and </search>

    def check(self, tokenizer: Tokenizer) -> None:
        """Raises a UserError if the tokenizer's template does not support a setting."""
        template = tokenizer.chat_template
        asked = [name for name in ("system", "enable_thinking") if getattr(self, name) is not None]
        asked += ["turns"] * (self.turns != "single") + ["tools"] * self.tools
        if asked and (template is None or not self.template):
            raise UserError(
                f"Chat.{asked[0]} is set, but Chat.template is False or the policy has no chat template: remove the"
                " setting"
            )
        if template is not None and self.enable_thinking is not None and "enable_thinking" not in template.source:
            raise UserError(
                "Chat.enable_thinking is set, but the policy's chat template knows no such switch: remove the setting"
            )
        if self.tools and self.turns == "single":
            raise UserError("Chat.tools is set, but a call ends a turn: set Chat.turns = 'messages' or 'appended' too")
        if template is not None and self.template:
            self.opening(tokenizer, _PASSAGE, offers=(SEARCH_TOOL,))
            conversation, special = self.conversation(tokenizer), tokenizer.special_tokens
            control = CONTROL.match(conversation.closes.lstrip())
            end = conversation.end(special) or (control and control[0])
            if end is not None and special.get(end) not in tokenizer.eos_ids:
                raise UserError(
                    f"the model's chat template ends a turn by {end!r}, which is no end of sequence of the model: add"
                    " it to eos_token_id in its generation_config.json, or use the tokenizer of this template"
                )
        if self.turns != "single":
            self.check_messages(tokenizer)

    def opening(
        self, tokenizer: Tokenizer, text: str, system: str | None = None, offers: Sequence[str] | None = None
    ) -> ChatPrompt:
        """Returns the beginning of a context, as text and as tokens.

        The method's instructions, `system`, are placed after the run's system prompt. `offers` names the tools that a
        program offers besides those of which its instructions speak; None: no dialogue follows, so there are no tools.
        """
        schemas: dict[str, Any] = {}
        given = [message for message in (self.system, system) if message is not None]
        if self.tools and offers is not None:
            speaks = speaks_of_searches(f"{text}{system or ''}")
            offered = speaks or SEARCH_TOOL in offers
            if speaks and (form := self.call_form(tokenizer)):
                text, system = reworded_instructions(text, form), system and reworded_instructions(system, form)
            if offered and self._writes_tools(tokenizer):
                schemas["tools"] = [SCHEMA]
            elif offered:
                # With a system message the template does not write its default one.
                default = None if given else self.conversation(tokenizer).system
                system = "\n\n".join(filter(None, (default, system, OFFER)))
        given = [message for message in (self.system, system) if message is not None]
        instructions = "\n\n".join(filter(None, given))
        if not self.template or tokenizer.chat_template is None:
            text = f"{instructions}\n\n{text}" if instructions else text
            return ChatPrompt(text, [*tokenizer.beginning_ids, *tokenizer.encode_ordinary(text)])
        first = [{"role": "system", "content": instructions}] if given else []
        prompt = tokenizer.encode_chat([*first, {"role": "user", "content": text}], **self._options, **schemas)
        if lost := [message for message in (*given, text) if message.strip() not in prompt.text]:
            raise UserError(
                f"the model's chat template does not write the {'system' if lost[0] in given else 'user'} message"
                f" {lost[0][:60]!r} into the prompt: use a template of plain texts with this role, or no template by"
                " Chat.template = False"
            )
        if schemas and DESCRIPTION not in prompt.text:
            raise UserError(
                "Chat.tools is set, but the model's chat template does not write the description of a tool into the"
                " prompt: use its template for tools, or Chat.tools = False"
            )
        return prompt

    def _writes_tools(self, tokenizer: Tokenizer) -> bool:
        template = tokenizer.chat_template
        return self.tools and template is not None and re.search(r"\btools\b", template.source) is not None

    def call_form(self, tokenizer: Tokenizer) -> CallForm | None:
        """Returns how the model calls tools, as its template writes it; None without `tools`."""
        if not self.tools or not self._writes_tools(tokenizer):
            return CallForm() if self.tools else None
        plain, calls = (
            tokenizer.encode_chat(
                [QUESTION, reply, {"role": "tool", "content": "Turku"}], tools=[SCHEMA], **self._options
            ).text
            for reply in (REPLY, PROBE)
        )
        header, _, rest = plain.partition(REPLY["content"])
        return form_of(calls.removeprefix(header).removesuffix(rest))

    @property
    def _options(self) -> dict[str, Any]:
        return {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}

    def conversation(self, tokenizer: Tokenizer) -> Conversation:
        """Returns what the template writes around turns; nothing without a template."""
        used = self.template and tokenizer.chat_template
        return used.conversation(**self._options) if used else Conversation()

    def end_of_turn(self, tokenizer: Tokenizer) -> int | None:
        """Returns the token by which the template ends the model's turn; None if it is not an end of sequence."""
        ends = (name for name, index in tokenizer.special_tokens.items() if index in tokenizer.eos_ids)
        end = self.conversation(tokenizer).end(ends)
        return None if end is None else tokenizer.special_tokens[end]

    def observation(self, tokenizer: Tokenizer, role: str, text: str) -> ChatPrompt:
        """Returns what stands between a turn of the model and its next one, whose message in between is the text."""
        messages = [QUESTION, REPLY, {"role": role, "content": text}]
        return tokenizer.encode_chat(messages, after=REPLY["content"], **self._options)

    def observation_role(self, tokenizer: Tokenizer) -> str:
        """Returns the role of observations: "tool" if the template names it and writes its text as it is, or "user".

        With tools in the template it is "tool" in any form: Llama 3's writes the text as JSON.
        """
        if self._writes_tools(tokenizer):
            return "tool"
        if tokenizer.chat_template is not None and re.search("""["']tool["']""", tokenizer.chat_template.source):
            with contextlib.suppress(UserError):
                if _PASSAGE in self.observation(tokenizer, "tool", _PASSAGE).text:
                    return "tool"
        return "user"

    def markup_tokens(self, tokenizer: Tokenizer) -> int:
        """Returns the number of tokens that the template adds to an observation."""
        if self.turns == "single":
            return 0
        return len(self.observation(tokenizer, self.observation_role(tokenizer), "").ids)

    def check_messages(self, tokenizer: Tokenizer) -> None:
        """Raises a UserError unless a conversation written turn by turn has the ids of the whole one.

        With "appended" turns, only what follows each turn of the model must have the ids that it has in the whole one.
        """
        role = self.observation_role(tokenizer)
        replies = ["A search.", "<think>\nA thought.\n</think>\n\nA search.", "An answer."]
        if form := self.call_form(tokenizer):
            call = form.written("Turku?")
            replies += [call, f"<think>\nA thought.\n</think>\n\n{call}"] if form.with_text else [call]
        start = self.opening(tokenizer, QUESTION["content"], offers=(SEARCH_TOOL,))
        text, ids = start.text, list(start.ids)
        schemas: dict[str, Any] = {"tools": [SCHEMA]} if self._writes_tools(tokenizer) else {}
        default = self.conversation(tokenizer).system if self.system is None else self.system
        instructions = "\n\n".join(filter(None, (default, OFFER))) if form and not schemas else self.system
        messages: list[Message] = [] if instructions is None else [{"role": "system", "content": instructions}]
        messages.append(QUESTION)
        refused = f"Chat.turns is {self.turns!r}, but the model's chat template"
        for reply in replies:
            added = self.observation(tokenizer, role, _PASSAGE)
            latest = [*messages, REPLY, {"role": role, "content": _PASSAGE}]
            if tokenizer.encode_chat(latest, after=REPLY["content"], **self._options, **schemas) != added:
                raise UserError(
                    f"{refused} writes a message in other words as the conversation goes on: set Chat.turns = 'single'"
                )
            text += reply + added.text
            ids += [*tokenizer.encode_ordinary(reply, continues=True), *added.ids]
            said = form.message(reply) if form else {"role": "assistant", "content": reply}
            messages += [said, {"role": role, "content": _PASSAGE}]
        if ("in Finland" if schemas else _PASSAGE) not in added.text:  # Llama 3 writes a tool's text as JSON
            raise UserError(f"{refused} does not write an observation as it is: set Chat.turns = 'single'")
        whole = tokenizer.encode_chat(messages, **self._options, **schemas)
        lines = itertools.zip_longest(text.split("\n"), whole.text.split("\n"), fillvalue="")
        differing = next(((one, other) for one, other in lines if one != other), None)
        exact = self.turns == "messages"
        if differing and exact:
            raise UserError(
                f"{refused} writes earlier turns anew as the conversation goes on: the line {differing[0]!r} becomes"
                f" {differing[1]!r}; set Chat.turns = 'appended' to keep every turn as it was sampled, or 'single'"
            )
        if (exact and ids != whole.ids) or added.ids[0] not in tokenizer.special_tokens.values():
            raise UserError(
                f"{refused} has no control token between turns, so a token could span them: set Chat.turns = 'single'"
            )


@dataclasses.dataclass(frozen=True)
class PlacedText:
    """Environment text with its tokens, as it appears in a context."""

    text: str  # in the chat template if it opens the context of a chat model
    tokens: Sequence[int]
    written: str  # the program's text; `text` has the template's markup in addition
    system: str | None = None  # the program's instructions, if it opens the context


class ContextTokenizer:
    """Encodes environment text; caches encodings, since prompts repeat within a group and passages over a run."""

    def __init__(self, tokenizer: Tokenizer, chat: Chat, cut_passages: str = MATCHING):
        self._tokenizer, self.cut_passages = tokenizer, cut_passages
        # Of observations in messages: their role, and the token that ends the model's turn before them.
        self.role = chat.observation_role(tokenizer) if chat.turns != "single" else None
        self.call_form = chat.call_form(tokenizer)
        self.end_of_turn = chat.end_of_turn(tokenizer) if self.role else None
        self._message = functools.lru_cache(REMEMBERED_TEXTS)(
            functools.partial(chat.observation, tokenizer, self.role or "user")
        )
        self._longest_token_bytes = max(map(len, tokenizer.token_bytes))
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

    def place(
        self,
        text: str,
        *,
        opens: bool = False,
        system: str | None = None,
        offers: tuple[str, ...] | None = None,
        replies: bool = False,
        closed: bool = False,
    ) -> PlacedText:
        """Returns a text with its tokens, at the opening of a context (see `Chat.opening`) or in its continuation.

        With `replies`, it is a message that follows a turn of the model, which it closes unless that is `closed`.
        """
        text = text if opens else self.shown(text)
        if replies:
            message = self._message(text)
            if not closed:
                return PlacedText(message.text, message.ids, text)
            end = self._tokenizer.decode_bytes(message.ids[:1]).decode()
            return PlacedText(message.text.removeprefix(end), message.ids[1:], text)
        if not opens:
            return PlacedText(text, self.encode(text), text)
        opening = self.opening(text, system, offers)
        return PlacedText(opening.text, opening.ids, text, system)

    def fit(self, text: FittedText, room_tokens: int, **how: Any) -> PlacedText | None:
        """Returns the text, `place`d with its markup, in at most `room_tokens`; None if it does not fit."""
        target = room_tokens
        while (fitted := text.fit(self, target)) is not None:
            placed = self.place(fitted, **how)
            if (excess := len(placed.tokens) - room_tokens) <= 0:
                return placed
            target -= excess
        return None

    def shown(self, text: str) -> str:
        """Returns a program's text after the opening as the policy reads it: it speaks of the tool that there is."""
        return reworded(text, self.call_form) if self.call_form else text

    def stops(self, request: Generate) -> tuple[str, ...]:
        """Returns the stop strings of a generation of the policy."""
        return self.call_form.stops(request.stop, request.join) if self.call_form else request.stop

    def read(self, text: str, request: Generate) -> str:
        """Returns the policy's text as its program reads it."""
        return self.call_form.as_tags(text, request.join) if self.call_form else text

    def demonstrated(self, text: str) -> tuple[str, list[int]]:
        """Returns a text that the policy learns to write, and the end of turn that follows if it is a call."""
        said = self.call_form.as_call(text) if self.call_form else text
        calls = self.call_form is not None and self.call_form.split(said)[1]
        return said, [self.end_of_turn] if calls and self.end_of_turn is not None else []

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids that continue a context."""
        return self._tokenizer.decode_bytes(ids).decode("utf-8", errors="replace")

"""Conversations in a model's own chat template, in which only the template's markup is control tokens."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from lcrag.errors import UserError

Message: TypeAlias = Mapping[str, str]

# Llama 3.1 and later write the day into their system turn, with this day where none can be told. A prompt that changes
# from day to day could not be sampled again.
DATE = "26 Jul 2024"
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # Unicode keeps them for internal use


@dataclasses.dataclass(frozen=True)
class ChatPrompt:
    """A conversation as it is given to the model.

    Attributes:
      text: The template's markup and the contents.
      ids: Its tokens.
    """

    text: str
    ids: list[int]


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template as `transformers` writes it.

    Attributes:
      source: The template.
      variables: What it may refer to beside the messages: `bos_token` and its like.
    """

    source: str
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def render(self, messages: Sequence[Message], **options: Any) -> str:
        """The conversation, up to where the model is to go on; rendered in a sandbox.

        Raises:
          UserError: the template is malformed, or refuses these messages.
        """
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        variables: dict[str, Any] = {"date_string": DATE, **self.variables, **options}
        conversation = [dict(message) for message in messages]
        try:
            rendered, _ = render_jinja_template(
                conversations=[conversation], chat_template=self.source, add_generation_prompt=True, **variables
            )
        except jinja2.TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise UserError(
                f"the model's chat template refuses a conversation of {roles}: {error}; change Chat.system, or write"
                " prompts without a template by Chat.template = False"
            ) from error
        return rendered[0]


@dataclasses.dataclass(frozen=True)
class MarkedText:
    """A rendered conversation, and where in it a content spells a control token.

    Attributes:
      text: The conversation.
      forged: Character positions at which contents, not the template, spell a control token.
    """

    text: str
    forged: tuple[int, ...]

    def forges(self, start: int, end: int) -> bool:
        """Whether the characters from `start` to `end` hold such a position."""
        return any(start <= position < end for position in self.forged)


def render_marked(
    template: ChatTemplate, messages: Sequence[Message], special_tokens: Iterable[str], options: Mapping[str, Any]
) -> MarkedText:
    """Renders a conversation, and finds the control tokens that its contents spell.

    They are marked by a character that occurs nowhere else, and the marks are taken out of the rendered text.
    """
    whole = "".join(message["content"] for message in messages)
    mark = next(character for character in _NONCHARACTERS if character not in whole)
    spelled = re.compile("(?=" + "|".join(map(re.escape, special_tokens)) + ")") if special_tokens else None
    marked = [
        {**message, "content": spelled.sub(mark, message["content"]) if spelled else message["content"]}
        for message in messages
    ]
    pieces = template.render(marked, **options).split(mark)
    positions, length = [], 0
    for piece in pieces[:-1]:
        length += len(piece)
        positions.append(length)
    return MarkedText("".join(pieces), tuple(positions))

"""Stages 2 and 4: who turns a question's parts into another language, and what of it can be used."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from lcrag.episodes import Translator
from lcrag.methods.translate_r1.pipeline.asking import Ask
from lcrag.methods.translate_r1.pipeline.domains import TextKind
from lcrag.methods.translate_r1.pipeline.parts import Parts, parts_in
from lcrag.methods.translate_r1.pipeline.patience import Patience
from lcrag.methods.translate_r1.pipeline.prompts import translation_prompt

TRANSLATOR = "translator"

AskModel: TypeAlias = Callable[[Ask], Awaitable[str]]
# (parts, what they are, code of their language, code of the language wanted) -> the parts in it; None: there are none
Render: TypeAlias = Callable[[Mapping[str, str], TextKind, str, str], Awaitable[Parts | None]]


class PromptedRendering:
    """Asks a model by the prompt of the kind of text.

    Args:
      ask: Asks the model that has the role `translator`.
    """

    def __init__(self, ask: AskModel):
        self._ask = ask
        self._patience = Patience("the translator writes no translation between <output> and </output>")

    async def __call__(self, parts: Mapping[str, str], kind: TextKind, source: str, target: str) -> Parts | None:
        """The parts in the language wanted; None where the answer does not hold them all.

        Raises:
          UserError: the model is away, or never gives an answer that can be used.
        """
        prompt = translation_prompt(parts, kind, source, target)
        said = await self._ask(Ask(role=TRANSLATOR, prompt=prompt, max_tokens=kind.max_tokens))
        found = parts_in(said, parts)
        self._patience.saw(said, usable=found is not None)
        return found


class ExactRendering:
    """Asks a translator that makes no mistakes, such as the look-up of constructed languages, on another thread.

    Args:
      translator: Translates some texts.
    """

    def __init__(self, translator: Translator):
        self._translator = translator

    async def __call__(self, parts: Mapping[str, str], kind: TextKind, source: str, target: str) -> Parts | None:
        """The parts in the language wanted; None where the translator fails for one of them.

        Raises:
          UserError: the translator does not know a language.
        """
        texts = await asyncio.to_thread(self._translator, list(parts.values()), source, target)
        rendered = {key: text for key, text in zip(parts, texts, strict=True) if isinstance(text, str) and text.strip()}
        return rendered if rendered.keys() == parts.keys() else None

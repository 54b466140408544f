"""The tool for many callers at once: their questions are collected into one run of the engine."""

import asyncio
from collections.abc import Hashable, Sequence
from types import TracebackType

from lcrag.app.commands.serve.findings import Findings
from lcrag.app.commands.serve.limits import USUAL_TOOL_LIMITS, ToolLimits
from lcrag.app.commands.serve.search_tool import SearchTool
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.retrieval.service import Batcher, Overloaded


class Refusal(Exception):
    """A question that is not answered; the message is one sentence.

    Attributes:
      status: HTTP's number for the reason.
    """

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


class ToolService:
    """Answers questions of many callers; an asynchronous context manager.

    Args:
      tool: Called on one thread of the service's own, for as many questions as wait, up to the number of slots.
      limits: What a request may ask for.
      window_seconds: How long a question that finds the tool idle waits for others.
    """

    def __init__(self, tool: SearchTool, *, limits: ToolLimits = USUAL_TOOL_LIMITS, window_seconds: float = 0.02):
        self.tool, self.limits = tool, limits
        self._batcher: Batcher[Question, Findings] = Batcher(
            self._answer_together,
            called="questions",
            window_seconds=window_seconds,
            batch_items=tool.runner.sampler.slots,
            waiting_items=limits.waiting_questions,
        )

    async def __aenter__(self) -> "ToolService":
        await self._batcher.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trail: TracebackType | None
    ) -> None:
        await self._batcher.__aexit__(kind, error, trail)

    @property
    def running(self) -> bool:
        """Whether questions are being answered."""
        return self._batcher.running

    async def answer(self, text: str, language: str | None) -> Findings:
        """What the tool finds for a question.

        Raises:
          Refusal: it is not answered, and why.
        """
        if len(text) > self.limits.question_characters:
            raise Refusal(413, f"the question has {len(text)} characters: ask in {self.limits.question_characters}")
        try:
            question = await asyncio.to_thread(self.tool.question, text, language)
        except UserError as error:
            raise Refusal(422, str(error)) from error
        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                [findings] = await self._batcher.ask([question])
        except TimeoutError as error:
            raise Refusal(504, f"no answer within {self.limits.answer_seconds} seconds") from error
        except Overloaded as error:
            raise Refusal(503, f"{error}: come back later") from error
        except Exception as error:  # the batcher has logged it
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            raise Refusal(500, f"the question could not be answered: {reason}") from error
        return findings

    def _answer_together(self, questions: Sequence[Question], kind: Hashable) -> Sequence[Findings]:
        return self.tool.answer(questions)

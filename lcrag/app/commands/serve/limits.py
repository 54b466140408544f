"""What the served tool accepts."""

import dataclasses

from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """What one request may ask of a served tool, and how much may wait.

    Attributes:
      body_bytes: Longest body of a request.
      question_characters: Longest question; the policy's context may allow less.
      waiting_questions: Most questions that wait for a run of the engine; beyond it a caller is told to come back.
      body_seconds: For a request to arrive.
      answer_seconds: For its answer, waiting included.
    """

    body_bytes: int = 1 << 16
    question_characters: int = 4000
    waiting_questions: int = 1024
    body_seconds: float = 10.0
    answer_seconds: float = 120.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise UserError(f"ToolLimits.{field.name} is {getattr(self, field.name)}: nothing would be accepted")


USUAL_TOOL_LIMITS = ToolLimits()

"""Demonstrations: dialogues for supervised learning, one JSON object per line.

{"prompt": "Where is Chad?\n", "turns": [
    {"by": "policy", "text": "<search> Chad</search>"},
    {"by": "environment", "text": "<information>...</information>"},
    {"by": "policy", "text": "<answer> in Africa</answer>"}]}

The episode files of a run have this format. Only the policy's turns are learned, except those with `"learn": false`.

Rows of messages are read too: an optional system message, the user's opening, and the turns. The policy is the
assistant, and `"weight": 0` is `"learn": false`:

{"messages": [{"role": "user", "content": "Where is Chad?"}, {"role": "assistant", "content": "<search> Chad</search>"},
    {"role": "user", "content": "<information>..."}, {"role": "assistant", "content": "<answer> in Africa</answer>"}]}
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import pydantic
import pydantic_core

from lcrag.data.questions import Question, seeded_order
from lcrag.data.rows import BadRows, Row, read_rows
from lcrag.errors import AbsentError, UserError
from lcrag.files import matching_files
from lcrag.rewards.text import is_visible

Part: TypeAlias = Literal["all", "train", "validation"]


class DemonstratedTurn(Row):
    """A turn of a demonstration; `learn` is True for the policy's unless a row says otherwise."""

    by: Literal["policy", "environment"]
    text: str
    learn: Annotated[bool, pydantic.Field(validate_default=True)] = None  # type: ignore[assignment]

    @pydantic.field_validator("learn", mode="before")
    @classmethod
    def _never_the_environment(cls, learn: bool | None, info: Any) -> bool:
        by_policy = info.data.get("by") == "policy"
        if learn and not by_policy:
            raise pydantic_core.PydanticCustomError("learn", "the environment's text is never learned")
        return by_policy if learn is None else learn


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demonstration:
    """A dialogue to learn from, read from a line (from 1) of a file."""

    opening: str  # first text of the environment, without a chat template
    turns: tuple[DemonstratedTurn, ...]
    topic: str  # key of the question; all demonstrations of a topic are on the same side of a split
    path: pathlib.Path
    line: int
    in_template: bool = False  # whether the opening may be in a chat template already: the row does not say
    system: str | None = None  # the program's instructions, a chat model's system message
    question: Question | None = None  # with an empty text, language or id where the row does not say it

    @property
    def asked(self) -> list[Question]:
        """Its question or, where only the opening has that, every line of this, and what follows ": " in it."""
        known = self.question or Question(id="", dataset="", language="", text="", answers=())
        lines = [part for line in self.opening.splitlines() for part in {line, line.partition(": ")[2]}]
        texts = [known.text] if known.text else [self.opening, *lines]
        return [dataclasses.replace(known, text=text) for text in texts if is_visible(text)]


class _Message(Row):
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    weight: Literal[0, 1] = 1


class _Dialogue(Row):
    messages: list[_Message]


class _DemonstrationRow(Row):
    """One line, with the turns or with `messages` in their place; other fields of an episode's line are ignored.

    `opening` holds the texts of `prompt` before the chat template was applied: the program's first text, then those
    that precede the policy's first turn.
    """

    prompt: Annotated[str, pydantic.Field(min_length=1)]
    opening: Annotated[list[str], pydantic.Field(min_length=1)] | None = None
    system: str | None = None
    turns: Annotated[list[DemonstratedTurn], pydantic.Field(min_length=1)]
    dataset: str | None = None
    question_id: str | int | None = None
    language: str | None = None
    question: str | None = None
    golds: list[str] = []

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_messages(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("messages") is None or value.get("turns") is not None:
            return value
        messages = _Dialogue.model_validate(value).messages
        system = messages.pop(0).content if messages and messages[0].role == "system" else None
        if not messages or messages[0].role != "user" or any(message.role == "system" for message in messages):
            raise pydantic_core.PydanticCustomError("order", "messages are the system's, if any, the user's, the turns")
        opening = messages.pop(0).content
        turns = [
            {"by": "policy", "text": message.content, "learn": message.weight == 1}
            if message.role == "assistant"
            else {"by": "environment", "text": message.content}
            for message in messages
        ]
        return value | {"prompt": opening, "opening": [opening], "system": system, "turns": turns}


def read_demonstrations(patterns: Sequence[str | pathlib.Path], bad_rows: BadRows) -> list[Demonstration]:
    """Reads the demonstrations in files of JSON lines, or in patterns such as `episodes/step_*.jsonl`, in order."""
    if not patterns:
        raise UserError("no file of demonstrations is named: give at least one")
    demonstrations = []
    for pattern in map(str, patterns):
        paths = matching_files(pattern)
        if not paths:
            raise AbsentError(f"no file is called {pattern}: correct the name")
        for path in paths:
            for line, row in read_rows(path, _DemonstrationRow, bad_rows):
                if not any(turn.learn and turn.text for turn in row.turns):
                    bad_rows.add(path, line, "turns", "the row has no policy text to learn")
                    continue
                opening, *shown = row.opening or [row.prompt]
                demonstration = Demonstration(
                    opening=opening,
                    turns=(*(DemonstratedTurn(by="environment", text=text) for text in shown), *row.turns),
                    topic=row.prompt if row.question_id is None else f"{row.dataset}/{row.question_id}",
                    path=path,
                    line=line,
                    in_template=row.opening is None,
                    system=row.system,
                    question=Question(
                        id="" if row.question_id is None else str(row.question_id),
                        dataset=row.dataset or "",
                        language=row.language or "",
                        text=row.question or "",
                        answers=tuple(row.golds),
                    ),
                )
                demonstrations.append(demonstration)
    return demonstrations


def take_part(
    demonstrations: Sequence[Demonstration], part: Part, validation_share: float, seed: int
) -> list[Demonstration]:
    """Returns a part (train, validation or all) of a seeded split; a topic is on one side."""
    if part == "all":
        return list(demonstrations)
    topics = seeded_order({demonstration.topic for demonstration in demonstrations}, seed)
    held_out = set(topics[: max(1, round(validation_share * len(topics)))])
    if len(held_out) == len(topics):
        raise UserError(
            f"the demonstrations are about {len(topics)} questions, too few to keep {validation_share:.0%} of them for"
            " validation: add some, or give the validation rows a file of their own"
        )
    wanted = part == "validation"
    return [demonstration for demonstration in demonstrations if (demonstration.topic in held_out) == wanted]

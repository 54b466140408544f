"""The teacher that only knows the answers: SFT's rows "question and passages -> answer" (LcRL, Section 4.1)."""

import dataclasses
from collections.abc import Sequence

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Generate, Turn
from lcrag.errors import UserError

PLACE = "{answer}"


@dataclasses.dataclass(frozen=True)
class GoldenAnswers:
    """Writes the first golden answer whenever the program lets the policy write; a `Teacher`.

    In a program that retrieves by itself this is the SFT baseline, in one that lets the policy search it is answering
    without a search.

    Attributes:
      template: What is written, with `{answer}` in the answer's place; what the context ends with is not written again,
        where the environment has opened the answer itself.
    """

    template: str = "<answer> {answer}</answer>"

    def __post_init__(self):
        if PLACE not in self.template:
            raise UserError(f"the template {self.template!r} of golden answers has no place {PLACE} for the answer")

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate) -> str:
        head, _, tail = self.template.partition(PLACE)
        if head.strip() and turns[-1].text.endswith(head.rstrip()):
            head = head[len(head.rstrip()) :]
        return head + golden_answer(question) + tail


def golden_answer(question: Question) -> str:
    """The answer that a demonstration gives.

    Raises:
      UserError: the question has none.
    """
    if not question.answers:
        raise UserError(
            f"question {question.dataset}/{question.id} ({question.language}) has no golden answer to learn"
        )
    return question.answers[0].strip()


def misread(record: EpisodeRecord) -> str:
    """How the program took the golden answer for something else, in words; empty if it read it."""
    golden = golden_answer(record.question)
    if record.finished and record.outcome.answer == golden:
        return ""
    if not record.finished:
        return "its passages leave no room in the context for the answer"
    written = "".join(turn.text for turn in record.turns if turn.by == "policy")
    return f"the program read the answer {record.outcome.answer!r} from {written!r}, not {golden!r}"

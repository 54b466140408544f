"""The steps of a baseline: one prompt each, in which passages or statements may stand, and how its text is read."""

import dataclasses
from collections.abc import Generator
from typing import Any

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.observation import Framed, Information
from lcrag.episodes.prompts import answer_language
from lcrag.episodes.requests import FittedText, Found, Generate, Observe, Outcome, RetrievalFailure
from lcrag.episodes.tags import ANSWER, answer_in, closing, neutralise, opening


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """What a baseline asks a model once.

    Attributes:
      before: The prompt up to the passages; all of it where there are none. Filled in: {question}, {wanted} (the
        answer's language in English), {example} (an answer in it), and what else the step says.
      after: The prompt behind the passages.
      tag: The tag that holds what the model is asked for.
      stop: Strings that end the model's text.
      opened: What the prompt's end has already written of the model's text; for models that follow no instructions.
      style: Name of the passage style.
      shown: How its text is shown to a later step: {text}, and what else the step says.
    """

    before: str
    after: str = ""
    tag: str = ANSWER
    stop: tuple[str, ...] = (closing(ANSWER),)
    opened: str = ""
    style: str = "search_r1"
    shown: str = "{text}\n"

    def text(self, question: Question, **values: Any) -> str:
        """The prompt without passages.

        Raises:
          UserError: a language that `lcrag.data.languages` does not know.
        """
        return self._filled(self.before + self.after, question, values) + self.opened

    def around(self, block: Information, question: Question, **values: Any) -> Framed:
        """The prompt around passages.

        Raises:
          UserError: a language that `lcrag.data.languages` does not know.
        """
        before, after = (self._filled(part, question, values) for part in (self.before, self.after))
        return Framed(before, block, after + self.opened)

    def _filled(self, part: str, question: Question, values: dict[str, Any]) -> str:
        wanted = language_of(answer_language(question))
        values = {"question": question.text, **values}
        safe = {name: neutralise(str(value)) for name, value in values.items()}
        return part.format(wanted=wanted.name, example=wanted.example, **safe)

    def show(self, written: str, **values: Any) -> str:
        """What the model said inside the tag, or all it said where it forgot the tag, for a later step."""
        said = inside(self.tag, self.opened + written)
        return self.shown.format(text=" ".join(said.split()), **values)


def titles_of(found: Found | RetrievalFailure) -> str:
    """The titles of what a search found, each once."""
    if isinstance(found, RetrievalFailure):
        return ""
    return "; ".join(dict.fromkeys(hit.title for languages in found for hits in languages for hit in hits))


def inside(tag: str, text: str) -> str:
    """What follows the last opening of a tag up to its closing; the whole text where it is never opened."""
    _, opened, rest = text.rpartition(opening(tag))
    return rest.partition(closing(tag))[0].strip() if opened else text.strip()


def answer_from(step: Step, prompt: str | FittedText) -> Generator[Observe | Generate, Any, Outcome]:
    """The last step of a baseline: its prompt opens the episode's own context, and the policy answers there."""
    yield Observe(prompt)
    text = yield Generate(stop=step.stop)
    answer = answer_in(step.opened + text)
    return Outcome(answer=answer, invalid_actions=int(answer is None))

"""Steps of the baselines: requests to a model, with the prompts and the reading of answers that several share.

Every step has two wordings: "full" for models that follow instructions, "atlas" for the built-in tiny one. The prompts
paraphrase those of the papers, with the tags and the answer format of LcRL's prompt, so methods do not differ in how
their answers are parsed. Those of a single baseline are in the file of its program.
"""

import dataclasses
from collections.abc import Generator
from typing import Any

from lcrag.data.questions import Question, language_of
from lcrag.episodes.programs import FittedText, Found, Generate, Observe, Outcome, RetrievalFailure, answer_language
from lcrag.episodes.searches import Framed, Information
from lcrag.episodes.tags import ANSWER, SEARCH, answer_in, closing, neutralise, opening


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One request to a model.

    Attributes:
      before: The prompt up to the passages, or the whole prompt without passages. Placeholders: {question}, {wanted}
        (English name of the answer's language), {example} (an answer in it), and the step's own values.
      after: The prompt after the passages.
      tag: The tag around the requested text.
      stop: Strings that end the model's text.
      opened: Beginning of the model's text that the prompt already contains.
      then_opened: Shown after a last text without an answer, before the policy writes once more; "" to end there.
      style: Name of the passage style.
      shown: How the text is shown to a later step: {text}, and the step's own values.
    """

    before: str
    after: str = ""
    tag: str = ANSWER
    stop: tuple[str, ...] = (closing(ANSWER),)
    opened: str = ""
    then_opened: str = ""
    style: str = "search_r1"
    shown: str = "{text}\n"

    def text(self, question: Question, **values: Any) -> str:
        """Returns the prompt without passages."""
        return self._filled(self.before + self.after, question, values) + self.opened

    def around(self, block: Information, question: Question, **values: Any) -> Framed:
        """Returns the prompt with passages."""
        before, after = (self._filled(part, question, values) for part in (self.before, self.after))
        return Framed(before, block, after + self.opened)

    def _filled(self, part: str, question: Question, values: dict[str, Any]) -> str:
        wanted = language_of(answer_language(question))
        values = {"question": question.text, **values}
        safe = {name: neutralise(str(value)) for name, value in values.items()}
        return part.format(wanted=wanted.name, example=wanted.example, **safe)

    def show(self, written: str, **values: Any) -> str:
        """Returns the text inside the tag, or all text if the model forgot the tag, as a later step sees it."""
        content = inside(self.tag, self.opened + written)
        return self.shown.format(text=" ".join(content.split()), **values)


def titles_of(found: Found | RetrievalFailure) -> str:
    """Returns the titles of a search's passages, without duplicates."""
    if isinstance(found, RetrievalFailure):
        return ""
    return "; ".join(dict.fromkeys(hit.title for languages in found for hits in languages for hit in hits))


def inside(tag: str, text: str) -> str:
    """Returns the text from the last opening of a tag to its closing; the whole text if it is never opened."""
    _, opened, rest = text.rpartition(opening(tag))
    return rest.partition(closing(tag))[0].strip() if opened else text.strip()


def answer_from(step: Step, prompt: str | FittedText) -> Generator[Observe | Generate, Any, Outcome]:
    """Runs a baseline's last step: its prompt opens the episode's own context, and the policy answers.

    If its text has no answer and the step has `then_opened`, that is shown, and the policy writes once more.
    """
    yield Observe(prompt)
    text = yield Generate(stop=step.stop)
    answer = answer_in(step.opened + text)
    if answer is None and step.then_opened:
        yield Observe(step.then_opened)
        text = yield Generate(stop=(closing(ANSWER),))
        answer = answer_in(step.then_opened + text)
    return Outcome(answer=answer, invalid_actions=int(answer is None))


REASON_AND_ANSWER = (
    "Reason inside <think> and </think> first, then provide the answer inside <answer> and </answer> without detailed "
    "illustrations. Note: The answer must be in {wanted}. For example: <answer> {example} </answer>. "
)
QUESTION = "Question: {question}\n"
# The tiny policy notes a sentence of the passages on a line and answers with its value. Such lines are shown to later
# steps as passages.
SHORT = Step(
    before="{question}\n", stop=("\n", closing(ANSWER)), then_opened=opening(ANSWER), style="atlas", shown=" {text}\n"
)
SEARCHES_OR_ANSWERS = Step(before="{question}\n", stop=(closing(SEARCH), closing(ANSWER)), style="atlas")

RAG = {
    "full": Step(
        before="Answer the given question with the help of the passages between <information> and </information>. They "
        "may be incomplete, irrelevant or in other languages. " + REASON_AND_ANSWER,
        after=QUESTION,
    ),
    "atlas": SHORT,
}

"""Prompts of the baselines, one for each step, and parsing of the model's text.

Every step has two wordings: "full" for models that follow instructions, "atlas" for the built-in tiny one. The prompts
paraphrase those of the papers, with the tags and the answer format of LcRL's prompt, so methods do not differ in how
their answers are parsed.
"""

import dataclasses
from collections.abc import Generator
from typing import Any

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.observation import Framed, Information
from lcrag.episodes.prompts import answer_language
from lcrag.episodes.requests import FittedText, Found, Generate, Observe, Outcome, RetrievalFailure
from lcrag.episodes.tags import ANSWER, INFORMATION, SEARCH, answer_in, closing, neutralise, opening


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
        """Returns the prompt without passages.

        Raises:
          UserError: `lcrag.data.languages` does not know a language.
        """
        return self._filled(self.before + self.after, question, values) + self.opened

    def around(self, block: Information, question: Question, **values: Any) -> Framed:
        """Returns the prompt with passages.

        Raises:
          UserError: `lcrag.data.languages` does not know a language.
        """
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


_REASON_AND_ANSWER = (
    "Reason inside <think> and </think> first, then provide the answer inside <answer> and </answer> without detailed "
    "illustrations. Note: The answer must be in {wanted}. For example: <answer> {example} </answer>. "
)
_QUESTION = "Question: {question}\n"
_NEXT_SENTENCE = (
    _QUESTION
    + "Reasoning so far: {thoughts}\nWrite the next sentence of the reasoning, and nothing else. When you know the "
    "answer, write instead: So the answer is <answer> {example} </answer>. The answer must be in {wanted}.\n"
)
# The tiny policy notes a sentence of the passages on a line and answers with its value. Such lines are shown to later
# steps as passages.
_SHORT = Step(
    before="{question}\n", stop=("\n", closing(ANSWER)), then_opened=opening(ANSWER), style="atlas", shown=" {text}\n"
)
_SEARCHES_OR_ANSWERS = Step(before="{question}\n", stop=(closing(SEARCH), closing(ANSWER)), style="atlas")
_CANDIDATE = Step(before="{question}\n", opened=opening(ANSWER), style="atlas", shown=" {text}\n")

DIRECT = {
    "full": Step(before="Answer the given question from your own knowledge. " + _REASON_AND_ANSWER + _QUESTION),
    "atlas": _SHORT,
}

RAG = {
    "full": Step(
        before="Answer the given question with the help of the passages between <information> and </information>. They "
        "may be incomplete, irrelevant or in other languages. " + _REASON_AND_ANSWER,
        after=_QUESTION,
    ),
    "atlas": _SHORT,
}

IRCOT_THOUGHT = {
    "full": Step(
        before="Answer the given question by reasoning one sentence at a time. The passages found so far stand between "
        "<information> and </information>; more are searched for with each sentence you write.",
        after=_NEXT_SENTENCE,
    ),
    "atlas": _SEARCHES_OR_ANSWERS,
}

FLARE_SENTENCE = {
    "full": Step(
        before="Answer the given question by reasoning one sentence at a time. If passages stand between <information> "
        "and </information>, they were found for the sentence you are about to write. ",
        after=_NEXT_SENTENCE,
    ),
    "atlas": _SEARCHES_OR_ANSWERS,
}

FLARE_ANSWER = {
    "full": Step(
        before="Answer the given question by the reasoning below, and by passages if some stand between <information> "
        "and </information>. ",
        after=_QUESTION
        + "Reasoning: {thoughts}\nProvide the answer inside <answer> and </answer> without detailed illustrations. "
        "Note: The answer must be in {wanted}. For example: <answer> {example} </answer>.\n",
    ),
    "atlas": _SHORT,
}

COMPLEXITY = {
    "full": Step(
        before="Decide how a question should be answered. A: you know the answer without looking anything up. B: one "
        "search in an encyclopaedia finds it. C: several facts must be found one after the other, or compared. "
        + _QUESTION
        + "Write only the letter A, B or C inside <answer> and </answer>.\n",
    ),
    "atlas": _SEARCHES_OR_ANSWERS,
}

SEARCH_O1 = {
    "full": Step(
        before="Answer the given question by reasoning step by step. Whenever you lack some knowledge, you can call a "
        "search engine by <search> query </search>; the documents it finds are analysed for you, and what helps is "
        "given between <information> and </information>. Then go on reasoning. You can search at most {budget} times. "
        "When you know the answer, provide it inside <answer> and </answer> without detailed illustrations. Note: The "
        "answer must be in {wanted}. For example: <answer> {example} </answer>. " + _QUESTION
    ),
    "atlas": Step(before="{question}\n", style="atlas"),
}

SEARCH_O1_DOCUMENTS = {
    "full": Step(
        before="You help somebody who answers a question step by step and has just searched. Read the documents "
        "between <information> and </information>, and find what helps with the current query.",
        after=_QUESTION
        + "Reasoning so far: {reasoning}\nCurrent query: {query}\nCheck each document for facts that bear on the query "
        "and carry the reasoning on. Then write down only these facts, briefly, inside <information> and "
        "</information>; if there are none, write <information> No helpful information found. </information>\n",
        tag=INFORMATION,
        stop=(closing(INFORMATION),),
    ),
    "atlas": _SHORT,
}

STEP_SEARCH = {
    "full": Step(
        before="Answer the given question with the help of a search engine. First plan inside <think> and </think> "
        "what to search for, one sub-question after the other. Then call the search engine by <search> keywords "
        "</search>; it returns documents between <information> and </information>, which may not hold the answer. "
        "After every search, say inside <think> and </think> what the documents contribute and what is still missing, "
        "and search again with other keywords if something is. When you know the answer, provide it inside <answer> "
        "and </answer> without detailed illustrations. Note: The answer must be in {wanted}. For example: <answer> "
        "{example} </answer>. " + _QUESTION
    ),
    "atlas": Step(before="{question}\n", style="atlas"),
}

D_RAG_ARGUMENT = {
    "full": Step(
        before="Prepare an argument about a question from passages in {language}, which stand between <information> "
        "and </information>.",
        after=_QUESTION
        + "1. Extraction: name the sentences that bear on the question. 2. Explanation: argue which answer they "
        "support and why, and what speaks against it. If they do not bear on the question, say so. Write the argument "
        "in a few sentences inside <information> and </information>.\n",
        tag=INFORMATION,
        stop=(closing(INFORMATION),),
        shown="Argument from {language} passages ({titles}): {text}\n",
    ),
    "atlas": _SHORT,
}

D_RAG_ANSWER = {
    "full": Step(
        before="Answer the given question by weighing the arguments between <information> and </information>. Each was "
        "made from passages in one language, and they may contradict each other. Inside <think> and </think>, compare "
        "and contrast the arguments, say which ones are better supported, and resolve the conflict in one neutral "
        "explanation. Then provide the answer inside <answer> and </answer> without detailed illustrations. Note: The "
        "answer must be in {wanted}. For example: <answer> {example} </answer>.",
        after=_QUESTION,
    ),
    "atlas": _SHORT,
}

SURE_CANDIDATES = {
    "full": Step(
        before="Read the passages between <information> and </information>, which may be incomplete or irrelevant.",
        after=_QUESTION
        + "Give {candidates} different candidates for the answer, the likeliest first, each a few words in {wanted}. "
        "Reason inside <think> and </think> first, then write them inside <answer> and </answer> as (a) {example} (b) "
        "another, and so on.\n",
    ),
    "atlas": _CANDIDATE,
}

SURE_SUMMARY = {
    "full": Step(
        before="Read the passages between <information> and </information>.",
        after=_QUESTION
        + "Somebody answers: {candidate}\nWrite a short passage that supports this answer to the question, made only "
        "of what the passages say, inside <information> and </information>. Do not mention the passages themselves.\n",
        tag=INFORMATION,
        stop=(closing(INFORMATION),),
    ),
    "atlas": dataclasses.replace(_CANDIDATE, shown=" {titles}: {candidate}\n"),
}

SURE_VALIDITY = {
    "full": Step(
        before="Read the passage between <information> and </information>.",
        after=_QUESTION
        + "Answer: {candidate}\nDoes the passage really support this answer to the question? Write <answer> True "
        "</answer> or <answer> False </answer>.\n",
    ),
    "atlas": _CANDIDATE,
}

SURE_RANKING = {
    "full": Step(
        before="Read the two passages between <information> and </information>.",
        after=_QUESTION
        + "Which of the two answers the question in a more informative way? Write <answer> 1 </answer> for the first, "
        "<answer> 2 </answer> for the second.\n",
        shown="Passage {number}: {text}\n",
    ),
    "atlas": _CANDIDATE,
}

"""D-RAG: an argument from each language's passages, then an answer that weighs them; and its training texts."""

import collections
import re
from collections.abc import Iterable, Sequence

import gin

from lcrag.curation.text_writers import GoldenAnswers
from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes import Complete, Generate, Program, RetrievalFailure, Retrieve, Turn
from lcrag.episodes.observation import Framed, information, statements
from lcrag.episodes.routing import Route, all_at_once
from lcrag.episodes.tags import INFORMATION, closing, opening
from lcrag.errors import UserError, lookup
from lcrag.methods.baselines.prompts import D_RAG_ANSWER, D_RAG_ARGUMENT, answer_from, titles_of
from lcrag.rewards import VERDICTS
from lcrag.rewards.matching import holds_answer


@gin.configurable(denylist=["question", "collections"])
def d_rag(
    question: Question,
    collections: Sequence[str],
    *,
    passages: int = 3,
    route: Route = all_at_once,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Dialectic argumentation over multilingual passages (Ranaldi et al., 2025b, section 3).

    Extraction and explanation: for each language with passages, a fresh context argues from them; these
    run in parallel. Dialectic and answer: in the episode's own context the policy compares the arguments, resolves
    their conflicts, and answers. The paper has all four parts in one prompt, where each argument depends on the others.
    `observation_tokens` limits the passages of each argument, and the arguments together.
    """
    argue, weigh = (lookup(step, wording, "wording") for step in (D_RAG_ARGUMENT, D_RAG_ANSWER))
    languages = route(1, question.language, collections)
    found = yield Retrieve((question.text,), languages, passages)
    hits = {} if isinstance(found, RetrievalFailure) else dict(zip(languages, found[0], strict=True))
    sides = {language_of(code).name: each for code, each in hits.items() if each}
    blocks = {
        language: information([[each]], argue.style, observation_tokens, question.text)
        for language, each in sides.items()
    }
    argued = yield tuple(
        Complete(prompt=argue.around(block, question, language=language), stop=argue.stop)
        for language, block in blocks.items()
    )
    arguments = [
        argue.show(completion.text, language=language, titles=titles_of([[sides[language]]]))
        for language, completion in zip(sides, argued, strict=True)
    ]
    prompt = weigh.around(statements(arguments, weigh.style, observation_tokens), question)
    return (yield from answer_from(weigh, prompt))


NO_EVIDENCE = "The passages do not bear on the question."
_ARGUMENT = re.compile(r"Argument from ([^(\n]+) passages \(([^\n]*)")
_TITLE = re.compile(r"^(?:Doc \d+\(Title: .*?\)|[^:\n]+:)\s+", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？।])|\n")


@gin.register
class GoldenArguments:
    """Writes the texts of `d_rag` from golden answers, for training rows without another model.

    The paper keeps those texts of a larger model that end with a right answer (Ranaldi et al., 2025b, section 3.2);
    `lcrag curate demonstrations` makes such rows. Here an argument quotes the first sentence of its passages with a
    golden answer of the question in any language, or says that no passage has one. The answer first says which
    arguments have evidence, and is the golden one. In the atlas wording an argument is the first passage with such an
    answer, or "?", and the answer stands alone.

    Args:
      questions: The questions, in all languages whose golden answers are looked for.
    """

    def __init__(self, questions: Sequence[Question]):
        self._golds = collections.defaultdict[str, dict[str, None]](dict)
        for question in questions:
            self._golds[question.coupling] |= dict.fromkeys(question.answers)

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        """Returns an argument, or the weighing and the answer.

        Raises:
          UserError: the question has no golden answer, or the program does not argue from passages.
        """
        prompt = turns[-1].text
        short = request.stop in (D_RAG_ARGUMENT["atlas"].stop, D_RAG_ANSWER["atlas"].stop)
        if isinstance(request, Complete):
            return self._argument(question, _shown(prompt, request), short)
        full = f"<think> {_weighing(prompt)} </think>\n<answer> {{answer}} </answer>"
        return GoldenAnswers("<answer> {answer}</answer>" if short else full)(question, turns, request)

    def _argument(self, question: Question, passages: str, short: bool) -> str:
        golds = [gold for gold in self._golds[question.coupling] or question.answers if gold.lower() not in VERDICTS]
        if short:
            stated = (line for line in passages.splitlines() if holds_answer([_TITLE.sub("", line)], golds))
            return f" {next(stated, '?').strip()}\n"
        quoted = next((text for text in sentences(passages) if holds_answer([text], golds)), None)
        argument = NO_EVIDENCE
        if quoted is not None:
            supported = next(gold for gold in golds if holds_answer([quoted], [gold]))
            argument = f"Extraction: {quoted} Explanation: this supports the answer {supported}."
        return f"{opening(INFORMATION)} {argument} {closing(INFORMATION)}"


def sentences(passages: str) -> Iterable[str]:
    """Yields the sentences of passages as a prompt shows them, without titles."""
    return filter(None, (text.strip() for text in _SENTENCE_END.split(_TITLE.sub("", passages))))


def _shown(prompt: str, request: Complete) -> str:
    """Returns the passages in the prompt of an argument."""
    if not isinstance(request.prompt, Framed):
        raise UserError("GoldenArguments writes D-RAG's texts: set Method.program to @d_rag")
    frame = request.prompt
    block = prompt[len(frame.before) : len(prompt) - len(frame.after)]
    return block.strip().removeprefix(opening(INFORMATION)).removesuffix(closing(INFORMATION)).strip()


def _weighing(prompt: str) -> str:
    """Returns which of the arguments in a prompt support the answer, in a sentence or two."""
    sides: dict[bool, list[str]] = {True: [], False: []}
    for language, text in _ARGUMENT.findall(prompt):
        sides[NO_EVIDENCE not in text].append(language)
    if not sides[True]:
        return "No argument has evidence for an answer."
    silent = f" Those from {', '.join(sides[False])} passages have no evidence." if sides[False] else ""
    return f"The arguments from {', '.join(sides[True])} passages support the answer.{silent}"

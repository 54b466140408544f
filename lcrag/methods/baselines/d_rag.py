"""D-RAG: an argument from each language's passages, then an answer that weighs them; and its training texts."""

import collections
import re
from collections.abc import Sequence

import gin
import regex

from lcrag.curation.playing import GoldenAnswers
from lcrag.data.questions import Question, language_of
from lcrag.episodes import Complete, Generate, Program, RetrievalFailure, Retrieve, Turn
from lcrag.episodes.searches import Framed, Route, all_at_once, information, statements
from lcrag.errors import UserError, lookup
from lcrag.methods.baselines.rag import QUESTION, SHORT, Step, answer_from, titles_of
from lcrag.rewards import VERDICTS
from lcrag.rewards.matching import holds_answer
from lcrag.rewards.text import SENTENCE_MARK

D_RAG_ARGUMENT = {
    "full": Step(
        before="Prepare an argument about a question from passages in {language}, which stand between <information> "
        "and </information>.",
        after=QUESTION
        + "1. Extraction: name the sentences that bear on the question. 2. Explanation: argue which answer they "
        "support and why, and what speaks against it. If they do not bear on the question, say so. Write the argument "
        "in a few sentences inside <information> and </information>.\n",
        tag="information",
        stop=("</information>",),
        shown="Argument from {language} passages ({titles}): {text}\n",
    ),
    "atlas": SHORT,
}

D_RAG_ANSWER = {
    "full": Step(
        before="Answer the given question by weighing the arguments between <information> and </information>. Each was "
        "made from passages in one language, and they may contradict each other. Inside <think> and </think>, compare "
        "and contrast the arguments, say which ones are better supported, and resolve the conflict in one neutral "
        "explanation. Then provide the answer inside <answer> and </answer> without detailed illustrations. Note: The "
        "answer must be in {wanted}. For example: <answer> {example} </answer>.",
        after=QUESTION,
    ),
    "atlas": SHORT,
}


@gin.configurable(denylist=["question", "collections"])
def d_rag(
    question: Question,
    collections: Sequence[str],
    *,
    passages: int = 3,
    route: Route = all_at_once,
    wording: str = "full",
    observation_tokens: int = 600,
    argument_tokens: int = 200,
) -> Program:
    """Dialectic argumentation over multilingual passages (Ranaldi et al., 2025b, section 3).

    Extraction and explanation: for each language with passages, a fresh context argues from them, all in parallel.
    Dialectic and answer: in the episode's own context the policy compares the arguments, resolves their conflicts, and
    answers. The paper has all four parts in one prompt, where each argument depends on the others.

    Args:
      observation_tokens: Limits the passages of each argument.
      argument_tokens: Room for each argument where they are weighed, titles included; short ones leave theirs to the
        others. The rest of the context limits them too.
    """
    argue, weigh = (lookup(step, wording, "wording") for step in (D_RAG_ARGUMENT, D_RAG_ANSWER))
    languages = route(1, question.language, collections)
    found = yield Retrieve((question.text,), languages, passages)
    hits = {} if isinstance(found, RetrievalFailure) else dict(zip(languages, found[0], strict=True))
    sides = {language_of(code).name: side for code, side in hits.items() if side}
    prompts = [
        argue.around(information([[side]], argue.style, observation_tokens, question.text), question, language=language)
        for language, side in sides.items()
    ]
    argued = yield tuple(Complete(prompt=prompt, stop=argue.stop) for prompt in prompts)
    arguments = [
        argue.show(completion.text, language=language, titles=titles_of([[side]]))
        for (language, side), completion in zip(sides.items(), argued, strict=True)
    ]
    weighed = statements(arguments, weigh.style, argument_tokens * max(len(arguments), 1))
    return (yield from answer_from(weigh, weigh.around(weighed, question)))


NO_EVIDENCE = "The passages do not bear on the question."
_ARGUMENT = re.compile(r"Argument from ([^(\n]+) passages \(([^\n]*)")
_TITLE = re.compile(r"^(?:Doc \d+\(Title: .*?\)|[^:\n]+:)\s+", re.MULTILINE)
_SENTENCE_END = regex.compile(rf"(?V1)(?<=[.!?])\s+|(?<={SENTENCE_MARK})|\n")


@gin.register
class GoldenArguments:
    """Writes the texts of `d_rag` from golden answers, for training rows without another model.

    The paper keeps those texts of a larger model that end with a right answer (Ranaldi et al., 2025b, section 3.2);
    `lcrag curate demonstrations` makes such rows. Here an argument quotes the first sentence of its passages with a
    golden answer of the question in any language, or says that no passage has one. The answer first says which
    arguments have evidence, and is the golden one. In the atlas wording an argument is the first passage with such an
    answer, or "?", and the answer stands alone.
    """

    def __init__(self, questions: Sequence[Question]):
        self._golds = collections.defaultdict[str, dict[str, None]](dict)
        for question in questions:
            self._golds[question.coupling] |= dict.fromkeys(question.answers)

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        """Returns an argument, or the weighing and the answer."""
        prompt = turns[-1].text
        short = request.stop in (D_RAG_ARGUMENT["atlas"].stop, D_RAG_ANSWER["atlas"].stop)
        if not isinstance(request, Complete):
            template = "<answer> {answer}</answer>"
            if not short:  # which of the arguments in the prompt support the answer, in a sentence or two
                sides: dict[bool, list[str]] = {True: [], False: []}
                for language, text in _ARGUMENT.findall(prompt):
                    sides[NO_EVIDENCE not in text].append(language)
                weighing = "No argument has evidence for an answer."
                if sides[True]:
                    weighing = f"The arguments from {', '.join(sides[True])} passages support the answer."
                    weighing += f" Those from {', '.join(sides[False])} passages have no evidence." * bool(sides[False])
                template = f"<think> {weighing} </think>\n<answer> {{answer}} </answer>"
            return GoldenAnswers(template)(question, turns, request)
        if not isinstance(request.prompt, Framed):
            raise UserError("GoldenArguments writes D-RAG's texts: set Method.program to @d_rag")
        block = prompt[len(request.prompt.before) : len(prompt) - len(request.prompt.after)].strip()
        passages = block.removeprefix("<information>").removesuffix("</information>").strip()
        golds = [gold for gold in self._golds[question.coupling] or question.answers if gold.lower() not in VERDICTS]
        if short:
            stated = (line for line in passages.splitlines() if holds_answer([_TITLE.sub("", line)], golds))
            return f" {next(stated, '?').strip()}\n"
        argument = NO_EVIDENCE
        sentences = filter(None, (text.strip() for text in _SENTENCE_END.split(_TITLE.sub("", passages))))
        quoted = next((text for text in sentences if holds_answer([text], golds)), None)
        if quoted is not None:
            supported = next(gold for gold in golds if holds_answer([quoted], [gold]))
            argument = f"Extraction: {quoted} Explanation: this supports the answer {supported}."
        return f"<information> {argument} </information>"

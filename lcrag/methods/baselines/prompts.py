"""The prompts of the baselines, in full for models that follow instructions and in short for the atlas's tiny one.

They are our own words for what the papers' prompts ask, with the tags and the answer format of LcRL's prompt, so that
methods differ in what they do and not in how an answer is read.
"""

import dataclasses
from collections.abc import Mapping

from lcrag.episodes.tags import ANSWER, INFORMATION, SEARCH, closing, opening
from lcrag.errors import UserError
from lcrag.methods.baselines.steps import Step

_ANSWER = (
    "Reason inside <think> and </think> first, then provide the answer inside <answer> and </answer> without detailed "
    "illustrations. Note: The answer must be in {wanted}. For example: <answer> {example} </answer>. "
)
_QUESTION = "Question: {question}\n"
# The tiny policy reads passages and copies values from them: what it says elsewhere is shown to it as a passage.
_SHORT = Step(before="{question}\n", opened=opening(ANSWER), style="atlas")
_SHOWN_AS_PASSAGE = dataclasses.replace(_SHORT, shown=" {titles}: {text}\n")

DIRECT = {
    "full": Step(before="Answer the given question from your own knowledge. " + _ANSWER + _QUESTION),
    "atlas": _SHORT,
}

RAG = {
    "full": Step(
        before="Answer the given question with the help of the passages between <information> and </information>. They "
        "may be incomplete, irrelevant or in other languages. " + _ANSWER,
        after=_QUESTION,
    ),
    "atlas": _SHORT,
}

_NEXT_SENTENCE = (
    _QUESTION
    + "Reasoning so far: {thoughts}\nWrite the next sentence of the reasoning, and nothing else. When you know the "
    "answer, write instead: So the answer is <answer> {example} </answer>. The answer must be in {wanted}.\n"
)
_SEARCHES_OR_ANSWERS = Step(before="{question}\n", stop=(closing(SEARCH), closing(ANSWER)), style="atlas")

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
    "atlas": _SHOWN_AS_PASSAGE,
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
    "atlas": _SHOWN_AS_PASSAGE,
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


def worded(steps: Mapping[str, Step], wording: str) -> Step:
    """A step in one of its wordings.

    Raises:
      UserError: there is no such wording.
    """
    if wording not in steps:
        raise UserError(f"there is no wording {wording!r}: choose one of {', '.join(steps)}")
    return steps[wording]

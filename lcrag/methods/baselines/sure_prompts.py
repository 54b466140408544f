"""SuRe's four prompts, in full and for the atlas's tiny policy, which shows by its answer what it takes for true."""

import dataclasses

from lcrag.episodes.tags import ANSWER, INFORMATION, closing, opening
from lcrag.methods.baselines.steps import Step

_QUESTION = "Question: {question}\n"
_SHORT = Step(before="{question}\n", opened=opening(ANSWER), style="atlas", shown=" {text}\n")

SURE_CANDIDATES = {
    "full": Step(
        before="Read the passages between <information> and </information>, which may be incomplete or irrelevant.",
        after=_QUESTION
        + "Give {candidates} different candidates for the answer, the likeliest first, each a few words in {wanted}. "
        "Reason inside <think> and </think> first, then write them inside <answer> and </answer> as (a) {example} (b) "
        "another, and so on.\n",
    ),
    "atlas": _SHORT,
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
    "atlas": dataclasses.replace(_SHORT, shown=" {titles}: {candidate}\n"),
}

SURE_VALIDITY = {
    "full": Step(
        before="Read the passage between <information> and </information>.",
        after=_QUESTION
        + "Answer: {candidate}\nDoes the passage really support this answer to the question? Write <answer> True "
        "</answer> or <answer> False </answer>.\n",
    ),
    "atlas": _SHORT,
}

SURE_RANKING = {
    "full": Step(
        before="Read the two passages between <information> and </information>.",
        after=_QUESTION
        + "Which of the two answers the question in a more informative way? Write <answer> 1 </answer> for the first, "
        "<answer> 2 </answer> for the second.\n",
        shown="Passage {number}: {text}\n",
    ),
    "atlas": _SHORT,
}

"""Search-R1 and Search-o1: the policy searches while it reasons."""

from collections.abc import Sequence
from contextlib import suppress

import gin

from lcrag.data.questions import Question
from lcrag.episodes.programs import (
    Complete,
    ContextFull,
    Observe,
    Outcome,
    Program,
    Retrieve,
    SearchTurns,
    opening_prompt,
)
from lcrag.episodes.searches import Route, information, native_only, statements
from lcrag.episodes.tags import INFORMATION, closing
from lcrag.errors import lookup
from lcrag.methods.baselines.steps import QUESTION, SHORT, Step, titles_of

REPEATED = "I have searched for this already. Let me use what was found."
LATEST_STEPS = 4

SEARCH_O1 = {
    "full": Step(
        before="Answer the given question by reasoning step by step. Whenever you lack some knowledge, you can call a "
        "search engine by <search> query </search>; the documents it finds are analysed for you, and what helps is "
        "given between <information> and </information>. Then go on reasoning. You can search at most {budget} times. "
        "When you know the answer, provide it inside <answer> and </answer> without detailed illustrations. Note: The "
        "answer must be in {wanted}. For example: <answer> {example} </answer>. " + QUESTION
    ),
    "atlas": Step(before="{question}\n", style="atlas"),
}

SEARCH_O1_DOCUMENTS = {
    "full": Step(
        before="You help somebody who answers a question step by step and has just searched. Read the documents "
        "between <information> and </information>, and find what helps with the current query.",
        after=QUESTION
        + "Reasoning so far: {reasoning}\nCurrent query: {query}\nCheck each document for facts that bear on the query "
        "and carry the reasoning on. Then write down only these facts, briefly, inside <information> and "
        "</information>; if there are none, write <information> No helpful information found. </information>\n",
        tag=INFORMATION,
        stop=(closing(INFORMATION),),
    ),
    "atlas": SHORT,
}


@gin.configurable(denylist=["question", "collections"])
def search_r1(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 3,
    passages: int = 3,
    invalid_limit: int = 3,
    prompt: str = "search_r1",
    style: str = "search_r1",
    observation_tokens: int = 600,
) -> Program:
    """Search-R1 (Jin et al., 2025, algorithm 1) as LcRL compares with it: every search goes to the English collection.

    Args:
      question, collections, passages, observation_tokens: See `lcrag.methods`.
      prompt: Name of the opening prompt.
      style: Name of the passage style.
    """
    turns = SearchTurns(budget, invalid_limit)
    with suppress(ContextFull):
        yield Observe(opening_prompt(prompt, question))
        while search := (yield from turns.next_action()):
            found = yield Retrieve((search.query,), ("en",), passages)
            yield Observe(information(found, style, observation_tokens))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)


@gin.configurable(denylist=["question", "collections"])
def search_o1(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 5,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Agentic search with Reason-in-Documents (Li et al., 2025, section 3).

    The documents of a search never enter the chain of reasoning. They are read in a separate context together with the
    query and the chain so far, and only the information extracted there is shown. Repeating a query in the same
    collections is an invalid action. `observation_tokens` limits both the documents and the extracted information.
    """
    reason, refine = (lookup(step, wording, "wording") for step in (SEARCH_O1, SEARCH_O1_DOCUMENTS))
    turns = SearchTurns(budget, invalid_limit)
    chain: list[str] = []
    asked: set[tuple[str, tuple[str, ...]]] = set()
    yield Observe(reason.text(question, budget=budget))
    while search := (yield from turns.next_action()):
        query, languages = search.query, route(turns.searches, question.language, collections)
        if (query, languages) in asked:
            yield turns.reject(REPEATED)
            continue
        asked.add((query, languages))
        found = yield Retrieve((query,), languages, passages)
        documents = information(found, refine.style, observation_tokens)
        chain.append(turns.texts[-1])
        # A long chain of reasoning keeps its first and its latest steps.
        kept = chain if len(chain) <= LATEST_STEPS + 1 else [chain[0], "...", *chain[-LATEST_STEPS:]]
        reasoning = "\n".join(text.strip() for text in kept)
        prompt = refine.around(documents, question, query=query, reasoning=reasoning)
        completion = yield Complete(prompt=prompt, stop=refine.stop)
        chain.append(refine.show(completion.text, titles=titles_of(found)))
        yield Observe(statements(chain[-1:], reason.style, observation_tokens))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)

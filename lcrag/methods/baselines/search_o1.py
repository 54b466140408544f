"""Search-o1: reasoning that searches, and reads documents in a context of their own."""

from collections.abc import Sequence

from lcrag.data.questions import Question
from lcrag.episodes.observation import information, statements
from lcrag.episodes.requests import Complete, Observe, Outcome, Program, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.search_loop import SearchTurns
from lcrag.methods.baselines.prompts import SEARCH_O1, SEARCH_O1_DOCUMENTS, worded
from lcrag.methods.baselines.steps import titles_of

REPEATED = "I have searched for this already. Let me use what was found."
LATEST_STEPS = 4


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

    A search's documents never enter the chain of reasoning. A fresh context reads them with the query and the chain so
    far in mind, and only what it finds helpful is shown.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      budget: Searches allowed; then the policy has one last word.
      passages: Passages of each searched language.
      invalid_limit: Invalid actions allowed; to search the same collections for the same again is one.
      route: Which collections search number b goes to.
      wording: "full" or "atlas".
      observation_tokens: At most this many tokens for the documents of a search, and for what is found in them.
    """
    reason, refine = worded(SEARCH_O1, wording), worded(SEARCH_O1_DOCUMENTS, wording)
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
        prompt = refine.around(documents, question, query=query, reasoning=abridged(chain))
        completion = yield Complete(prompt=prompt, stop=refine.stop)
        chain.append(refine.show(completion.text, titles=titles_of(found)))
        yield Observe(statements(chain[-1:], reason.style, observation_tokens))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)


def abridged(chain: Sequence[str]) -> str:
    """The chain of reasoning, of which a long one keeps its beginning and its latest steps."""
    kept = chain if len(chain) <= LATEST_STEPS + 1 else [chain[0], "...", *chain[-LATEST_STEPS:]]
    return "\n".join(step.strip() for step in kept)

"""IRCoT: each sentence of a chain of thought is the next search."""

import re
from collections.abc import Sequence

import gin

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.requests import Complete, Found, FoundPassage, Program, RetrievalFailure, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import ANSWER, SearchAction, opening, parse_action
from lcrag.errors import lookup
from lcrag.methods.baselines.prompts import IRCOT_THOUGHT, RAG, answer_from


@gin.configurable(denylist=["question", "collections"])
def ircot(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 8,
    passages: int = 3,
    most_passages: int = 15,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Interleaves retrieval with a chain of thought (Trivedi et al., 2023, section 3).

    The question is the first query, each new sentence of the chain the next one. Every sentence is written in a fresh
    context that begins with all passages found so far. The answer is written after the same passages, in the episode's
    own context.

    Args:
      question, collections, passages, route, wording, observation_tokens: See `lcrag.methods.baselines`.
      budget: Maximum number of searches (the paper: 8).
      most_passages: Maximum number of passages kept (the paper: 15).
    """
    think, read = (lookup(step, wording, "wording") for step in (IRCOT_THOUGHT, RAG))
    seen: list[list[list[FoundPassage]]] = []
    thoughts: list[str] = []
    query, concluded = question.text, False
    for search in range(1, budget + 1):
        found = yield Retrieve((query,), route(search, question.language, collections), passages)
        seen = gathered(seen, found, most_passages)
        block = information(seen, think.style, search * observation_tokens, question.text)
        prompt = think.around(block, question, thoughts=" ".join(thoughts))
        completion = yield Complete(prompt=prompt, stop=think.stop)
        query, concluded = next_query(completion.text)
        thoughts.append(query)
        if concluded:
            break
    block = information(seen, read.style, len(thoughts) * observation_tokens, question.text)
    prompt = read.around(block, question)
    return (yield from answer_from(read, prompt))


def gathered(
    seen: Sequence[Sequence[Sequence[FoundPassage]]], found: Found | RetrievalFailure, most: int
) -> list[list[list[FoundPassage]]]:
    """Returns all passages so far without duplicates; of more than `most`, those found first."""
    searches = [*seen, *([] if isinstance(found, RetrievalFailure) else found)]
    known: set[tuple[str, str]] = set()
    kept: list[list[list[FoundPassage]]] = []
    for languages in searches:
        kept.append([])
        for hits in languages:
            kept[-1].append([])
            for hit in hits:
                if (hit.title, hit.text) not in known and len(known) < most:
                    known.add((hit.title, hit.text))
                    kept[-1][-1].append(hit)
    return kept


_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|[。！？؟۔।]|\n|$)", re.DOTALL)


def next_query(text: str) -> tuple[str, bool]:
    """Returns the query of a thought, and whether the thought concludes the chain.

    The query is the first sentence of the text, or that of a search which the policy writes. A sentence that opens an
    answer, and an empty one, conclude the chain.
    """
    action = parse_action(text)
    if isinstance(action, SearchAction):
        return action.query, False
    sentence = _SENTENCE.match(text.strip())
    thought = sentence[0].strip() if sentence else ""
    return thought, not thought or opening(ANSWER) in thought

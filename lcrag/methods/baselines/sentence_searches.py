"""IRCoT: each sentence of a chain of thought is the next search. FLARE: only a sentence with an improbable token is."""

import math
import re
from collections.abc import Sequence

import gin

from lcrag.data.questions import Question
from lcrag.episodes.programs import (
    Complete,
    Completion,
    FittedText,
    Found,
    FoundPassage,
    Program,
    RetrievalFailure,
    Retrieve,
)
from lcrag.episodes.searches import Route, information, native_only
from lcrag.episodes.tags import ANSWER, SearchAction, opening, parse_action
from lcrag.errors import lookup
from lcrag.methods.baselines.steps import QUESTION, RAG, SEARCHES_OR_ANSWERS, SHORT, Step, answer_from

_NEXT_SENTENCE = (
    QUESTION
    + "Reasoning so far: {thoughts}\nWrite the next sentence of the reasoning, and nothing else. When you know the "
    "answer, write instead: So the answer is <answer> {example} </answer>. The answer must be in {wanted}.\n"
)

IRCOT_THOUGHT = {
    "full": Step(
        before="Answer the given question by reasoning one sentence at a time. The passages found so far stand between "
        "<information> and </information>; more are searched for with each sentence you write.",
        after=_NEXT_SENTENCE,
    ),
    "atlas": SEARCHES_OR_ANSWERS,
}

FLARE_SENTENCE = {
    "full": Step(
        before="Answer the given question by reasoning one sentence at a time. If passages stand between <information> "
        "and </information>, they were found for the sentence you are about to write. ",
        after=_NEXT_SENTENCE,
    ),
    "atlas": SEARCHES_OR_ANSWERS,
}

FLARE_ANSWER = {
    "full": Step(
        before="Answer the given question by the reasoning below, and by passages if some stand between <information> "
        "and </information>. ",
        after=QUESTION
        + "Reasoning: {thoughts}\nProvide the answer inside <answer> and </answer> without detailed illustrations. "
        "Note: The answer must be in {wanted}. For example: <answer> {example} </answer>.\n",
    ),
    "atlas": SHORT,
}

_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|[。！？؟۔।]|\n|$)", re.DOTALL)


@gin.configurable(denylist=["question", "collections"])
def ircot(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 8,
    passages: int = 3,
    max_passages: int = 15,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Interleaves retrieval with a chain of thought (Trivedi et al., 2023, section 3).

    The question is the first query, each new sentence of the chain the next one. Every sentence is written in a fresh
    context that begins with all passages found so far. The answer is written after the same passages, in the episode's
    own context.

    Args:
      question, collections, passages, route, wording, observation_tokens: See `lcrag.methods`.
      budget: Maximum number of searches (the paper: 8).
      max_passages: Maximum number of passages kept (the paper: 15).
    """
    think, read = (lookup(step, wording, "wording") for step in (IRCOT_THOUGHT, RAG))
    seen: list[list[list[FoundPassage]]] = []
    thoughts: list[str] = []
    query, concluded = question.text, False
    for search in range(1, budget + 1):
        found = yield Retrieve((query,), route(search, question.language, collections), passages)
        seen = gathered(seen, found, max_passages)
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
    seen: Sequence[Sequence[Sequence[FoundPassage]]], found: Found | RetrievalFailure, limit: int
) -> list[list[list[FoundPassage]]]:
    """Returns all passages so far without duplicates; of more than `limit`, those found first."""
    searches = [*seen, *([] if isinstance(found, RetrievalFailure) else found)]
    known: set[tuple[str, str]] = set()
    kept: list[list[list[FoundPassage]]] = []
    for languages in searches:
        kept.append([])
        for hits in languages:
            kept[-1].append([])
            for hit in hits:
                if (hit.title, hit.text) not in known and len(known) < limit:
                    known.add((hit.title, hit.text))
                    kept[-1][-1].append(hit)
    return kept


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


@gin.configurable(denylist=["question", "collections"])
def flare(
    question: Question,
    collections: Sequence[str],
    *,
    min_probability: float = 0.8,
    masked_below: float = 0.4,
    sentences: int = 8,
    passages: int = 2,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Forward-looking active retrieval, the direct kind with masked queries (Jiang et al., 2023, section 3.2).

    Each sentence is first written without passages. If one of its tokens is less probable than `min_probability`, the
    sentence without its tokens below `masked_below` becomes a query, and it is written again after the passages found;
    those of earlier sentences are dropped. Sentences are written in fresh contexts until one gives the answer, which
    the policy then repeats in the episode's own context. Probabilities are those at temperature 1, at any sampling
    temperature.

    Args:
      question, collections, passages, route, wording, observation_tokens: See `lcrag.methods`.
      min_probability: The paper's theta: 0 never searches, 1 for nearly every sentence.
      masked_below: The paper's beta: 0 masks nothing.
      sentences: Maximum number of sentences.
    """
    write, conclude = (lookup(step, wording, "wording") for step in (FLARE_SENTENCE, FLARE_ANSWER))
    written: list[str] = []
    found: Found | RetrievalFailure | None = None
    searches, concluded = 0, False
    while len(written) < sentences and not concluded:
        thoughts = " ".join(written)
        ahead = yield Complete(prompt=write.text(question, thoughts=thoughts), stop=write.stop)
        sentence, concluded = next_query(ahead.text)
        if (query := uncertain_query(ahead, min_probability, masked_below)) is not None:
            searches += 1
            languages = route(searches, question.language, collections)
            found = yield Retrieve((query or question.text,), languages, passages)
            block = information(found, write.style, observation_tokens)
            again = yield Complete(prompt=write.around(block, question, thoughts=thoughts), stop=write.stop)
            sentence, concluded = next_query(again.text)
        written.append(sentence)
    thoughts = " ".join(written)
    prompt: str | FittedText = conclude.text(question, thoughts=thoughts)
    if found is not None:
        block = information(found, conclude.style, observation_tokens)
        prompt = conclude.around(block, question, thoughts=thoughts)
    return (yield from answer_from(conclude, prompt))


def uncertain_query(ahead: Completion, min_probability: float, masked_below: float) -> str | None:
    """Returns the query of a sentence written ahead; None if all its tokens are probable.

    If the policy asks for a search, its own query is used. An empty sentence is uncertain.
    """
    action = parse_action(ahead.text)
    if isinstance(action, SearchAction):
        return action.query
    # (text, probability) of the tokens of the first sentence, without surrounding white space.
    sentence, _ = next_query(ahead.text)
    start, place = ahead.text.find(sentence), 0
    tokens: list[tuple[str, float]] = []
    for piece, log_probability in zip(ahead.pieces, ahead.log_probabilities, strict=True):
        before, place = place, place + len(piece)
        if piece and before < start + len(sentence) and place > start:
            tokens.append((piece, math.exp(log_probability)))
    if tokens and all(probability >= min_probability for _, probability in tokens):
        return None
    return "".join(piece for piece, probability in tokens if probability >= masked_below).strip()

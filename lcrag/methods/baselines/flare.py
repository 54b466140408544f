"""FLARE: a sentence with an improbable token becomes a query and is written again."""

import math
from collections.abc import Sequence

import gin

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.requests import Complete, Completion, FittedText, Found, Program, RetrievalFailure, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import SearchAction, parse_action
from lcrag.errors import lookup
from lcrag.methods.baselines.ircot import next_query
from lcrag.methods.baselines.prompts import FLARE_ANSWER, FLARE_SENTENCE, answer_from


@gin.configurable(denylist=["question", "collections"])
def flare(
    question: Question,
    collections: Sequence[str],
    *,
    least_probability: float = 0.8,
    masked_below: float = 0.4,
    sentences: int = 8,
    passages: int = 2,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Forward-looking active retrieval, the direct kind with masked queries (Jiang et al., 2023, section 3.2).

    Each sentence is first written without passages. If one of its tokens is less probable than `least_probability`, the
    sentence without its tokens below `masked_below` becomes a query, and it is written again after the passages found;
    those of earlier sentences are dropped. Sentences are written in fresh contexts until one gives the answer, which
    the policy then repeats in the episode's own context. Probabilities are those at temperature 1, at any sampling
    temperature.

    Args:
      question, collections, passages, route, wording, observation_tokens: See `lcrag.methods.baselines`.
      least_probability: The paper's theta: 0 never searches, 1 for nearly every sentence.
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
        if (query := uncertain_query(ahead, least_probability, masked_below)) is not None:
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


def uncertain_query(ahead: Completion, least_probability: float, masked_below: float) -> str | None:
    """Returns the query of a sentence written ahead; None if all its tokens are probable.

    If the policy asks for a search, its own query is used. An empty sentence is uncertain.
    """
    action = parse_action(ahead.text)
    if isinstance(action, SearchAction):
        return action.query
    tokens = sentence_tokens(ahead)
    if tokens and all(probability >= least_probability for _, probability in tokens):
        return None
    return "".join(piece for piece, probability in tokens if probability >= masked_below).strip()


def sentence_tokens(ahead: Completion) -> list[tuple[str, float]]:
    """Returns (text, probability) of the tokens of a completion's first sentence, without surrounding white space."""
    sentence, _ = next_query(ahead.text)
    start = ahead.text.find(sentence)
    tokens, place = [], 0
    for piece, log_probability in zip(ahead.pieces, ahead.log_probabilities, strict=True):
        before, place = place, place + len(piece)
        if piece and before < start + len(sentence) and place > start:
            tokens.append((piece, math.exp(log_probability)))
    return tokens

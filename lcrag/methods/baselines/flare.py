"""FLARE: a sentence that the policy is not sure of is searched for, and written again."""

import math
from collections.abc import Sequence

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.requests import Complete, Completion, FittedText, Found, Program, RetrievalFailure, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import SearchAction, parse_action
from lcrag.methods.baselines.ircot import next_query
from lcrag.methods.baselines.prompts import FLARE_ANSWER, FLARE_SENTENCE, worded
from lcrag.methods.baselines.steps import answer_from


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

    A next sentence is written without passages. Where one of its tokens is less probable than `least_probability`
    (the paper's theta), it becomes a query, without its tokens below `masked_below` (beta), and is written again with
    what is found in front; the passages of earlier sentences are gone. Sentences are written in fresh contexts until
    one gives the answer, which the policy then repeats in the episode's own context. Probabilities are those at the
    sampling temperature.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      least_probability: theta: 0 never searches, 1 for nearly every sentence.
      masked_below: beta: 0 masks nothing.
      sentences: Most sentences.
      passages: Passages of each searched language (the paper: 2).
      route: Which collections search number b goes to.
      wording: "full" or "atlas".
      observation_tokens: At most this many tokens for the passages of a prompt.
    """
    write, conclude = worded(FLARE_SENTENCE, wording), worded(FLARE_ANSWER, wording)
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
    """What a sentence that was written ahead searches for; None if the policy is sure of it.

    A policy that asks for a search gets its query as it is; one that writes nothing is sure of nothing.
    """
    action = parse_action(ahead.text)
    if isinstance(action, SearchAction):
        return action.query
    tokens = sentence_tokens(ahead)
    if tokens and all(probability >= least_probability for _, probability in tokens):
        return None
    return "".join(piece for piece, probability in tokens if probability >= masked_below).strip()


def sentence_tokens(ahead: Completion) -> list[tuple[str, float]]:
    """(text, probability) of the tokens of a completion's first sentence; white space is no part of it."""
    sentence, _ = next_query(ahead.text)
    start = ahead.text.find(sentence)
    tokens, place = [], 0
    for piece, log_probability in zip(ahead.pieces, ahead.log_probabilities, strict=True):
        before, place = place, place + len(piece)
        if piece and before < start + len(sentence) and place > start:
            tokens.append((piece, math.exp(log_probability)))
    return tokens

"""R-Search's program: the policy reasons and searches, then gives the evidence it found, then the answer."""

import dataclasses
from collections.abc import Sequence
from contextlib import suppress

import gin

from lcrag.data.questions import Question
from lcrag.episodes.observation import Framed, Style, information
from lcrag.episodes.prompts import atlas, user_message
from lcrag.episodes.requests import ContextFull, Found, Observe, Outcome, Program, RetrievalFailure, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.search_loop import SearchTurns
from lcrag.episodes.tags import (
    ANSWER,
    EVIDENCE,
    OBSERVATION,
    SEARCH,
    answer_in,
    boxes_in,
    closing,
    opening,
)
from lcrag.errors import lookup

_SEARCHING = (
    "You are a helpful assistant that solves the given question step by step. Begin each step by explaining your "
    "thoughts. If you need more information, give a specific query between <search> and </search>; the system returns "
    "the top search results between <observation> and </observation>. You can search as many times as you need. "
)
_EVIDENCE = (
    "Once you know the final answer, give all original information from the observations that may be relevant between "
    "<original_evidence> and </original_evidence>. It must be complete and keep the original wording without changes. "
    "If you made no search or there were no observations, leave the evidence out. "
)
_ANSWERING = "Finally, give the final answer between <answer> and </answer>."


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Wording:
    """How the environment speaks.

    Attributes:
      instructs: Whether there is a system message; the built-in tiny model gets the question alone.
      before: Text before the passages of a search, the opening tag included.
      documents: How the passages are written.
      after: Text after the passages, the closing tag included.
    """

    instructs: bool
    before: str
    documents: Style
    after: str

    def opening(self, question: Question, evidence: bool) -> Observe:
        """Asks the question. The system message is table 1 in our words, with or without its part on evidence."""
        if not self.instructs:
            return Observe(atlas(question))
        return Observe(user_message(question), system=_SEARCHING + _EVIDENCE * evidence + _ANSWERING)

    def observation(self, found: Found | RetrievalFailure, tokens: int) -> Framed:
        """Shows what a search found, cut to `tokens` tokens before the tags are added around it."""
        return Framed(self.before, information(found, self.documents, tokens), self.after)


_WORDINGS = {
    "full": _Wording(
        instructs=True,
        before=f"\n\n{opening(OBSERVATION)}",
        documents=Style(before="", after="", passage=lambda number, title, text: f'(Title: "{title}") {text}\n'),
        after=f"{closing(OBSERVATION)}\n\n",
    ),
    "atlas": _Wording(
        instructs=False,
        before=f"{opening(OBSERVATION)}\n",
        documents=Style(before="", after="", passage=lambda number, title, text: f" {title}: {text}\n"),
        after=f"{closing(OBSERVATION)}\n",
    ),
}


@gin.configurable(denylist=["question", "collections"])
def r_search(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 4,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = native_only,
    wording: str = "full",
    evidence: bool = True,
    observation_tokens: int = 1800,
) -> Program:
    """The evidence program (R-Search, section 3.2.1): reason, search, give the evidence, answer.

    The outcome's `extra` has what rewards need: `evidence` (None unless it is well-formed and follows an observation),
    `valid_searches` and `well_formed_answer`.

    Args:
      question, collections, passages (the paper: 3 in training, 5 in evaluation) and others: See `lcrag.methods`.
      evidence: Whether evidence is asked for and read; False is the ablation "w/o Evidence".
    """
    words = lookup(_WORDINGS, wording, "wording of R-Search")
    turns, blind = SearchTurns(budget, invalid_limit), None  # blind: turns before the first observation
    with suppress(ContextFull):
        yield words.opening(question, evidence)
        while search := (yield from turns.next_action()):
            languages = route(turns.searches, question.language, collections)
            found = yield Retrieve((search.query,), languages, passages)
            yield Observe(words.observation(found, observation_tokens))
            blind = blind or len(turns.texts)
    return _outcome(turns, blind, evidence)


def _outcome(turns: SearchTurns, blind: int | None, wanted: bool) -> Outcome:
    """Reads what the policy wrote. Evidence counts if it is `wanted` and none was given in the first `blind` turns."""
    answers, evidences = (boxes_in(turns.texts, tag) for tag in (ANSWER, EVIDENCE))
    unfounded = len(boxes_in(turns.texts[:blind], EVIDENCE).contents)
    evidence = evidences.sole if wanted and not unfounded else None
    return Outcome(
        answer=answer_in(turns.texts[-1]) if turns.texts else None,
        invalid_actions=turns.invalid,
        counts={
            "valid_searches": turns.searches,
            "evidence": int(evidence is not None),
            "unfounded_evidence": unfounded,
            "malformed_evidence": evidences.malformed,
            "malformed_answer": answers.malformed,
            "malformed_search": boxes_in(turns.texts, SEARCH).malformed,
            "forged_observation": boxes_in(turns.texts, OBSERVATION).tags,
        },
        extra={
            "evidence": evidence,
            "valid_searches": turns.searches,
            "well_formed_answer": answers.sole is not None,
        },
    )

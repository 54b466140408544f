"""R-Search's rollout: reasoning that searches, then the evidence that was found, then the answer."""

import dataclasses
from collections.abc import Sequence
from contextlib import suppress

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.observation import Framed, Style, information
from lcrag.episodes.prompts import answer_language, atlas
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
    neutralise,
    opening,
)
from lcrag.errors import UserError

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
class Wording:
    """How the environment of R-Search speaks.

    Attributes:
      instructs: Whether there is a system message; a model that follows no instructions gets the question alone.
      before: What comes before the passages of a search, the opening tag included.
      documents: How the passages are written down.
      after: What comes behind them.
    """

    instructs: bool
    before: str
    documents: Style
    after: str

    def system(self, evidence: bool) -> str | None:
        """The system message (table 1, in our words), with or without its part on evidence."""
        return _SEARCHING + _EVIDENCE * evidence + _ANSWERING if self.instructs else None

    def question(self, question: Question) -> str:
        """The user's message. The paper's questions are English; where the answer must not be, it is said."""
        if not self.instructs:
            return atlas(question)
        wanted = answer_language(question)
        note = "" if wanted == "en" else f" The answer must be in {language_of(wanted).name}."
        return f"{neutralise(question.text)}{note}\n"

    def observation(self, found: Found | RetrievalFailure, tokens: int) -> Framed:
        """What a search found, cut to `tokens` tokens before the tags are put around it, so that they survive."""
        return Framed(self.before, information(found, self.documents, tokens), self.after)


WORDINGS = {
    "full": Wording(
        instructs=True,
        before=f"\n\n{opening(OBSERVATION)}",
        documents=Style(before="", after="", passage=lambda number, title, text: f'(Title: "{title}") {text}\n'),
        after=f"{closing(OBSERVATION)}\n\n",
    ),
    "atlas": Wording(
        instructs=False,
        before=f"{opening(OBSERVATION)}\n",
        documents=Style(before="", after="", passage=lambda number, title, text: f" {title}: {text}\n"),
        after=f"{closing(OBSERVATION)}\n",
    ),
}


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

    The outcome's `extra` says what rewards need: `evidence` (None where it is not well-formed, or stands before any
    observation), `valid_searches` and `well_formed_answer`.

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      budget: Valid searches allowed; then the policy has one last word without a search.
      passages: Passages of each searched language (the paper: 3 in training, 5 in evaluation).
      invalid_limit: Invalid actions allowed; they do not count as searches.
      route: Which collections search number b goes to.
      wording: "full" for models that follow instructions, "atlas" for the built-in tiny one.
      evidence: Whether evidence is asked for and read; False is the ablation "w/o Evidence".
      observation_tokens: At most this many tokens for the passages of one search, tags aside.

    Raises:
      UserError: there is no such wording.
    """
    words, turns = _worded(wording), SearchTurns(budget, invalid_limit)
    blind = None  # turns before the first observation
    with suppress(ContextFull):
        yield Observe(words.question(question), system=words.system(evidence))
        while search := (yield from turns.next_action()):
            languages = route(turns.searches, question.language, collections)
            found = yield Retrieve((search.query,), languages, passages)
            yield Observe(words.observation(found, observation_tokens))
            blind = blind or len(turns.texts)
    return _outcome(turns, blind, evidence)


def _outcome(turns: SearchTurns, blind: int | None, wanted: bool) -> Outcome:
    """What the episode came to. Evidence counts if it is `wanted` and none was given in the first `blind` turns."""
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


def _worded(wording: str) -> Wording:
    if wording not in WORDINGS:
        raise UserError(f"there is no wording {wording!r} of R-Search: choose one of {', '.join(WORDINGS)}")
    return WORDINGS[wording]

"""R-Search's rollout: reasoning that searches, then the evidence that was found, then the answer."""

import dataclasses
from collections.abc import Sequence

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.observation import Framed, Style, information
from lcrag.episodes.prompts import RETHINK, answer_language, atlas
from lcrag.episodes.requests import ContextFull, Found, Generate, Observe, Outcome, Program, RetrievalFailure, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.tags import (
    ANSWER,
    EVIDENCE,
    OBSERVATION,
    SEARCH,
    Answer,
    Invalid,
    SearchAction,
    answer_in,
    boxes_in,
    closing,
    neutralise,
    opening,
    parse_action,
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
    words = _worded(wording)
    account = _Account(evidence)
    try:
        yield Observe(words.question(question), system=words.system(evidence))
        while account.searches < budget and account.invalid < invalid_limit:
            account.written.append((yield Generate(stop=(closing(SEARCH), closing(ANSWER)))))
            match parse_action(account.written[-1]):
                case SearchAction(query):
                    account.searches += 1
                    languages = route(account.searches, question.language, collections)
                    found = yield Retrieve((query,), languages, passages)
                    yield Observe(words.observation(found, observation_tokens))
                    account.observed()
                case Answer():
                    return account.outcome()
                case Invalid():
                    account.invalid += 1
                    yield Observe(RETHINK)
        account.written.append((yield Generate(stop=(closing(ANSWER),))))  # one last word, no search
    except ContextFull:
        return account.outcome()
    account.invalid += answer_in(account.written[-1]) is None
    return account.outcome()


@dataclasses.dataclass
class _Account:
    """What happened in an episode so far.

    Attributes:
      evidence: Whether evidence counts.
      searches: Valid searches.
      invalid: Invalid actions.
      written: The policy's text of each turn.
      blind: How many turns were written before the first observation; None: there was none yet.
    """

    evidence: bool
    searches: int = 0
    invalid: int = 0
    written: list[str] = dataclasses.field(default_factory=list)
    blind: int | None = None

    def observed(self) -> None:
        """An observation was shown."""
        self.blind = len(self.written) if self.blind is None else self.blind

    def outcome(self) -> Outcome:
        """What the episode came to."""
        answers, evidences = (boxes_in(self.written, tag) for tag in (ANSWER, EVIDENCE))
        unfounded = len(boxes_in(self.written[: self.blind], EVIDENCE).contents)
        evidence = evidences.sole if self.evidence and not unfounded else None
        return Outcome(
            answer=answer_in(self.written[-1]) if self.written else None,
            invalid_actions=self.invalid,
            counts={
                "valid_searches": self.searches,
                "evidence": int(evidence is not None),
                "unfounded_evidence": unfounded,
                "malformed_evidence": evidences.malformed,
                "malformed_answer": answers.malformed,
                "malformed_search": boxes_in(self.written, SEARCH).malformed,
                "forged_observation": boxes_in(self.written, OBSERVATION).tags,
            },
            extra={
                "evidence": evidence,
                "valid_searches": self.searches,
                "well_formed_answer": answers.sole is not None,
            },
        )


def _worded(wording: str) -> Wording:
    if wording not in WORDINGS:
        raise UserError(f"there is no wording {wording!r} of R-Search: choose one of {', '.join(WORDINGS)}")
    return WORDINGS[wording]

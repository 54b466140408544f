"""R-Search's program: the policy reasons and searches, then gives the evidence it found, then the answer."""

from collections.abc import Sequence
from contextlib import suppress

import gin

from lcrag.data.questions import Question
from lcrag.episodes.programs import ContextFull, Observe, Outcome, Program, Retrieve, SearchTurns, atlas, user_message
from lcrag.episodes.searches import Framed, Route, Style, information, native_only
from lcrag.episodes.tags import ANSWER, EVIDENCE, OBSERVATION, SEARCH, answer_in, boxes_in, closing, opening
from lcrag.errors import lookup

# The system message, table 1 in our words; its part on evidence can be left out.
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


# The text before the passages of a search, how they are written, and the text after them.
_WORDINGS = {
    "full": (
        f"\n\n{opening(OBSERVATION)}",
        Style(before="", after="", passage=lambda number, title, text: f'(Title: "{title}") {text}\n'),
        f"{closing(OBSERVATION)}\n\n",
    ),
    "atlas": (
        f"{opening(OBSERVATION)}\n",
        Style(before="", after="", passage=lambda number, title, text: f" {title}: {text}\n"),
        f"{closing(OBSERVATION)}\n",
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
    before, style, after = lookup(_WORDINGS, wording, "wording of R-Search")
    turns, blind = SearchTurns(budget, invalid_limit), None  # blind: turns before the first observation
    with suppress(ContextFull):
        if wording == "atlas":  # the built-in tiny model gets the question alone
            yield Observe(atlas(question))
        else:
            yield Observe(user_message(question), system=_SEARCHING + _EVIDENCE * evidence + _ANSWERING)
        while search := (yield from turns.next_action()):
            languages = route(turns.searches, question.language, collections)
            found = yield Retrieve((search.query,), languages, passages)
            # The budget is the passages' own: the tags come on top, so that no cut can lose them.
            yield Observe(Framed(before, information(found, style, observation_tokens), after))
            blind = blind or len(turns.texts)
    answers, evidences = (boxes_in(turns.texts, tag) for tag in (ANSWER, EVIDENCE))
    # Evidence that was given before any observation is made up, and spoils all that follows.
    unfounded = len(boxes_in(turns.texts[:blind], EVIDENCE).contents)
    given = evidences.sole if evidence and not unfounded else None
    return Outcome(
        answer=answer_in(turns.texts[-1]) if turns.texts else None,
        invalid_actions=turns.invalid,
        counts={
            "valid_searches": turns.searches,
            "evidence": int(given is not None),
            "unfounded_evidence": unfounded,
            "malformed_evidence": evidences.malformed,
            "malformed_answer": answers.malformed,
            "malformed_search": boxes_in(turns.texts, SEARCH).malformed,
            "forged_observation": boxes_in(turns.texts, OBSERVATION).tags,
        },
        extra={
            "evidence": given,
            "valid_searches": turns.searches,
            "well_formed_answer": answers.sole is not None,
        },
    )

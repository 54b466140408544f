"""Search as a tool for another model: one policy searches, a second model answers from what it found."""

from collections.abc import Callable, Sequence

from lcrag.data.questions import Question
from lcrag.episodes.noting import NotedSearch, noting_searches
from lcrag.episodes.requests import Complete, ContextFull, Outcome, Program
from lcrag.errors import UserError
from lcrag.methods.r_search.evidence_reader import READINGS


def answer_from_evidence(
    question: Question,
    collections: Sequence[str],
    *,
    searcher: Callable[[Question, Sequence[str]], Program] | None,
    reader: str = "reader",
    wording: str = "full",
    evidence_characters: int = 8000,
) -> Program:
    """Any program searches, and another model answers from its evidence alone (R-Search, section 5.1: as a tool).

    Where the searcher writes no evidence, the passages it found are the evidence. The outcome's `extra` says what the
    reader was shown (`evidence`) and what the searcher itself answered (`searcher_answer`).

    Args:
      question: What is asked.
      collections: Languages of the collection set.
      searcher: The program that searches; None: nobody does, and the same reader answers the same prompt without
        evidence.
      reader: The model that answers: a name in `Runner.completers`.
      wording: "full" or "atlas", of the reader's prompt.
      evidence_characters: Longest evidence; passages are left out whole, the last found first.

    Raises:
      UserError: there is no such wording.
    """
    if wording not in READINGS:
        raise UserError(f"there is no wording {wording!r} of a reader: choose one of {', '.join(READINGS)}")
    reading, found = READINGS[wording], Outcome(answer=None)
    noted: list[NotedSearch] = []
    if searcher is not None:
        try:
            found = yield from noting_searches(searcher(question, collections), noted)
        except ContextFull:
            pass  # what was found until then is evidence too
    evidence = found.extra.get("evidence") or _passages(noted, evidence_characters)
    shown = evidence[:evidence_characters]
    completion = yield Complete(prompt=reading.of(question.text, shown), stop=reading.stop, model=reader)
    return Outcome(
        answer=reading.answer_in(completion.text) or None,
        invalid_actions=found.invalid_actions,
        counts=found.counts,
        extra={"evidence": shown, "searcher_answer": found.answer},
    )


def _passages(noted: Sequence[NotedSearch], characters: int) -> str:
    """What the searches found, each passage once on a line of its own, in the order found, as far as there is room."""
    found = [" ".join(f"{each.title}: {each.text}".split()) for search in noted for each in search.passages]
    text = ""
    for line in dict.fromkeys(found):
        if text and len(text) + len(line) > characters:
            break
        text += f"{line}\n"
    return text

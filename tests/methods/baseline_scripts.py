"""Scripted policies and searches that drive one baseline by hand."""

import program_scripts
from support import tiny_tokenizer

from lcrag.data.questions import Question
from lcrag.episodes import Complete, Observe, Retrieve
from lcrag.retrieval.passages import Hit

QUESTION = Question(id="7", dataset="d", language="fr", text="Quelle est la capitale du Pérou ?", answers=("Lima",))
COLLECTIONS = ("ar", "en", "fr", "ja")
TOKENIZER = tiny_tokenizer()


def hit(query: str, language: str, rank: int = 1) -> Hit:
    text = f"{query} says {language}"
    return Hit(id=f"{language}-{rank}", title=f"T{rank}-{language}", text=text, score=1.0, language=language)


def found(request: Retrieve, missing=()) -> list:
    ranks = range(request.passages)
    return [
        [[] if code in missing else [hit(query, code, rank) for rank in ranks] for code in request.languages]
        for query in request.queries
    ]


def drive(program, says, retrieve=found, question=QUESTION, **settings):
    """Plays a program with settings: `says` are the policy's and the completer's texts, or completions, in order.

    Returns its outcome, and (kind of a request, the prompt or observation shown, else the request) for each.
    """
    outcome, requests = program_scripts.drive(program(question, COLLECTIONS, **settings), says, retrieve)
    log = []
    for request in requests:
        shown = {Observe: "text", Complete: "prompt"}.get(type(request))
        value = getattr(request, shown) if shown else request
        value = value.fit(TOKENIZER, 10_000) if shown and not isinstance(value, str) else value
        log.append((type(request).__name__.lower(), value))
    return outcome, log


def outline(log) -> list[str]:
    """What was asked for: "LANGUAGES: QUERY" of a search, else the kind of the request and its number of passages."""
    return [
        f"{' '.join(value.languages)}: {value.queries[0]}" if kind == "retrieve"
        else f"{kind} {value.count(' says ') if isinstance(value, str) else ''}".strip()
        for kind, value in log
    ]  # fmt: skip


def texts_of(log, wanted: str) -> list[str]:
    return [text for kind, text in log if kind == wanted]

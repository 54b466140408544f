"""Scripted policies and searches that drive one baseline by hand."""

import program_scripts

from lcrag.data.questions import Question
from lcrag.episodes import Complete, Observe, Retrieve
from lcrag.retrieval.passages import Hit

QUESTION = Question(id="7", dataset="d", language="fr", text="Quelle est la capitale du Pérou ?", answers=("Lima",))
COLLECTIONS = ("ar", "en", "fr", "ja")


class Encoder:
    """Tokens are characters."""

    def encode(self, text):
        return [ord(character) for character in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


def hit(query: str, language: str, rank: int = 1) -> Hit:
    text = f"{query} says {language}"
    return Hit(id=f"{language}-{rank}", title=f"T{rank}-{language}", text=text, score=1.0, language=language)


def found(request: Retrieve, missing=()) -> list:
    return [
        [
            [] if code in missing else [hit(query, code, n) for n in range(request.passages)]
            for code in request.languages
        ]
        for query in request.queries
    ]


def shown(text, room: int = 10_000) -> str:
    return text if isinstance(text, str) else text.fit(Encoder(), room)


def drive(program, says, retrieve=found):
    """Plays a program: `says` are the policy's and the completer's texts, or completions, in order.

    Returns its outcome and what it asked for.
    """
    outcome, requests = program_scripts.drive(program, says, retrieve)
    return outcome, [logged(request) for request in requests]


def logged(request) -> tuple:
    match request:
        case Observe(text):
            return "observe", shown(text)
        case Complete(prompt=prompt):
            return "complete", shown(prompt)
    return type(request).__name__.lower(), request


def kinds(log) -> list[str]:
    return [kind for kind, _ in log]


def searched(log) -> list[tuple]:
    return [(request.queries, request.languages) for kind, request in log if kind == "retrieve"]


def texts_of(log, kind: str) -> list[str]:
    return [text for each, text in log if each == kind]

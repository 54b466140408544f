"""Scripted policies and searches that drive one baseline by hand."""

from lcrag.data.questions import Question
from lcrag.episodes import Complete, Completion, Generate, Observe, Retrieve
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
    texts, log, sent = iter(says), [], None

    def answer(request):
        match request:
            case tuple():
                return tuple(map(answer, request))
            case Observe(text):
                log.append(("observe", shown(text)))
            case Generate():
                log.append(("generate", request))
                return next(texts)
            case Complete(prompt=prompt):
                log.append(("complete", shown(prompt)))
                said = next(texts)
                return said if isinstance(said, Completion) else Completion(text=said, finish_reason="stop", tokens=1)
            case Retrieve():
                log.append(("retrieve", request))
                return retrieve(request)
        return None

    while True:
        try:
            request = program.send(sent)
        except StopIteration as stop:
            assert next(texts, None) is None, "the program ended early"
            return stop.value, log
        sent = answer(request)


def kinds(log) -> list[str]:
    return [kind for kind, _ in log]


def searched(log) -> list[tuple]:
    return [(request.queries, request.languages) for kind, request in log if kind == "retrieve"]


def texts_of(log, kind: str) -> list[str]:
    return [text for each, text in log if each == kind]

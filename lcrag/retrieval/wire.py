"""The `/retrieve` API in JSON, as Search-R1's retrieval server defined it, with languages added.

Source: Search-R1 (Jin et al. 2025, arXiv:2503.09516). A request is `{"queries", "topk", "return_scores"}`, here with an
optional `"languages"`, one per query; an answer is `{"result": [[{"document": {"id", "contents"}, "score"}]]}`, or bare
documents without `return_scores`. The first line of `contents` is the title in double quotes.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import pydantic

from lcrag.errors import without_secrets
from lcrag.retrieval.passages import Hit, Passage

# Header of answers with the digest of the searched content; see `digest`.
CONTENT_HEADER = "lcrag-content"
# The longest tag that RFC 5646 expects.
LanguageCode: TypeAlias = Annotated[str, pydantic.Field(max_length=35)]
_SHOWN_CHARACTERS = 300


class RetrieveRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """Body of `POST /retrieve`; unknown fields are rejected, since they may be misspelt."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False
    languages: list[LanguageCode] | None = None


class Description(pydantic.BaseModel):
    """Answer of `GET /collections`: what can be searched, hashes of the content, and limits of a request."""

    languages: list[str]
    default_language: str | None  # None: requests must name languages
    hashes: dict[str, str]
    most_queries: int
    most_query_characters: int = 1 << 13
    most_passages: int


class _Document(pydantic.BaseModel):
    """A document as existing servers send it: `contents`, or `title` and `text`, with or without an id."""

    id: str | int | None = None
    contents: str | None = None
    title: str = ""
    text: str | None = None
    language: str | None = None

    @pydantic.model_validator(mode="after")
    def _has_text(self) -> "_Document":
        if self.contents is None and self.text is None:
            raise ValueError("it has neither contents nor text")
        return self


class _Scored(pydantic.BaseModel):
    document: _Document
    score: float | None = None


class _Answer(pydantic.BaseModel):
    result: list[list[_Scored | _Document]]


def first_problem(error: pydantic.ValidationError) -> str:
    """Returns place and message of the first validation error, without values of the text."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = one_line(".".join(map(str, problem["loc"])))
    return f"{where}: {problem['msg']}" if where else problem["msg"]


def one_line(text: object) -> str:
    """Returns at most 300 characters of external text for a message, on one line and without passwords or keys."""
    return " ".join(without_secrets(str(text))[:_SHOWN_CHARACTERS].split())


def contents_of(passage: Passage) -> str:
    """Joins title and text: the title in double quotes on the first line."""
    return f'"{passage.title.replace(chr(10), " ")}"\n{passage.text}'


def title_and_text(contents: str) -> tuple[str, str]:
    """Splits contents into title and text; quotes around the title are optional, and a single line is text."""
    head, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    quoted = len(head) > 1 and head.startswith('"') and head.endswith('"')
    return head[1:-1] if quoted else head, text


def answer_of(results: Sequence[Sequence[Hit]], return_scores: bool) -> dict[str, Any]:
    """Returns the answer to a request: one list of documents per query."""

    def sent(hit: Hit) -> dict[str, Any]:
        document = {"id": hit.id, "contents": contents_of(hit), "language": hit.language}
        return {"document": document, "score": hit.score} if return_scores else document

    return {"result": [[sent(hit) for hit in hits] for hits in results]}


def hits_of(answer: bytes, languages: Sequence[str], k: int) -> list[list[Hit]]:
    """Reads the answer of any `/retrieve` service, at most `k` hits per query; a ValueError says that it is not one.

    A missing score is the reciprocal of the rank, a missing id a hash of the contents, a missing language the requested
    one.
    """
    try:
        result = _Answer.model_validate_json(answer).result
    except pydantic.ValidationError as error:
        raise ValueError(first_problem(error)) from error
    if len(result) != len(languages):
        raise ValueError(f"it answers {len(result)} queries of {len(languages)}")

    def hit(received: _Scored | _Document, language: str, rank: int) -> Hit:
        document = received.document if isinstance(received, _Scored) else received
        score = received.score if isinstance(received, _Scored) else None
        title, text = document.title, document.text or ""
        if document.contents is not None:
            title, text = title_and_text(document.contents)
        return Hit(
            id=digest({"title": title, "text": text}) if document.id is None else str(document.id),
            title=title,
            text=text,
            score=1.0 / rank if score is None else score,
            language=document.language or language,
        )

    return [
        [hit(received, language, rank) for rank, received in enumerate(hits[:k], start=1)]
        for hits, language in zip(result, languages, strict=True)
    ]


def digest(values: Mapping[str, str]) -> str:
    """Returns 16 hexadecimal digits of a hash of named texts."""
    parts = (f"{len(text)}:{text}" for item in sorted(values.items()) for text in item)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]

"""Remote collections: of `lcrag serve`, or of servers with Search-R1's protocol.

`RemoteCollections` searches a `Backend`, caches its answers, and has the interface of `lcrag.retrieval.Collections`;
other backends are `lcrag.retrieval.web` and `lcrag.retrieval.qdrant`. Requests are retried while a service is
unavailable. An unreachable or misconfigured service ends the run (`UserError`); the same command continues it later. If
the service rejects a request (`ServiceRefusal`), only this request fails. A failed search is never an empty list.
"""

import hashlib
import ipaddress
import logging
import math
import os
import re
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import cachetools
import gin
import httpx2
import pydantic

from lcrag.errors import UserError, excerpt, first_problem, typed, without_secrets
from lcrag.retries import (
    BROKEN,
    LATER,
    USUAL_PATIENCE,
    Patience,
    ServiceRefusal,
    TemporaryFailure,
    asked_seconds,
)
from lcrag.retrieval.passages import Hit, contents_of, title_and_text

# Header of answers with the digest of the searched content; see `digest`.
CONTENT_HEADER = "lcrag-content"
# The longest tag that RFC 5646 expects.
LanguageCode: TypeAlias = Annotated[str, pydantic.Field(max_length=35)]
Pair: TypeAlias = tuple[str, str]  # query, language
Client = TypeVar("Client")
Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")
# Not retried: the address or the key is wrong, or a proxy wants one.
_MISCONFIGURED = frozenset({401, 403, 404, 405, 407})
# Google's answer to a wrong key, with status 400.
_WRONG_KEY = "API_KEY_INVALID"
_QUERIES, _CONNECTIONS = 256, 4  # of a request; concurrent requests, which a service batches into one search


# --- The `/retrieve` API in JSON, as Search-R1's retrieval server defined it, with languages added ---
#
# Search-R1: Jin et al. 2025, arXiv:2503.09516. A request is `{"queries", "topk", "return_scores"}`, here with
# an optional `"languages"`, one per query; an answer is `{"result": [[{"document": {"id", "contents"}, "score"}]]}`, or
# bare documents without `return_scores`. The first line of `contents` is the title in double quotes.


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
    title: str | None = None
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


def answer_of(results: Sequence[Sequence[Hit]], return_scores: bool) -> dict[str, Any]:
    """Returns the answer to a request: one list of documents per query."""

    def sent(hit: Hit) -> dict[str, Any]:
        document = {"id": hit.id, "contents": contents_of(hit), "language": hit.language}
        return {"document": document, "score": hit.score} if return_scores else document

    return {"result": [[sent(hit) for hit in hits] for hits in results]}


def hits_of(answer: bytes, languages: Sequence[str], k: int) -> list[list[Hit]]:
    """Reads the answer of any `/retrieve` service, at most `k` hits per query; a ValueError says that it is not one.

    A score that is not finite is a ServiceRefusal, since it may be that of one query. A missing score is the reciprocal
    of the rank, a missing id a hash of the contents, a missing language the requested one.
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
        if score is not None and not math.isfinite(score):
            raise ServiceRefusal(f"a passage has the score {score}, which is no finite number")
        title, text = document.title or "", document.text or ""
        if document.contents is not None:
            title, text = title_and_text(document.contents, title)
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


# --- Addresses, and requests to them ---


def shown(text: str) -> str:
    """Replaces users, passwords and keys in the addresses of a text by ***, even in malformed addresses."""
    return without_secrets(re.sub(r"\S+@", "***@", text))


def is_loopback(host: str) -> bool:
    """Returns whether a host's name or address is this machine's own, which no other machine can reach."""
    host = host.lower().rstrip(".")
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _stays_here(url: str) -> bool:
    """Returns whether requests to an address go to this machine; 0.0.0.0, which servers print, does."""
    try:
        host = urllib.parse.urlsplit(url).hostname or ""
    except ValueError:  # the client says what is wrong
        return False
    return is_loopback(host) or host in ("0.0.0.0", "::")


def shown_address(url: str) -> str:
    """Returns an address for messages: without passwords and keys, and with the proxy that requests go through."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    names = [name for name in (f"{scheme.lower()}_proxy", "all_proxy") for name in (name, name.upper())]
    proxies = [name for name in names if os.environ.get(name)]
    if not proxies or _stays_here(url) or urllib.request.proxy_bypass(host):
        return shown(url)
    return f"{shown(url)} (through the proxy of the environment variable {proxies[0]})"


def http_client(make: Callable[..., Client], url: str, **settings: Any) -> Client:
    """Returns `make(**settings)`, an HTTP library's client of one address.

    The environment's proxies are not used for an address of this machine: another one cannot reach it.
    """
    try:
        return make(trust_env=not _stays_here(url), **settings)
    except (ImportError, ValueError, httpx2.InvalidURL) as error:  # a proxy's address, or a kind that needs a package
        raise UserError(f"there can be no client of {shown_address(url)}: {excerpt(error)}") from error


def key_from(variable: str) -> str:
    """Reads a key from an environment variable, since a configuration is stored with every result."""
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", variable):
        raise UserError(
            "a key_variable is not the name of an environment variable: export KEY_NAME=KEY, and bind KEY_NAME"
        )
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"the environment variable {variable} is not set: export {variable}=KEY")
    return key


class HttpService:
    """A client of the service at an address; thread-safe.

    `called` and the address, without a password, are its name in messages: "the search engine at http://HOST".
    """

    def __init__(
        self,
        called: str,
        url: str,
        patience: Patience,
        connections: int | None = 8,
        headers: Mapping[str, str] | None = None,
    ):
        self.name, self._patience = f"{called} at {shown_address(url)}", patience
        self._client = http_client(
            httpx2.Client,
            url,
            headers=headers,
            timeout=httpx2.Timeout(patience.answer_seconds, connect=patience.connect_seconds),
            limits=httpx2.Limits(max_connections=connections),
        )
        # The client logs addresses, which may hold passwords and keys.
        logging.getLogger("httpx2").setLevel(logging.WARNING)

    def request(
        self,
        method: str,
        url: str,
        read: Callable[[httpx2.Response], Any] = lambda response: response,
        patience: Patience | None = None,
        **content: Any,
    ) -> Any:
        """Returns what `read` makes of the successful answer to a request with `params` or `json`, after retries.

        The attempt fails if `read` raises a `TemporaryFailure`. `patience` is that of this request alone.

        Raises:
          ServiceUnavailable: The service is unreachable, or too busy, in all attempts.
          UserError: Its address or key is wrong.
          ServiceRefusal: The service refuses this request.
        """

        def once() -> Any:
            try:
                response = self._client.request(method, url, **content)
            except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
                raise UserError(f"{self.name} is not an address: write http://HOST:PORT") from None
            except (httpx2.TransportError, httpx2.DecodingError) as error:
                # A host that has accepted the request, and does not answer in time, is there.
                busy = isinstance(error, httpx2.ReadTimeout)
                raise TemporaryFailure(f"{type(error).__name__}: {error}".removesuffix(": "), busy=busy) from error
            if response.is_success:
                return read(response)
            # The reason is `detail`, `error` or `error.message` of the JSON answer, else its text.
            try:
                detail = response.json()
                detail = detail.get("detail", detail.get("error", detail)) if isinstance(detail, dict) else detail
                detail = detail.get("message", detail) if isinstance(detail, dict) else detail
            except ValueError:
                detail = response.text
            status = response.status_code
            reason = f"status {status}: {excerpt(detail)}"
            if status in LATER:
                waiting = asked_seconds(response.headers.get("retry-after", ""))
                raise TemporaryFailure(reason, busy=True, wait_seconds=waiting)
            if status >= BROKEN:
                raise TemporaryFailure(reason, broken=True)
            if status in _MISCONFIGURED or response.is_redirect or _WRONG_KEY in response.text:
                raise UserError(f"{self.name} rejects the request ({reason}): check its address and key")
            raise ServiceRefusal(f"{self.name} refuses ({reason})")

        return (patience or self._patience).ask(self.name, once)


class LatestAnswers(cachetools.LRUCache[Key, Answer]):
    """The latest `size` answers to distinct requests; thread-safe."""

    def __init__(self, size: int):
        super().__init__(size)
        self._lock = threading.Lock()

    def known(self, requests: Iterable[Key]) -> dict[Key, Answer]:
        with self._lock:
            return {request: self[request] for request in requests if request in self}

    def keep(self, answers: Mapping[Key, Answer]) -> None:
        with self._lock:
            self.update(answers)


# --- Collections at a service ---


@runtime_checkable
class Backend(Protocol):
    """One kind of service."""

    languages: tuple[str, ...]
    max_passages: int | None  # of a query; None: no limit
    max_queries: int  # of a request
    one_language: bool  # whether all queries of a request must have one language
    connections: int  # largest number of concurrent requests

    def content_hashes(self) -> dict[str, str]:
        """Returns hashes, or other identification, of the searched content, by name."""

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Sends one request of distinct pairs; returns at most `k` hits of each, best first."""


class RemoteCollections:
    """The collections of several languages at a service; thread-safe.

    The latest `cached_searches` answers to distinct (query, language) pairs are cached.
    """

    def __init__(self, backend: Backend, cached_searches: int = 1 << 16):
        self._backend = backend
        self._cache: LatestAnswers[tuple[Pair, int], list[Hit]] = LatestAnswers(cached_searches)
        self._executor = ThreadPoolExecutor(backend.connections, thread_name_prefix="remote search")

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(sorted(self._backend.languages))

    def content_hashes(self) -> dict[str, str]:
        return self._backend.content_hashes()

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most `k` best passages of each pair (queries[i], languages[i]), best first.

        A UserError ends the run; a ServiceRefusal concerns one of the requests, and the answers to others are cached.
        """
        if missing := sorted(set(languages) - set(self.languages)):
            raise UserError(f"no collection in language {missing[0]!r}: the service has {', '.join(self.languages)}")
        most = self._backend.max_passages
        if k < 1 or (most is not None and k > most):
            upto = " or more" if most is None else f" to {most}"
            raise UserError(f"a search for {k} passages: ask this service for 1{upto}")
        asked = list(dict.fromkeys(zip(queries, languages, strict=True)))
        results = {pair: hits for (pair, _), hits in self._cache.known((pair, k) for pair in asked).items()}
        missing_of: dict[str, list[Pair]] = {}
        for pair in asked:
            if pair not in results:
                missing_of.setdefault(pair[1] if self._backend.one_language else "", []).append(pair)
        size = self._backend.max_queries
        requests = [
            pairs[start : start + size] for pairs in missing_of.values() for start in range(0, len(pairs), size)
        ]

        def fetch(request: Sequence[Pair]) -> Mapping[Pair, list[Hit]]:
            answered = dict(zip(request, self._backend.fetch(request, k), strict=True))
            self._cache.keep({(pair, k): hits for pair, hits in answered.items()})
            return answered

        for answered in self._executor.map(fetch, requests):
            results |= answered
        return [list(results[pair]) for pair in zip(queries, languages, strict=True)]


class LcragService:
    """A service started by `lcrag serve` at `http://HOST:PORT`; queries are cut to the length that it accepts.

    Without `languages`, all of its collections are searched.
    """

    connections, one_language = _CONNECTIONS, False

    def __init__(self, url: str, languages: Sequence[str] | None = None, patience: Patience = USUAL_PATIENCE):
        self._url = url.rstrip("/").removesuffix("/retrieve")
        self._service = HttpService("the retrieval service", self._url, patience, self.connections)
        name = self._service.name
        try:
            response = self._service.request("GET", f"{self._url}/collections", patience=patience.at_the_start())
            self._described = Description.model_validate_json(response.content)
        except ServiceRefusal as error:
            raise UserError(f"{error}: it cannot list its collections: look at its log") from error
        except pydantic.ValidationError as error:
            raise UserError(
                f"{name} does not describe its collections ({first_problem(error)}): is it a Search-R1 server,"
                " which search_r1_collections is for?"
            ) from error
        present = self._described.languages
        self.languages: tuple[str, ...] = tuple(present if languages is None else languages)
        if missing := sorted(set(self.languages) - set(present)):
            raise UserError(f"{name} has no collection in {missing[0]!r}: there are {', '.join(present)}")
        self.max_passages: int | None = self._described.most_passages
        self.max_queries = min(_QUERIES, self._described.most_queries)
        self._content = digest(self._described.hashes)

    def content_hashes(self) -> dict[str, str]:
        """Returns the service's hashes of its encoder and of the collections in use."""
        used = {"encoder", *(f"collection/{language}" for language in self.languages)}
        return {name: value for name, value in self._described.hashes.items() if name in used}

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Sends one request (see `Backend.fetch`); changed collections are a UserError."""
        cut = [(query[: self._described.most_query_characters], language) for query, language in pairs]
        languages = {"languages": [language for _, language in pairs]}
        response, hits = _retrieve(self._service, f"{self._url}/retrieve", cut, k, languages)
        if response.headers.get(CONTENT_HEADER, self._content) != self._content:
            raise UserError(
                f"the collections of {self._service.name} have changed since this command began: serve the earlier"
                " ones, or start again"
            )
        return hits


class SearchR1Servers:
    """One server with Search-R1's protocol for each language; its content is unknown.

    `urls` maps each language to an address, with or without the path `/retrieve`.
    """

    connections, one_language = _CONNECTIONS, True  # of all servers together
    max_passages: int | None = None
    max_queries = _QUERIES

    def __init__(self, urls: Mapping[str, str], patience: Patience = USUAL_PATIENCE):
        if not urls:
            raise UserError("search_r1_collections.urls is empty: give an address for each language")
        self._urls = {
            language: url if url.partition("://")[2].partition("/")[2].strip("/") else f"{url.rstrip('/')}/retrieve"
            for language, url in urls.items()
        }
        self._services = {
            language: HttpService("the retrieval server", url, patience, self.connections)
            for language, url in self._urls.items()
        }
        self.languages: tuple[str, ...] = tuple(urls)

    def content_hashes(self) -> dict[str, str]:
        """Returns the addresses: such servers do not describe their content."""
        return {f"collection/{language}": f"unknown, at {shown(url)}" for language, url in self._urls.items()}

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        language = pairs[0][1]
        return _retrieve(self._services[language], self._urls[language], pairs, k, {})[1]


def _retrieve(
    service: HttpService, url: str, pairs: Sequence[Pair], k: int, more: Mapping[str, Any]
) -> tuple[httpx2.Response, list[list[Hit]]]:
    """Sends pairs, and `more` fields than Search-R1's, to `/retrieve`; another API there is a UserError."""
    body = {"queries": [query for query, _ in pairs], "topk": k, "return_scores": True, **more}
    response = service.request("POST", url, json=body)
    try:
        return response, hits_of(response.content, [language for _, language in pairs], k)
    except ServiceRefusal as error:
        raise ServiceRefusal(f"{service.name} does not answer as a search service does: {error}") from error
    except ValueError as error:
        raise UserError(f"{service.name} does not implement the /retrieve API ({error}): check its address") from error


@gin.configurable
@typed
def remote_collections(
    url: str, languages: Sequence[str] | None = None, patience: Patience = USUAL_PATIENCE
) -> RemoteCollections:
    """Returns the collections of `lcrag serve` at `url` (`http://HOST:PORT`); None for `languages` means all."""
    return RemoteCollections(LcragService(url, languages, patience))


@gin.configurable
@typed
def search_r1_collections(urls: Mapping[str, str], patience: Patience = USUAL_PATIENCE) -> RemoteCollections:
    """Returns the collections of Search-R1-style servers; `urls` maps each language to an address."""
    return RemoteCollections(SearchR1Servers(urls, patience))

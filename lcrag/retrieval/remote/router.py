"""Several `lcrag serve` hosts as one set of collections: languages and parts of languages, each on one or more hosts.

A host serves whole collections or some parts of them (`load_collections.languages`, `load_collections.parts`). Hosts
with the same parts of a language are replicas: searches alternate between them, and go to another one if one does not
answer. The results of the parts are merged by score. `lcrag serve --router` serves them at one address.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from lcrag.errors import UserError
from lcrag.retrieval.passages import Hit
from lcrag.retrieval.remote.collections import Pair
from lcrag.retrieval.remote.services import LcragService
from lcrag.retrieval.remote.transport import Patience, ServiceRefusal, ServiceUnavailable
from lcrag.retrieval.wire import combined_fingerprint, parts_of

_LOGGER = logging.getLogger(__name__)
_ENCODER = "encoder"
# If no replica of a part answers, clients get an error after a quarter of a minute, and retry later.
ROUTER_PATIENCE = Patience(attempts=6)


@dataclasses.dataclass(eq=False)
class _Host:
    """A host, and the time until which it is asked only if no replica answers."""

    url: str
    service: LcragService
    resting_until: float = 0.0
    failure: str = ""


Replicas = tuple[_Host, ...]


class RoutedCollections:
    """The collections of several hosts; thread-safe.

    Args:
      hosts: Their addresses, `http://HOST:PORT`.
      languages: Required languages; a host that does not answer at the start is then left out. None: those of all
        hosts, which must answer.
      patience: Timeouts and retries; a request is tried once at each replica in every attempt.
      rest_seconds: Time after a failure in which a host is asked only if no replica answers.
      connections: Concurrent requests to all hosts together.
      clock: Seconds.

    Raises:
      UserError: A host is unreachable, hosts have different encoders or content, or a part of a language is missing.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        languages: Sequence[str] | None = None,
        patience: Patience = ROUTER_PATIENCE,
        rest_seconds: float = 10.0,
        connections: int = 32,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not hosts or len(set(hosts)) < len(hosts):
            raise UserError("routed_collections.hosts must name each host once: give http://HOST:PORT of every one")
        self._patience, self._rest_seconds, self._clock = patience, rest_seconds, clock
        self._threads = concurrent.futures.ThreadPoolExecutor(connections, thread_name_prefix="routed search")
        self._lock, self._turns = threading.Lock(), itertools.count()
        self._hosts = self._reached(hosts, languages is not None)
        self._hashes, self._routes = _routes_of(self._hosts, languages)
        self.most_passages: int = min(host.service.most_passages or 1 for host in self._hosts)

    def _reached(self, urls: Sequence[str], some_may_be_away: bool) -> list[_Host]:
        def reach(url: str) -> _Host | UserError:
            try:
                once = dataclasses.replace(self._patience, attempts=1)
                return _Host(url.rstrip("/"), LcragService(url, patience=once, queries=512, parts_only=True))
            except UserError as error:
                return error

        reached = list(self._threads.map(reach, urls))
        for error in reached:
            if isinstance(error, UserError):
                if not some_may_be_away:
                    raise error
                _LOGGER.warning("left out until this router starts again: %s", error)
        hosts = [host for host in reached if isinstance(host, _Host)]
        if not hosts:
            raise UserError(f"none of the hosts {', '.join(urls)} answers: start them with `lcrag serve`")
        return hosts

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that can be searched, sorted."""
        return tuple(sorted(self._routes))

    def content_hashes(self) -> dict[str, str]:
        """Returns the fingerprints of the encoder and of each collection: those of the same collections on one host."""
        return dict(self._hashes)

    def health(self) -> dict[str, str]:
        """Returns "ok" or the latest failure of each host, by address; asks them."""

        def check(host: _Host) -> str:
            try:
                host.service.check_health()
            except UserError as error:
                self._rest(host, error)
                return str(error)
            self._wake(host)
            return "ok"

        return dict(zip((host.url for host in self._hosts), self._threads.map(check, self._hosts), strict=True))

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most `k` best passages of each pair (queries[i], languages[i]), best first.

        Raises:
          UserError: A language has no collection, or k is out of range.
          ServiceUnavailable: No replica of a part answers.
          ServiceRefusal: A host refuses a request.
        """
        for language in dict.fromkeys(languages):
            if language not in self._routes:
                raise UserError(f"no collection in language {language!r}: the hosts have {', '.join(self.languages)}")
        if not 1 <= k <= self.most_passages:
            raise UserError(f"a search for {k} passages: ask these hosts for 1 to {self.most_passages}")
        pairs = list(dict.fromkeys(zip(queries, languages, strict=True)))
        asked: dict[Replicas, list[Pair]] = {}
        for pair in pairs:
            for replicas in self._routes[pair[1]]:
                asked.setdefault(replicas, []).append(pair)
        requests = [
            (replicas, batch) for replicas, together in asked.items() for batch in replicas[0].service.batches(together)
        ]
        answers = self._threads.map(lambda request: self._ask(request[0], request[1], k), requests)
        found: dict[Pair, list[Hit]] = {pair: [] for pair in pairs}
        for (_, batch), answered in zip(requests, answers, strict=True):
            for pair, hits in zip(batch, answered, strict=True):
                found[pair] += hits
        merged = {pair: sorted(hits, key=lambda hit: -hit.score)[:k] for pair, hits in found.items()}
        return [list(merged[pair]) for pair in zip(queries, languages, strict=True)]

    def _ask(self, replicas: Replicas, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Asks replicas in turn, those that failed lately last, until one answers."""
        patience = self._patience
        for attempt in range(patience.attempts):
            if attempt:
                time.sleep(min(patience.first_wait_seconds * 2 ** (attempt - 1), patience.longest_wait_seconds))
            refusal: ServiceRefusal | None = None
            for host in self._in_turn(replicas):
                try:
                    hits = host.service.fetch(pairs, k)
                except ServiceRefusal as error:
                    refusal = error
                except UserError as error:
                    self._rest(host, error)
                else:
                    self._wake(host)
                    return hits
            if refusal is not None:
                raise refusal
        reasons = "; ".join(f"{host.url}: {host.failure}" for host in replicas)
        raise ServiceUnavailable(f"no host answers searches in {pairs[0][1]} ({reasons})")

    def _in_turn(self, replicas: Replicas) -> Iterator[_Host]:
        with self._lock:
            first, now = next(self._turns) % len(replicas), self._clock()
        turned = replicas[first:] + replicas[:first]
        return iter(sorted(turned, key=lambda host: host.resting_until > now))

    def _rest(self, host: _Host, error: UserError) -> None:
        with self._lock:
            if not host.failure:
                _LOGGER.warning("%s is asked only if no replica answers: %s", host.url, error)
            host.resting_until, host.failure = self._clock() + self._rest_seconds, str(error)

    def _wake(self, host: _Host) -> None:
        with self._lock:
            if host.failure:
                _LOGGER.warning("%s answers again", host.url)
            host.resting_until, host.failure = 0.0, ""


def _routes_of(
    hosts: Sequence[_Host], wanted: Sequence[str] | None
) -> tuple[dict[str, str], dict[str, list[Replicas]]]:
    """Returns the hashes of the combined collections, and for each language the replicas of each of its shares.

    Raises:
      UserError: The collections of the hosts are inconsistent or incomplete.
    """
    encoders = {host.service.hashes.get(_ENCODER, ""): host for host in hosts}
    if len(encoders) > 1:
        one, other = list(encoders.values())[:2]
        raise UserError(f"{one.url} and {other.url} have different encoders: serve collections of one encoder")
    holders: dict[str, list[tuple[_Host, dict[str, str], int]]] = collections.defaultdict(list)
    for host in hosts:
        for language, (held, total) in parts_of(host.service.hashes).items():
            holders[language].append((host, held, total))
    if missing := sorted(set(wanted or ()) - set(holders)):
        raise UserError(f"routed_collections.languages: no host has {missing[0]!r}: they have {', '.join(holders)}")
    hashes, routes = {_ENCODER: next(iter(encoders))}, {}
    for language in sorted(wanted or holders):
        whole, routes[language] = _route(language, holders[language])
        hashes[f"collection/{language}"] = whole
    return hashes, routes


def _route(language: str, holders: Sequence[tuple[_Host, dict[str, str], int]]) -> tuple[str, list[Replicas]]:
    """Returns the fingerprint of a language's collection, and the replicas of each share of its parts."""
    shares: dict[frozenset[str], list[_Host]] = {}
    known: dict[str, tuple[str, _Host]] = {}
    first, _, parts = holders[0]
    for host, held, total in holders:
        shares.setdefault(frozenset(held), []).append(host)
        if total != parts:
            raise UserError(f"{first.url} and {host.url} have different content of {language}: serve the same")
        for part, fingerprint in held.items():
            value, other = known.setdefault(part, (fingerprint, host))
            if value != fingerprint:
                where = f"{part} of {language}" if part else language
                raise UserError(f"{other.url} and {host.url} have different content of {where}: serve the same")
    _check_shares(language, shares, known, parts)
    whole = combined_fingerprint({part: value for part, (value, _) in known.items()})
    return whole, [tuple(replicas) for replicas in shares.values()]


def _check_shares(
    language: str, shares: Mapping[frozenset[str], Sequence[_Host]], known: Mapping[str, object], total: int
) -> None:
    if sum(map(len, shares)) > len(known) or ("" in known and len(known) > 1):
        urls = ", ".join(host.url for replicas in shares.values() for host in replicas)
        raise UserError(f"the parts of {language} overlap ({urls}): hosts must serve equal parts of it, or different")
    missing = [f"part{number}" for number in range(total) if f"part{number}" not in known]
    if total and missing:
        raise UserError(f"no host serves {missing[0]} of {language}, which has {total}: start one with it")

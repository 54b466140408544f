"""Collections in Qdrant, a distributed vector engine, filled from collections that `lcrag index` has built.

For collections too large for the hosts of `lcrag serve`: Qdrant shards and replicates each collection, keeps full
vectors and passages on disk and int8 vectors in memory. Queries are encoded by lcrag. Source:
https://qdrant.tech/documentation.
"""

import functools
import itertools
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np

from lcrag.errors import UserError, excerpt, typed
from lcrag.files import expanded, readable_folder
from lcrag.retries import LATER, USUAL_PATIENCE, Patience, ServiceRefusal, TemporaryFailure
from lcrag.retrieval.collections import VECTORS, Corpus, read_meta
from lcrag.retrieval.encoder import Encoder, named_encoder
from lcrag.retrieval.passages import Hit
from lcrag.retrieval.remote import Pair, RemoteCollections, http_client, key_from, shown_address

_POINTS_PER_REQUEST = 512
_LATER = LATER | {500}


@gin.configurable
class Qdrant:
    """A connection to Qdrant; thread-safe.

    Args:
      url: `http://HOST:6333`; or a folder or ":memory:", which the client searches by itself, for small trials.
      prefix: A collection's name is the prefix and its language.
      key_variable: Environment variable that holds the API key; None: no key.
      shards: Shards of a new collection; None: Qdrant's default, one for each of its hosts.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "lcrag-",
        key_variable: str | None = None,
        shards: int | None = None,
        replicas: int = 1,
        patience: Patience = USUAL_PATIENCE,
    ):
        self.name, self.prefix = f"Qdrant at {shown_address(url)}", prefix
        self._shards, self._replicas, self._patience = shards, replicas, patience
        try:
            import qdrant_client
            from qdrant_client.common.client_exceptions import QdrantException
            from qdrant_client.http import exceptions
        except ModuleNotFoundError as error:
            raise UserError("Qdrant needs its client: pip install 'lcrag[qdrant]'") from error
        self.models: Any = qdrant_client.models
        self._exceptions: Any = exceptions
        self._asks_to_wait: Any = QdrantException
        client = qdrant_client.QdrantClient
        if url == ":memory:":
            self._client: Any = client(url)
        elif "://" in url:
            key = key_from(key_variable) if key_variable else None
            seconds = round(patience.answer_seconds)
            self._client = http_client(
                functools.partial(client, url=url), url, api_key=key, timeout=seconds, check_compatibility=False
            )
        elif re.search(r":\d+$", url):
            raise UserError(f"Qdrant.url is {url}, neither an address nor a folder: write http://{url}")
        else:
            try:
                self._client = client(path=str(expanded(url)), force_disable_check_same_thread=True)
            except (RuntimeError, OSError) as error:  # for example, another process has opened the folder
                raise UserError(f"{self.name} cannot be opened: {excerpt(error)}") from error

    def described(self) -> dict[str, dict[str, Any]]:
        """Returns language -> the metadata that `store` has written."""
        described = {}
        for name in sorted(collection.name for collection in self.call("get_collections").collections):
            if name.startswith(self.prefix):
                metadata = self.call("get_collection", name).config.metadata or {}
                if "fingerprint" in metadata:
                    described[name.removeprefix(self.prefix)] = metadata
        return described

    def store(self, folder: pathlib.Path, progress: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Stores a collection's folder that `lcrag index` has built, continuing an interrupted attempt.

        Returns the number of passages that this call has stored; `progress` gets (passages stored, total).
        """
        folder = readable_folder(folder)
        meta = read_meta(folder)
        total, name = meta.count, self.prefix + meta.language
        noted = {"fingerprint": meta.fingerprint, "encoder": meta.encoder_fingerprint, "count": total}
        models, there = self.models, self.described().get(meta.language)
        if there is not None and there != noted:
            raise UserError(f"{self.name} has other content in {name}: delete that, or set another Qdrant.prefix")
        if there is None:
            int8 = models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
            self.call(
                "create_collection",
                name,
                vectors_config=models.VectorParams(size=meta.dimension, distance=models.Distance.DOT, on_disk=True),
                quantization_config=models.ScalarQuantization(scalar=int8),
                on_disk_payload=True,
                shard_number=self._shards,
                replication_factor=self._replicas,
                metadata=noted,
            )
        begun = self.call("count", name, exact=True).count
        vectors = np.load(folder / VECTORS, mmap_mode="r")
        points = zip(Corpus(folder).rows(begun, total), vectors[begun:], strict=True)
        numbered = enumerate(points, start=begun)
        while batch := list(itertools.islice(numbered, _POINTS_PER_REQUEST)):
            structs = [
                models.PointStruct(id=row, vector=vector.tolist(), payload=dict(vars(passage)))
                for row, (passage, vector) in batch
            ]
            self.call("upsert", name, structs, wait=True)
            progress(batch[-1][0] + 1, total)
        return total - begun

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls the client; a failure that may pass is retried. Errors are those of `HttpService.request`."""
        exceptions = self._exceptions

        def once() -> Any:
            try:
                return getattr(self._client, method)(*arguments, **options)
            except exceptions.ResponseHandlingException as error:
                raise TemporaryFailure(excerpt(error)) from error
            except self._asks_to_wait as error:
                waiting = getattr(error, "retry_after_s", 0)
                raise TemporaryFailure(excerpt(error), busy=True, wait_seconds=waiting) from error
            except exceptions.UnexpectedResponse as error:
                reason = f"status {error.status_code}: {excerpt(error.reason_phrase)}"
                if error.status_code in _LATER:
                    raise TemporaryFailure(reason, busy=True) from error
                if error.status_code in (401, 403):
                    mend = "name the key's environment variable in Qdrant.key_variable"
                    raise UserError(f"{self.name} rejects the request ({reason}): {mend}") from error
                raise ServiceRefusal(f"{self.name} refuses ({reason})") from error

        return self._patience.ask(self.name, once)


class QdrantBackend:
    """Searches collections in Qdrant, whose vectors `encoder` has made; a `Backend` of `RemoteCollections`.

    A collection that is missing, incomplete or of another encoder is a UserError.
    """

    max_passages: int | None = None
    max_queries, one_language, connections = 256, True, 8

    def __init__(self, engine: Qdrant, encoder: Encoder, languages: Sequence[str] | None = None):
        self._engine, self._encoder = engine, encoder
        described = engine.described()
        if missing := sorted(set(languages or ()) - set(described)) or ([] if described else ["any language"]):
            raise UserError(f"{engine.name} has no collection of {missing[0]}: store it with index.engine = @Qdrant()")
        self.languages: tuple[str, ...] = tuple(languages or described)
        for language in self.languages:
            noted = described[language]
            if noted["encoder"] != encoder.fingerprint():
                raise UserError(
                    f"{engine.name}: the vectors of {language} are of encoder {noted['encoder']}, not of"
                    f" {encoder.fingerprint()}: name the folder `encoder` that `lcrag index` wrote with them, as"
                    " qdrant_collections.encoder"
                )
            stored = engine.call("count", engine.prefix + language, exact=True).count
            if stored != noted["count"]:
                raise UserError(
                    f"{engine.name} holds {stored:,} of the {noted['count']:,} passages of {language}: run the same"
                    " `lcrag index` again to store the rest"
                )
        self._hashes = {f"collection/{code}": described[code]["fingerprint"] for code in self.languages}

    def content_hashes(self) -> dict[str, str]:
        return {"encoder": self._encoder.fingerprint()} | self._hashes

    def fetch(self, pairs: Sequence[Pair], k: int) -> list[list[Hit]]:
        """Encodes the queries of one language and searches once (see `Backend.fetch`)."""
        language, vectors = pairs[0][1], self._encoder.encode([query for query, _ in pairs], "query")
        query = functools.partial(self._engine.models.QueryRequest, limit=k, with_payload=True)
        requests = [query(query=vector) for vector in vectors.tolist()]
        answers = self._engine.call("query_batch_points", self._engine.prefix + language, requests)
        return [
            [Hit(**point.payload, score=point.score, language=language) for point in answer.points]
            for answer in answers
        ]


@gin.configurable
@typed
def qdrant_collections(
    engine: Qdrant, encoder: str | None = None, languages: Sequence[str] | None = None
) -> RemoteCollections:
    """Returns the collections that `lcrag index` has stored in Qdrant; `encoder` is the folder of their encoder."""
    opened = named_encoder(encoder, "qdrant_collections.encoder")
    return RemoteCollections(QdrantBackend(engine, opened, languages))

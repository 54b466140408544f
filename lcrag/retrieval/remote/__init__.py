"""Remote collections: of `lcrag serve`, of a server with Search-R1's protocol, or of a web search engine.

Each is a `Backend` of `RemoteCollections`, as is `QdrantBackend` of a vector engine; it caches answers and has the
interface of `lcrag.retrieval.Collections`. `transport` retries requests. A failed search is an exception, never an
empty list.
"""

from lcrag.retrieval.remote.collections import Backend, RemoteCollections
from lcrag.retrieval.remote.qdrant import Qdrant, QdrantBackend
from lcrag.retrieval.remote.services import LcragService, SearchR1Servers
from lcrag.retrieval.remote.transport import USUAL_PATIENCE, Patience, ServiceRefusal, ServiceUnavailable
from lcrag.retrieval.remote.web import GoogleCustomSearch, SerpApi, WebEngine, WebSearch, key_from

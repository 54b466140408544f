"""Collections that are elsewhere: our HTTP service, any Search-R1-style server, or the web.

Each is a `Backend` behind `RemoteCollections`, which asks nothing twice and answers like
`lcrag.retrieval.Collections`. `transport` does the waiting and asking again. A search that cannot be
answered is an exception, never an empty list.
"""

from lcrag.retrieval.remote.collections import Backend, RemoteCollections
from lcrag.retrieval.remote.services import LcragService, SearchR1Servers
from lcrag.retrieval.remote.transport import USUAL_PATIENCE, Patience, ServiceRefusal
from lcrag.retrieval.remote.web import GoogleCustomSearch, SerpApi, WebEngine, WebSearch, key_from

__all__ = [
    "USUAL_PATIENCE",
    "Backend",
    "GoogleCustomSearch",
    "LcragService",
    "Patience",
    "RemoteCollections",
    "SearchR1Servers",
    "SerpApi",
    "ServiceRefusal",
    "WebEngine",
    "WebSearch",
    "key_from",
]

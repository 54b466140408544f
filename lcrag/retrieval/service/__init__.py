"""The HTTP service: the `/retrieve` API that Search-R1's clients speak, for many languages in one process.

`limits` says what is accepted, `batching` collects concurrent requests into
one call, `application` is the FastAPI application and `server` runs it until it is told to stop. What is served beside
searches, by another room, is an `Extension` of the application.
"""

from lcrag.retrieval.service.application import default_among, make_application
from lcrag.retrieval.service.batching import Batcher, Overloaded
from lcrag.retrieval.service.body import read_body
from lcrag.retrieval.service.extension import Extension
from lcrag.retrieval.service.limits import USUAL_LIMITS, ServiceLimits
from lcrag.retrieval.service.server import address_of, is_loopback, listen, run_until_stopped

__all__ = [
    "USUAL_LIMITS",
    "Batcher",
    "Extension",
    "Overloaded",
    "ServiceLimits",
    "address_of",
    "default_among",
    "is_loopback",
    "listen",
    "make_application",
    "read_body",
    "run_until_stopped",
]

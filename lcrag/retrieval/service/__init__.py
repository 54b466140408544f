"""The HTTP service: the `/retrieve` API that Search-R1's clients speak, for many languages in one process.

`limits` says what is accepted, `batching` collects concurrent requests into
one search, `application` is the FastAPI application and `server` runs it until it is told to stop.
"""

from lcrag.retrieval.service.application import make_application
from lcrag.retrieval.service.limits import USUAL_LIMITS, ServiceLimits
from lcrag.retrieval.service.server import address_of, is_loopback, listen, run_until_stopped

__all__ = [
    "USUAL_LIMITS",
    "ServiceLimits",
    "address_of",
    "is_loopback",
    "listen",
    "make_application",
    "run_until_stopped",
]

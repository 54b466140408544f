"""The HTTP service: the `/retrieve` API that Search-R1's clients speak, for many languages in one process.

Public:
  make_application, ServiceLimits: The FastAPI application of some collections, and the limits of its requests.
  JsonEndpoint, RequestLimits, Extension, refusing: Further endpoints of the same application.
  Batcher: Collects concurrent requests into one call.
  listen, run_until_stopped, address_of, is_loopback: Run the application until SIGTERM.
"""

from lcrag.retrieval.service.application import USUAL_LIMITS, ServiceLimits, default_among, make_application
from lcrag.retrieval.service.batching import Batcher, Overloaded
from lcrag.retrieval.service.endpoint import Extension, JsonEndpoint, RequestLimits, refusing
from lcrag.retrieval.service.server import address_of, is_loopback, listen, run_until_stopped

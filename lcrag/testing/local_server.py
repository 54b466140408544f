"""An application served from a thread of this process, at a free port."""

import contextlib
import threading
import time
from collections.abc import Iterator

from fastapi import FastAPI

from lcrag.retrieval.service.server import address_of, listen, make_server

_PATIENCE_SECONDS = 20.0


@contextlib.contextmanager
def served(application: FastAPI) -> Iterator[str]:
    """Serves while the block runs; gives the address, `http://127.0.0.1:PORT`."""
    listener = listen("127.0.0.1", 0)
    server = make_server(application, graceful_seconds=_PATIENCE_SECONDS)
    thread = threading.Thread(target=server.run, args=([listener],), name="service")
    thread.start()
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join(_PATIENCE_SECONDS)
        listener.close()

"""What tests of several processes on loopback share."""

import socket
import types

import jax
from jax._src import compiler


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        return opened.getsockname()[1]


def join(process: str | int, processes: str | int, port: str | int) -> None:
    """Joins the processes of a test; all of them, and not only the first, keep what they compile for the next time."""
    jax.distributed.initialize(f"localhost:{port}", num_processes=int(processes), process_id=int(process))
    compiler.distributed = types.SimpleNamespace(global_state=types.SimpleNamespace(process_id=0))

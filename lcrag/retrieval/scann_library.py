"""ScaNN's NumPy interface, imported without TensorFlow, and its native messages."""

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Iterator

_IMPORTING = threading.Lock()  # collections are opened on several threads
_BINDINGS = "scann.scann_ops.py.scann_ops_pybind"


def scann() -> types.ModuleType:
    """Returns ScaNN's NumPy interface, imported once."""
    with _IMPORTING:
        return _imported()


@functools.cache
def _imported() -> types.ModuleType:
    """Imports the interface without ScaNN's package module, which would import TensorFlow (seconds, unused)."""
    if "scann" in sys.modules:
        return importlib.import_module(_BINDINGS)
    spec = importlib.util.find_spec("scann")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("the package scann is not installed")
    package = types.ModuleType("scann")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["scann"] = package
    try:
        return importlib.import_module(_BINDINGS)
    finally:
        del sys.modules["scann"]


@contextlib.contextmanager
def native_messages_silenced() -> Iterator[None]:
    """Discards file descriptor 2 in the block: ScaNN's C++ code logs there at every log level."""
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)

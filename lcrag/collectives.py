"""Collective work of several processes: what all must do at the same point, and what they must agree on."""

import contextlib
import contextvars
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from lcrag.errors import UserError

T = TypeVar("T")
_COLLECTIVE = contextvars.ContextVar("collective", default=True)


@contextlib.contextmanager
def without_collectives() -> Iterator[None]:
    """In this context, this thread runs episodes that no other process runs, and compares nothing with others."""
    token = _COLLECTIVE.set(False)
    try:
        yield
    finally:
        _COLLECTIVE.reset(token)


def is_collective() -> bool:
    """Returns whether several processes run the same episodes as this thread."""
    return jax.process_count() > 1 and _COLLECTIVE.get()


def allgather_bytes(name: str, content: bytes | Exception) -> list[bytes]:
    """Returns the content of every process, by process index; all must call this at the same point.

    The exception that prevented this process's content is raised here, and a UserError in the others; `name` names the
    work in its text ("the rollout").
    """
    if jax.process_count() > 1:
        sizes = _allgather(np.array([-1 if isinstance(content, Exception) else len(content)], np.int32)).ravel()
    if isinstance(content, Exception):
        raise content
    if jax.process_count() == 1:
        return [content]
    if (sizes < 0).any():
        failed = int(np.flatnonzero(sizes < 0)[0])
        raise UserError(f"{name} failed in process {failed}, whose error says why: all {len(sizes)} stop")
    # The largest size, rounded up by at most an eighth, so that few sizes are compiled.
    step = max(1 << 10, (1 << int(sizes.max()).bit_length()) // 16)
    padded = np.zeros(-(-int(sizes.max()) // step) * step, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return [whole[:size].tobytes() for whole, size in zip(_allgather(padded), sizes, strict=True)]


def _allgather(array: np.ndarray) -> np.ndarray:
    with jax.transfer_guard("allow"):
        return np.asarray(multihost_utils.process_allgather(array))


def compare_across_processes(name: str, function: Callable[[], T], key: Callable[[T], Any]) -> T:
    """Returns the result of a function if it is the same in every process; all must call this at the same point.

    Without this check, a failure in a single process would leave the others waiting for ever, and different results
    would let episodes and parameters diverge. `key` selects the part of the result that must be the same, compared by
    its `repr`; an exception is raised in its process, and a UserError in the others.
    """
    if not is_collective():
        return function()
    try:
        result = function()
    except Exception as error:
        allgather_bytes(name, error)
        raise
    digests = allgather_bytes(name, hashlib.sha256(repr(key(result)).encode(errors="backslashreplace")).digest())
    if other := [number for number, digest in enumerate(digests) if digest != digests[0]]:
        raise UserError(
            f"{name} answered processes 0 and {other[0]} differently, so their episodes would differ: let all processes"
            " ask one service that answers equal requests equally, such as lcrag serve"
        )
    return result


def check_same_everywhere(contents: Mapping[str, str]) -> None:
    """Raises a UserError in every process unless all read the same contents, name -> hash; all call it together."""
    hashes = [json.loads(content) for content in allgather_bytes("reading", json.dumps(dict(contents)).encode())]
    for number, others in enumerate(hashes):
        for name in sorted(hashes[0].keys() | others.keys()):
            if hashes[0].get(name) != others.get(name):
                raise UserError(
                    f"process {number} reads another {name} than process 0: give every host the same files, or one"
                    " folder that all of them read"
                )

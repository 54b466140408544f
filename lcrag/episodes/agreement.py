"""Agreement of several processes: compares the answers of services and the inputs, and exchanges bytes."""

import contextlib
import contextvars
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from lcrag.episodes.requests import Completion, FoundPassages, GenerationFailure, RetrievalFailure, TranslationFailure
from lcrag.errors import UserError

T = TypeVar("T")
_FAILURES = (GenerationFailure, RetrievalFailure, TranslationFailure)
_ALONE = contextvars.ContextVar("alone", default=False)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Marks episodes that only this process runs: in the context, this thread compares nothing with other processes."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def together() -> bool:
    """Returns whether several processes run the same episodes as this thread."""
    return jax.process_count() > 1 and not _ALONE.get()


def same_everywhere(what: str, work: Callable[[], T], seen: Callable[[T], Any]) -> T:
    """Returns the result of `work` if it is the same in every process; all must call this at the same point.

    Without this check, a failure in a single process would leave the others waiting for ever, and different results
    would let episodes and parameters diverge.

    Args:
      what: Names the work in messages, "the search" for example.
      work: The work that each process does.
      seen: Selects the part of the result that must be the same, compared by its `repr`.

    Raises:
      UserError: another process failed, or got another result.
      Exception: the exception of `work`, in the process where it failed.
    """
    if not together():
        return work()
    try:
        result, failure = work(), None
    except Exception as error:
        failure = error
    digest = b"" if failure else hashlib.sha256(repr(seen(result)).encode(errors="backslashreplace")).digest()[:16]
    states = _gathered(np.frombuffer(digest.ljust(16, b"\0"), np.uint8))
    failed = [number for number, state in enumerate(states) if not state.any()]
    if failure is not None:
        raise failure
    if failed:
        raise UserError(f"{what} failed in process {failed[0]}, whose error says why: all {len(states)} stop")
    if other := [number for number, state in enumerate(states) if (state != states[0]).any()]:
        raise UserError(
            f"{what} answered processes 0 and {other[0]} differently, so their episodes would differ: let all processes"
            " ask one service that answers equal requests equally, such as lcrag serve"
        )
    return result


def exchanged(what: str, content: bytes | Exception) -> list[bytes]:
    """Returns the content of every process, by process index; all must call this at the same point.

    The contents are padded to one size, the largest rounded up, which bounds the number of compiled sizes.

    Args:
      what: Names the work that made the content in messages, "the rollout" for example.
      content: The content of this process, or the exception that prevented it.

    Raises:
      UserError: an exception prevented the content of another process.
      Exception: the exception of this process.
    """
    if isinstance(content, Exception):
        if jax.process_count() > 1:
            _gathered(np.array([-1], np.int32))
        raise content
    if jax.process_count() == 1:
        return [content]
    sizes = _gathered(np.array([len(content)], np.int32)).ravel()
    if (sizes < 0).any():
        failed = int(np.flatnonzero(sizes < 0)[0])
        raise UserError(f"{what} failed in process {failed}, whose error says why: all {len(sizes)} stop")
    step = max(1 << 10, (1 << int(sizes.max()).bit_length()) // 16)  # at most an eighth more than the largest
    padded = np.zeros(-(-int(sizes.max()) // step) * step, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    return [whole[:size].tobytes() for whole, size in zip(_gathered(padded), sizes, strict=True)]


def check_same_everywhere(contents: Mapping[str, str]) -> None:
    """Checks that all processes read the same contents; all must call this at the same point.

    Args:
      contents: Name of each content -> its hash.

    Raises:
      UserError: the hashes differ; raised in every process.
    """
    if jax.process_count() == 1:
        return
    told = [json.loads(each) for each in exchanged("reading", json.dumps(dict(contents)).encode())]
    for number, own in enumerate(told):
        for name in sorted(told[0].keys() | own.keys()):
            if told[0].get(name) != own.get(name):
                raise UserError(
                    f"process {number} reads another {name} than process 0: give every host the same files, or one"
                    " folder that all of them read"
                )


def _gathered(state: np.ndarray) -> np.ndarray:
    """Returns the state of every process, by process index."""
    from jax.experimental import multihost_utils

    with jax.transfer_guard("allow"):
        return np.asarray(multihost_utils.process_allgather(state))


def as_programs_see(answer: Any) -> Any:
    """Returns the parts of an answer that an episode program reads: not scores, nor the reason of a failure."""
    if isinstance(answer, FoundPassages):
        return [[[(hit.title, hit.text) for hit in hits] for hits in languages] for languages in answer]
    if isinstance(answer, _FAILURES):
        return type(answer).__name__
    return answer.text if isinstance(answer, Completion) else answer

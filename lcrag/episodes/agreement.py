"""Several processes: those that run the same episodes must get the same answers of services; others exchange bytes."""

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
    """Marks episodes of this process alone, which no other runs: within the block, on this thread, none is asked."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def together() -> bool:
    """Returns whether several processes run the episodes of this thread."""
    return jax.process_count() > 1 and not _ALONE.get()


def same_everywhere(what: str, work: Callable[[], T], seen: Callable[[T], Any]) -> T:
    """Returns the result of `work`, if every process got the same; they call this at the same point.

    Without it, a failure that one process alone sees would leave the others waiting for it for ever, or their episodes
    and parameters would differ from then on.

    Args:
      what: Names the work in messages, "the search" for example.
      work: What each process does.
      seen: What of the result must be the same, told by its `repr`.

    Raises:
      UserError: another process failed, or got another result.
      Exception: that of `work`, in the process where it failed.
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
    """Returns every process's content, in the order of their numbers; all call it at the same point.

    The contents are padded to one size, that of the largest rounded up, so that few sizes are compiled.

    Args:
      what: Names the work that made the content in messages, "the rollout" for example.
      content: This process's, or the exception that prevented it.

    Raises:
      UserError: it was prevented in another process.
      Exception: what prevented it in this one.
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
    """Checks that all processes read the same contents; they call this at the same point.

    Args:
      contents: What was read -> its hash.

    Raises:
      UserError: they differ; in every process.
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
    """Returns every process's state, in the order of their numbers."""
    from jax.experimental import multihost_utils

    with jax.transfer_guard("allow"):
        return np.asarray(multihost_utils.process_allgather(state))


def as_programs_see(answer: Any) -> Any:
    """Returns what an episode program reads of an answer: scores and the words of a failure may differ."""
    if isinstance(answer, FoundPassages):
        return [[[(hit.title, hit.text) for hit in hits] for hits in languages] for languages in answer]
    if isinstance(answer, _FAILURES):
        return type(answer).__name__
    return answer.text if isinstance(answer, Completion) else answer

"""Continues many contexts once each, over however many slots a sampler has."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from lcrag.errors import UserError
from lcrag.policy.tokenizer import TokenIds
from lcrag.sampling.generation import Generation, Sampled


@runtime_checkable
class SlotSampler(Protocol):
    """What those who drive a sampler need of it; `lcrag.sampling.Sampler` is one."""

    slots: int
    context: int

    @property
    def running(self) -> int: ...

    def append(self, entries: Mapping[int, TokenIds]) -> None: ...

    def fork(self, source: int, targets: Sequence[int]) -> None: ...

    def begin(self, requests: Mapping[int, Generation]) -> None: ...

    def decode(self) -> dict[int, Sampled]: ...

    def free(self, slots: Iterable[int]) -> None: ...


def continue_contexts(sampler: SlotSampler, contexts: Sequence[tuple[TokenIds, Generation]]) -> list[Sampled]:
    """Samples what follows each context; a finished slot takes the next one at once.

    Args:
      sampler: Its slots are all free, and are free again afterwards.
      contexts: Tokens, at least one, and how to continue them.

    Returns:
      One result per context, in order.

    Raises:
      UserError: a context leaves no room for a token.
      ValueError: a context is empty.
    """
    lengths = [len(tokens) for tokens, _ in contexts]
    if 0 in lengths:
        raise ValueError(f"context {lengths.index(0)} is empty: give at least one token to continue from")
    longest = max(lengths, default=0)
    if longest >= sampler.context:
        raise UserError(
            f"a prompt of {longest} tokens leaves no room in a sampler's context of {sampler.context}: raise the"
            " context, or shorten the prompt"
        )
    results: dict[int, Sampled] = {}
    owners: dict[int, int] = {}
    queue = list(range(len(contexts)))[::-1]
    while queue or owners:
        admitted = {slot: queue.pop() for slot in range(sampler.slots) if queue and slot not in owners}
        owners |= admitted
        if admitted:
            sampler.append({slot: contexts[index][0] for slot, index in admitted.items()})
            sampler.begin({slot: contexts[index][1] for slot, index in admitted.items()})
        for slot, sampled in sampler.decode().items():
            results[owners.pop(slot)] = sampled
            sampler.free([slot])
    return [results[index] for index in range(len(contexts))]

"""Schedules contexts on the device slots, and converts finished generations to completions."""

import codecs
import heapq
from collections.abc import Hashable, Sequence
from typing import TypeAlias

from lcrag.episodes.requests import Complete, Completion, Generate
from lcrag.episodes.running_episode import PendingRequest, RunningEpisode
from lcrag.policy import Tokenizer
from lcrag.sampling import Sampled


class CompletionContext:
    """A context in which the policy completes a prompt for an episode.

    Args:
      pending: The requested completion.
      context: Size of a slot, in tokens.
    """

    def __init__(self, pending: PendingRequest, context: int):
        self.pending = pending
        self.slot: int | None = None
        self.unsent = list(pending.opening.tokens)
        self.room_tokens = context - len(self.unsent)
        self.stream = pending.stream

    @property
    def sent(self) -> list[int]:
        """The tokens in its slot, without those of the generation."""
        return [] if self.unsent else list(self.pending.opening.tokens)

    def take_unsent(self) -> list[int]:
        """Returns the tokens that are not in the slot yet, once."""
        taken, self.unsent = self.unsent, []
        return taken


SlotOwner: TypeAlias = RunningEpisode | CompletionContext
Waiting: TypeAlias = tuple[SlotOwner, Generate | Complete]


class SlotScheduler:
    """Assigns free slots to waiting completions first, then to waiting episodes, each in order of arrival.

    An episode waits for each completion, so completions never wait for episodes: if there are not enough slots,
    episodes that await a completion give theirs up, the shortest first. Their contexts are prefilled again when they
    continue. Any number of slots, even one, therefore serves any number of episodes.

    Attributes: owners: Slot -> the context in it. ready: Slot -> the request to start in it.
    """

    def __init__(self, slots: int):
        self.owners: dict[int, SlotOwner] = {}
        self.ready: dict[int, Generate | Complete] = {}
        self._free = list(range(slots))
        self._completions: list[Waiting] = []
        self._episodes: list[Waiting] = []

    def ask(self, owner: SlotOwner, request: Generate | Complete) -> None:
        """Schedules a request in the owner's slot, or in the next slot that it gets."""
        if owner.slot is not None:
            self.ready[owner.slot] = request
        elif isinstance(owner, CompletionContext):
            self._completions.append((owner, request))
        else:
            self._episodes.append((owner, request))

    def leave(self, owner: SlotOwner) -> int:
        """Frees and returns the owner's slot."""
        assert owner.slot is not None
        del self.owners[owner.slot]
        heapq.heappush(self._free, owner.slot)
        return owner.slot

    def drop(self, episode: RunningEpisode) -> None:
        """Cancels the episode's waiting completions."""
        self._completions = [each for each in self._completions if _episode_of(each[0]) is not episode]

    def make_room(self) -> list[int]:
        """Evicts episodes that await a completion, as many as completions need slots; returns these slots."""
        missing = len(self._completions) - len(self._free)
        if missing <= 0:
            return []
        waiting = sorted(self._that_can_wait(), key=lambda episode: (episode.transcript.length, episode.slot))
        slots = []
        for episode in waiting[:missing]:
            slots.append(self.leave(episode))
            episode.give_up_slot()
        return slots

    def _that_can_wait(self) -> list[RunningEpisode]:
        return [each for each in self.owners.values() if isinstance(each, RunningEpisode) and each.awaits_completion]

    @property
    def stuck(self) -> bool:
        """Whether nothing can begin before a host service answers."""
        waiting = bool(self._completions or self._episodes) and bool(self._free)
        return not (self.ready or waiting or (self._completions and self._that_can_wait()))

    def admit(self) -> dict[int, list[int]]:
        """Assigns free slots to waiting contexts; returns slot to prefill -> slots to fork from it."""
        queue = [*self._completions, *self._episodes]
        if not (queue and self._free):
            return {}
        openings = [tuple(each.unsent) for each, _ in queue]
        forks: dict[int, list[int]] = {}
        admitted: set[int] = set()
        for leader, followers in plan_admissions(openings, len(self._free)).items():
            source = self._assign(*queue[leader])
            forks[source] = [self._assign(*queue[place]) for place in followers]
            for target in forks[source]:
                self.owners[target].take_unsent()  # copied with the slot
            admitted |= {leader, *followers}
        left = [waiting for place, waiting in enumerate(queue) if place not in admitted]
        self._completions = [waiting for waiting in left if isinstance(waiting[0], CompletionContext)]
        self._episodes = [waiting for waiting in left if isinstance(waiting[0], RunningEpisode)]
        return forks

    def _assign(self, owner: SlotOwner, request: Generate | Complete) -> int:
        slot = owner.slot = heapq.heappop(self._free)
        self.owners[slot], self.ready[slot] = owner, request
        return slot


def _episode_of(owner: SlotOwner) -> RunningEpisode:
    return owner.pending.episode if isinstance(owner, CompletionContext) else owner


def plan_admissions(openings: Sequence[Hashable], free: int) -> dict[int, list[int]]:
    """Fills `free` slots from the head of a queue.

    The head of the queue is always admitted, together with all others of the same opening, so a shared prompt is
    prefilled as rarely as possible. The order of admission changes no episode.

    Returns:
      Position in the queue of a context to prefill -> positions of those to fork from it.
    """
    places: dict[Hashable, list[int]] = {}
    for place, opening in enumerate(openings):
        places.setdefault(opening, []).append(place)
    admissions = {}
    for leader, *followers in places.values():
        if free <= 0:
            break
        admissions[leader] = followers[: free - 1]
        free -= 1 + len(admissions[leader])
    return admissions


def completion_of(sampled: Sampled, tokenizer: Tokenizer) -> Completion:
    """Returns a finished generation as programs see it."""
    ids = sampled.tokens.tolist()
    return Completion(
        text=sampled.text,
        finish_reason=sampled.finish_reason,
        tokens=len(ids),
        pieces=_pieces(ids, tokenizer, ends=sampled.finish_reason == "eos"),
        log_probabilities=tuple(sampled.log_probabilities.tolist()),
    )


def _pieces(ids: Sequence[int], tokenizer: Tokenizer, *, ends: bool) -> tuple[str, ...]:
    """Returns the text of each token; a character spread over several belongs to the last; end-of-sequence is empty."""
    written = ids[:-1] if ends else ids
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [
        decoder.decode(tokenizer.decode_bytes([token]), final=place == len(written) - 1)
        for place, token in enumerate(written)
    ]
    return (*pieces, "") if ends else tuple(pieces)

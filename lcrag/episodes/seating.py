"""Which contexts sit in the device slots, and which wait for one."""

import heapq
from collections.abc import Sequence
from typing import TypeAlias

from lcrag.episodes.admission import plan_admissions
from lcrag.episodes.exchange import Aside
from lcrag.episodes.live import RunningEpisode
from lcrag.episodes.requests import Complete, Generate


class SideContext:
    """A context of its own in which the policy completes something for an episode.

    Args:
      episode: Who asked.
      aside: What.
      context: Tokens a slot holds.
    """

    def __init__(self, episode: RunningEpisode, aside: Aside, context: int):
        self.episode, self.aside = episode, aside
        self.slot: int | None = None
        self.unsent = list(aside.opening.tokens)
        self.room_tokens = context - len(self.unsent)
        self.stream = aside.stream

    def take_unsent(self) -> list[int]:
        """The tokens that are not in the slot yet."""
        taken, self.unsent = self.unsent, []
        return taken


SlotOwner: TypeAlias = RunningEpisode | SideContext
Waiting: TypeAlias = tuple[SlotOwner, Generate | Complete]


class SlotScheduler:
    """Free slots go to waiting completions first, then to waiting episodes, in the order in which they came.

    Since each completion has an episode waiting for it, completions never wait for episodes: where slots are lacking,
    episodes that await a completion give theirs up, the shortest first. Their contexts are prefilled again when they
    go on, so that any number of slots, even one, serves any number of episodes.

    Attributes:
      occupants: Who sits where.
      ready: Slot -> what is to begin there.
    """

    def __init__(self, slots: int):
        self.occupants: dict[int, SlotOwner] = {}
        self.ready: dict[int, Generate | Complete] = {}
        self._free = list(range(slots))
        self._completions: list[Waiting] = []
        self._episodes: list[Waiting] = []

    def ask(self, occupant: SlotOwner, request: Generate | Complete) -> None:
        """Something is to begin: in the occupant's slot, or in the next one it gets."""
        if occupant.slot is not None:
            self.ready[occupant.slot] = request
        elif isinstance(occupant, SideContext):
            self._completions.append((occupant, request))
        else:
            self._episodes.append((occupant, request))

    def leave(self, occupant: SlotOwner) -> int:
        """Returns the occupant's slot, which is free from now on."""
        assert occupant.slot is not None
        del self.occupants[occupant.slot]
        heapq.heappush(self._free, occupant.slot)
        return occupant.slot

    def drop(self, episode: RunningEpisode) -> None:
        """Nobody waits for the episode's completions any more."""
        self._completions = [each for each in self._completions if _owner(each[0]) is not episode]

    def make_room(self) -> list[int]:
        """Takes slots from episodes that await a completion, as many as completions need; returns them."""
        lacking = len(self._completions) - len(self._free)
        if lacking <= 0:
            return []
        waiting = sorted(self._that_can_wait(), key=lambda episode: (episode.transcript.length, episode.slot))
        slots = []
        for episode in waiting[:lacking]:
            slots.append(self.leave(episode))
            episode.give_up_slot()
        return slots

    def _that_can_wait(self) -> list[RunningEpisode]:
        return [each for each in self.occupants.values() if isinstance(each, RunningEpisode) and each.awaits_completion]

    @property
    def stuck(self) -> bool:
        """Whether nothing can begin before something outside the slots is answered."""
        waiting = bool(self._completions or self._episodes) and bool(self._free)
        return not (self.ready or waiting or (self._completions and self._that_can_wait()))

    def admit(self) -> dict[int, list[int]]:
        """Seats those who wait in the free slots; returns which slots are to be forked from which."""
        queue = [*self._completions, *self._episodes]
        if not (queue and self._free):
            return {}
        openings = [tuple(each.unsent) for each, _ in queue]
        forks: dict[int, list[int]] = {}
        admitted: set[int] = set()
        for admission in plan_admissions(openings, len(self._free)):
            source = self._seat(*queue[admission.leader])
            forks[source] = [self._seat(*queue[place]) for place in admission.followers]
            for target in forks[source]:
                self.occupants[target].take_unsent()  # comes with the copied slot
            admitted |= {admission.leader, *admission.followers}
        self._keep(queue, admitted)
        return forks

    def _seat(self, occupant: SlotOwner, request: Generate | Complete) -> int:
        slot = occupant.slot = heapq.heappop(self._free)
        self.occupants[slot], self.ready[slot] = occupant, request
        return slot

    def _keep(self, queue: Sequence[Waiting], admitted: set[int]) -> None:
        left = [waiting for place, waiting in enumerate(queue) if place not in admitted]
        self._completions = [waiting for waiting in left if isinstance(waiting[0], SideContext)]
        self._episodes = [waiting for waiting in left if isinstance(waiting[0], RunningEpisode)]


def _owner(occupant: SlotOwner) -> RunningEpisode:
    return occupant.episode if isinstance(occupant, SideContext) else occupant

"""Which waiting episodes enter the free slots, and which of them share a prefill."""

import dataclasses
from collections.abc import Hashable, Sequence


@dataclasses.dataclass(frozen=True)
class Admission:
    """Episodes with the same opening: the first is prefilled, the others are copies of its slot.

    Attributes:
      leader: Place in the queue of the episode to prefill.
      followers: Places of those to fork from it.
    """

    leader: int
    followers: tuple[int, ...]


def plan_admissions(openings: Sequence[Hashable], free: int) -> list[Admission]:
    """Fills `free` slots from the head of a queue.

    The head of the queue always enters, and those with its opening enter with it before the next in line, so that
    a shared prompt is prefilled as seldom as possible. Who enters when changes no episode.
    """
    places: dict[Hashable, list[int]] = {}
    for place, opening in enumerate(openings):
        places.setdefault(opening, []).append(place)
    admissions = []
    for leader, *followers in places.values():
        if free <= 0:
            break
        admissions.append(Admission(leader, tuple(followers[: free - 1])))
        free -= 1 + len(admissions[-1].followers)
    return admissions

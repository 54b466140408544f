"""Which groups of episodes begin and which are learned from, with a bound on staleness; without clocks or threads."""

from collections.abc import Sequence


class Admission:
    """Admits groups while begun <= (version + staleness + 1) x batch, and hands out the oldest finished ones.

    The rule of AReaL (Fu et al. 2025, arXiv:2505.24298, section 5.1) bounds how many groups are under way. Here no
    group is learned from more than `staleness` updates after it began, whatever its episodes take: a batch of younger
    groups waits for older ones that would otherwise be more than the batches until then can hold. Nothing is discarded.

    Groups are numbered in the order drawn.

    Args:
      batch: Groups of an update.
      staleness: Updates by which a policy may be newer that learns from a group than that with which the group began.
      last: Groups of the whole run.
      version: Updates done.
      under_way: Groups that had begun and were not learned from after these updates; they begin again.
    """

    def __init__(self, batch: int, staleness: int, last: int, *, version: int = 0, under_way: Sequence[int] = ()):
        self.batch, self.staleness, self.last, self.version = batch, staleness, last, version
        self._again = sorted(under_way)
        self._next = version * batch + len(self._again)
        self._begun: dict[int, int] = {}  # group -> version of the policy with which it began
        self._finished: set[int] = set()

    @property
    def under_way(self) -> list[int]:
        """Groups that have begun, here or before, and are not learned from."""
        return sorted([*self._again, *self._begun])

    @property
    def missing(self) -> int:
        """How many further groups must finish at least, where `ready` returns None."""
        return max(1, self.batch - len(self._finished))

    @property
    def all_begun(self) -> bool:
        """Whether every group of the run has begun."""
        return not self._again and self._next >= self.last

    def begin(self) -> list[int]:
        """Returns the groups that begin now, with the policy of the current version."""
        most = min((self.version + self.staleness + 1) * self.batch, self.last)
        new = range(self._next, max(self._next, most))
        groups, self._again, self._next = [*self._again, *new], [], new.stop
        self._begun |= dict.fromkeys(groups, self.version)
        return groups

    def finish(self, group: int) -> None:
        """Records that all episodes of a group have finished."""
        if group not in self._begun or group in self._finished:
            raise ValueError(f"group {group} is not under way")
        self._finished.add(group)

    def ready(self) -> list[int] | None:
        """Returns the groups to learn from next, the oldest finished ones; None while some must be waited for."""
        if len(self._finished) < self.batch:
            return None
        chosen = sorted(self._finished, key=lambda group: (self._begun[group], group))[: self.batch]
        rest = [self._begun[group] for group in self._begun.keys() - set(chosen)]
        fits = (
            sum(begun <= self.version + updates - self.staleness for begun in rest) <= updates * self.batch
            for updates in range(self.staleness)
        )
        return chosen if all(fits) else None

    def take(self, groups: Sequence[int]) -> None:
        """Records that the learner takes what `ready` returned."""
        for group in groups:
            self._finished.remove(group)
            del self._begun[group]

    def learned(self) -> None:
        """Records that the learner has updated the policy; the groups that begin from now on have the new one."""
        self.version += 1

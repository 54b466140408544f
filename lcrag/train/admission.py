"""Decides which groups of episodes start and which enter an update, with bounded staleness; no clocks or threads."""

from collections.abc import Sequence


class Admission:
    """Admits groups while started groups <= (version + staleness + 1) x batch, and returns the oldest finished ones.

    The rule of AReaL (Fu et al. 2025, arXiv:2505.24298, section 5.1) bounds the number of running groups. Here no
    group is used more than `staleness` updates after it started, however long its episodes take: a batch of younger
    groups waits if the remaining updates could not use all older groups in time. No group is discarded.

    Groups are numbered in the order drawn.

    Args:
      batch: Groups of an update.
      staleness: Maximum number of updates between the start of a group and the update that uses it.
      last: Groups of the whole run.
      version: Number of updates so far.
      under_way: Groups that had started before these updates and were not used by them; they start again.
    """

    def __init__(self, batch: int, staleness: int, last: int, *, version: int = 0, under_way: Sequence[int] = ()):
        self.batch, self.staleness, self.last, self.version = batch, staleness, last, version
        self._again = sorted(under_way)
        self._next = version * batch + len(self._again)
        self._begun: dict[int, int] = {}  # group -> version of the policy with which it began
        self._finished: set[int] = set()

    @property
    def under_way(self) -> list[int]:
        """Groups that have started, also before a continuation, and were not used yet."""
        return sorted([*self._again, *self._begun])

    @property
    def missing(self) -> int:
        """Least number of groups that must finish before `ready` can return a batch; for when it returns None."""
        return max(1, self.batch - len(self._finished))

    @property
    def all_begun(self) -> bool:
        """Whether every group of the run has started."""
        return not self._again and self._next >= self.last

    def begin(self) -> list[int]:
        """Returns the groups that start now, with the policy of the current version."""
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
        """Returns the groups of the next update, the oldest finished ones; None if it must wait for others."""
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
        """Records that the learner uses the groups that `ready` returned."""
        for group in groups:
            self._finished.remove(group)
            del self._begun[group]

    def learned(self) -> None:
        """Records an update of the policy; groups that start from now on use the new version."""
        self.version += 1

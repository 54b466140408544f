"""Simulates sampling hosts and a trainer at several degrees of staleness, from measured lengths and latencies.

    python benchmarks/asynchronous.py --output=measured.json
    python benchmarks/asynchronous_hosts.py measured.json [--hosts 1 4 16 64] [--staleness 0 1 2] [--output=FILE.json]

A simulation, not a measurement: events in virtual time, with the admission that training uses
(`lcrag.train.admission`). Every host has slots that decode together, one token each in `--token`
seconds; an episode generates, searches (a latency drawn from the file), and generates again, with the generations of
a drawn row of the file. Groups of 4 episodes go to the host with the fewest. Every host adds `--groups` groups to an
update, and the trainer, which shares no device with the hosts, grows with them: an update of twice as many groups takes
`--growth` times as long. Prints and writes, for each number of hosts and staleness: episodes per second, that per host
relative to one host without staleness, idle shares of the slots and of the trainer, and the shares of trained groups by
staleness.
"""

import argparse
import heapq
import itertools
import json
import random
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lcrag.train.admission import Admission

GROUP = 4
LOCKSTEP = 1  # the staleness at which whole steps alternate: one is sampled while the one before it is learned from


class Simulation:
    """One run in virtual time.

    Args:
      measured: "generations", rows of token counts, and "latencies", seconds of a search.
      hosts: Sampling hosts.
      staleness: Of training.
      arguments: Sizes and speeds.
    """

    def __init__(self, measured: dict, hosts: int, staleness: int, arguments: argparse.Namespace):
        self.random, self.measured, self.hosts, self.arguments = random.Random(0), measured, hosts, arguments
        self.batch, self.staleness, self.version = arguments.groups * hosts, staleness, 0
        self.admission = Admission(self.batch, staleness, self.batch * arguments.updates)
        self.update_seconds = arguments.update * arguments.growth ** np.log2(hosts)
        self.free = [arguments.slots] * hosts
        self.queues: list[deque[int]] = [deque() for _ in range(hosts)]  # groups of waiting episodes
        self.left: dict[int, int] = {}  # episodes of a group that have not finished
        self.begun_with: dict[int, int] = {}
        self.ages: Counter[int] = Counter()
        self.events: list[tuple[float, int, str, tuple[int, ...]]] = []
        self.now = self.busy = self.learning = 0.0
        self.numbers = itertools.count()
        self.updating = False

    def at(self, seconds: float, what: str, *about: int) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), what, about))

    def run(self) -> dict:
        """Returns what is printed of a run."""
        self._advance()
        while self.version < self.arguments.updates:
            self.now, _, what, about = heapq.heappop(self.events)
            getattr(self, f"_{what}")(*about)
            self._advance()
        episodes = self.batch * self.arguments.updates * GROUP
        return {
            "hosts": self.hosts,
            "staleness": self.staleness,
            "episodes_per_second": episodes / self.now,
            "idle_slots": 1 - self.busy / (self.now * self.hosts * self.arguments.slots),
            "idle_trainer": 1 - self.learning / self.now,
            "staleness_shares": [self.ages[age] / self.ages.total() for age in range(self.staleness + 1)],
        }

    def _advance(self) -> None:
        """Begins what may begin: an update, groups, and episodes in free slots."""
        ready = None if self.updating else self.admission.ready()
        if ready is not None:
            self.updating = True
            self.ages.update(self.version - self.begun_with[group] for group in ready)
            self.admission.take(ready)
            self.learning += self.update_seconds
            self.at(self.update_seconds, "updated")
        self._begin()
        for host, queue in enumerate(self.queues):
            while queue and self.free[host]:
                self.free[host] -= 1
                self._episode(host, queue.popleft())

    def _begin(self) -> None:
        if self.staleness == LOCKSTEP and not self.updating:
            self.admission.staleness = 0
        for group in self.admission.begin():
            self.begun_with[group] = self.admission.version
            self.left[group] = GROUP
            host = min(range(self.hosts), key=lambda each: len(self.queues[each]) - self.free[each])
            self.queues[host].extend([group] * GROUP)
        self.admission.staleness = self.staleness

    def _episode(self, host: int, group: int) -> None:
        row, latencies = self.random.choice(self.measured["generations"]), self.measured["latencies"]
        writing = sum(row) * self.arguments.token
        searching = sum(self.random.choice(latencies) for _ in row[1:])
        self.busy += writing
        self.at(writing + searching, "finished", host, group)

    def _finished(self, host: int, group: int) -> None:
        self.free[host] += 1
        self.left[group] -= 1
        if not self.left[group]:
            self.admission.finish(group)

    def _updated(self) -> None:
        self.updating = False
        self.version += 1
        self.admission.learned()


def table(results: Sequence[dict]) -> str:
    """Returns the results as a table."""
    lines = ["hosts  staleness  episodes/s  per host  idle slots  idle trainer  shares by staleness"]
    for each in results:
        shares = " ".join(f"{share:.2f}" for share in each["staleness_shares"])
        lines.append(
            f"{each['hosts']:5}  {each['staleness']:9}  {each['episodes_per_second']:10.1f}"
            f"  {each['per_host']:8.2f}  {each['idle_slots']:10.0%}  {each['idle_trainer']:12.0%}  {shares}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, help="what benchmarks/asynchronous.py --output wrote")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--groups", type=int, default=16, help="groups that each host brings to an update")
    parser.add_argument("--slots", type=int, default=32, help="slots of a host")
    parser.add_argument("--token", type=float, help="seconds of a decode step; by default as measured")
    parser.add_argument("--update", type=float, help="seconds of an update with one host; by default as measured")
    parser.add_argument("--growth", type=float, default=1.0, help="seconds of an update when the hosts are doubled")
    parser.add_argument("--output", type=Path, help="a file for the results as JSON")
    arguments = parser.parse_args()
    measured = json.loads(arguments.measured.read_text())
    arguments.token = arguments.token or measured["seconds_per_token"]
    arguments.update = arguments.update or measured["seconds_per_update"]
    results = [
        Simulation(measured, hosts, staleness, arguments).run()
        for hosts in arguments.hosts
        for staleness in arguments.staleness
    ]
    unit = results[0]["episodes_per_second"] / results[0]["hosts"]
    for each in results:
        each["per_host"] = each["episodes_per_second"] / each["hosts"] / unit
    print(table(results))
    if arguments.output:
        settings = {name: str(value) for name, value in vars(arguments).items()}
        arguments.output.write_text(json.dumps({"settings": settings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()

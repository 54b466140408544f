"""Episodes sampled by lanes: serialised for the other processes and merged in the order of the rollout."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord
from lcrag.episodes.exchange import packed, unpacked
from lcrag.sampling import SamplerStatistics
from lcrag.train.scoring import Rewards


@dataclasses.dataclass(kw_only=True)
class LaneEpisodes:
    """The scored episodes of one lane.

    Attributes:
      lane: Number of the lane.
      records: Its episodes.
      rewards: Rewards of the episodes.
      seconds: Time of each phase, in seconds.
      statistics: Counters of the lane's sampler in this rollout; `compiled_shapes` counts since the start.
    """

    lane: int
    records: Sequence[EpisodeRecord]
    rewards: Rewards
    seconds: Mapping[str, float]
    statistics: SamplerStatistics

    def plain(self) -> dict[str, Any]:
        """Returns all fields except the records as JSON values."""
        turns = self.rewards.turns
        return {
            "lane": self.lane,
            "records": len(self.records),
            "values": {name: np.asarray(own, np.float64).tolist() for name, own in self.rewards.values.items()},
            "turns": None if turns is None else [[(n, float(own)) for n, own in each.items()] for each in turns],
            "seconds": dict(self.seconds),
            "statistics": dataclasses.asdict(self.statistics),
        }

    @classmethod
    def of(cls, plain: dict[str, Any], records: Sequence[EpisodeRecord]) -> "LaneEpisodes":
        """Returns the object whose JSON values are `plain`."""
        values = {name: np.array(own, np.float64) for name, own in plain["values"].items()}
        turns = None if plain["turns"] is None else tuple(map(dict, plain["turns"]))
        return cls(
            lane=plain["lane"],
            records=records,
            rewards=Rewards(values=values, turns=turns),
            seconds=plain["seconds"],
            statistics=SamplerStatistics(**plain["statistics"]),
        )


@dataclasses.dataclass(kw_only=True)
class Share:
    """The scored episodes of this process's lanes, or the exception that prevented them.

    Attributes:
      questions: Question of each episode of all lanes by the episode's number, in the order of the rollout.
      lanes: The episodes of this process's lanes.
      failure: The exception; None: sampling succeeded.
    """

    questions: dict[int, Question]
    lanes: Sequence[LaneEpisodes] = ()
    failure: Exception | None = None


def packed_lanes(lanes: Sequence[LaneEpisodes]) -> bytes:
    """Serialises the episodes of a process's lanes."""
    return packed([record for lane in lanes for record in lane.records], [lane.plain() for lane in lanes])


def all_lanes(share: Share, contents: Sequence[bytes]) -> list[LaneEpisodes]:
    """Returns the episodes of all lanes; `contents` are those of each process, serialised by `packed_lanes`."""
    lanes = list(share.lanes)
    for process, content in enumerate(contents):
        if process != jax.process_index():
            records, plain = unpacked(content, share.questions)
            each_record = iter(records)
            lanes += [LaneEpisodes.of(each, list(itertools.islice(each_record, each["records"]))) for each in plain]
    return sorted(lanes, key=lambda each: each.lane)


def in_order(lanes: Sequence[LaneEpisodes]) -> tuple[list[EpisodeRecord], Rewards]:
    """Returns the episodes of all lanes, ordered by number, and their rewards.

    A reward term that a lane does not have is NaN for its episodes.
    """
    records = [record for lane in lanes for record in lane.records]
    order = np.argsort([record.episode for record in records], kind="stable")
    values = {}
    for name in dict.fromkeys(name for lane in lanes for name in lane.rewards.values):
        own = [lane.rewards.values.get(name, np.full(len(lane.records), np.nan)) for lane in lanes]
        values[name] = np.concatenate(own)[order]
    turns = [lane.rewards.turns for lane in lanes]
    rewarded = None if turns[0] is None else [each for own in turns for each in own or ()]
    in_turn = None if rewarded is None else tuple(rewarded[place] for place in order)
    return [records[place] for place in order], Rewards(values=values, turns=in_turn)


def slowest(lanes: Sequence[LaneEpisodes]) -> LaneEpisodes:
    """Returns the episodes of the lane that took longest for sampling and rewards."""
    return max(lanes, key=lambda each: each.seconds["rollout"] + each.seconds["rewards"])


def together(lanes: Sequence[LaneEpisodes]) -> SamplerStatistics:
    """Returns the summed counters of lanes that sampled in parallel; times are those of the slowest lane."""
    total = vars(summed([each.statistics for each in lanes], SamplerStatistics()))
    seconds = {name: own for name, own in vars(slowest(lanes).statistics).items() if name.endswith("_seconds")}
    return SamplerStatistics(**total | seconds)


def summed(statistics: Sequence[SamplerStatistics], before: SamplerStatistics) -> SamplerStatistics:
    """Returns the sum of counters and of `before`; for `compiled_shapes`, which lanes may share, the maximum."""
    names = [field.name for field in dataclasses.fields(SamplerStatistics)]
    total = {name: sum(getattr(each, name) for each in (before, *statistics)) for name in names}
    return SamplerStatistics(**total | {"compiled_shapes": max(each.compiled_shapes for each in statistics)})


def since(now: LaneEpisodes, before: LaneEpisodes | None) -> LaneEpisodes:
    """Returns times and counters of a lane since `before`; both arguments are measured from the lane's start."""
    if before is None:
        return now
    seconds = {phase: taken - before.seconds[phase] for phase, taken in now.seconds.items()}
    return dataclasses.replace(now, seconds=seconds, statistics=spent(now.statistics, before.statistics))


def spent(now: SamplerStatistics, before: SamplerStatistics) -> SamplerStatistics:
    """Returns the increase of the counters; `compiled_shapes` is that of `now`."""
    risen = {name: value - getattr(before, name) for name, value in vars(now).items()}
    return SamplerStatistics(**risen | {"compiled_shapes": now.compiled_shapes})

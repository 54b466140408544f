"""Packs episodes of many lengths into a few fixed shapes: several episodes share a row, rows share a micro-batch.

Packing changes no loss: losses work on [episodes, time] arrays of the policy's own tokens, and `Batch` says where in
the rows each of them is predicted. Shapes come from a small finite set (`Layout`), which bounds the number of compiled
updates. They depend only on the episodes of the batch, so a resumed run has the same shapes as an uninterrupted one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import flax.struct
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from lcrag.errors import UserError
from lcrag.limits import Count, PositiveShare, check_fields

POLICY_SHARES = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)
EPISODE_GROWTH = 4
ROWS = ("tokens", "positions", "segments")

if TYPE_CHECKING:
    AnyArray: TypeAlias = Array | np.ndarray
else:
    # The last two describe arrays: JAX and `lcrag compile` pass them instead of arrays, to compile without data.
    AnyArray: TypeAlias = Array | np.ndarray | jax.ShapeDtypeStruct | jax.stages.ArgInfo


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """The data of one episode for learning.

    Attributes:
      tokens: The whole context.
      by_policy: True on the tokens to learn from (sampled by the policy; in SFT the targets). False on the first.
      log_probabilities: Of those tokens under the policy that sampled them; not read elsewhere.
      advantage: Advantage of the episode.
      reward: Reward of the episode, from which a critic's advantages are estimated.
      step_rewards: Rewards of single policy tokens, in addition to the episode's; used only with a critic. None: there
        are none.
    """

    tokens: Int[np.ndarray, " n"]
    by_policy: Bool[np.ndarray, " n"]
    log_probabilities: Float[np.ndarray, " n"]
    advantage: float = 0.0
    reward: float = 0.0
    step_rewards: Float[np.ndarray, " n"] | None = None


class Rows(flax.struct.PyTreeNode):
    """Rows of another length, of further micro-batches; fields as in `Batch`."""

    tokens: Int32[AnyArray, "micro rows time"]
    positions: Int32[AnyArray, "micro rows time"]
    segments: Int32[AnyArray, "micro rows time"]


class Batch(flax.struct.PyTreeNode):
    """Packed micro-batches on the host or the devices, the non-empty ones first; `Layout` determines the sizes.

    Without the axis `micro` it is one micro-batch. Its `shares` are groups of neighbouring rows, one for each device
    over which rows are sharded. `short`, if not None, holds the rows of further micro-batches, which come last on the
    axis `all_micro`; otherwise `all_micro` equals `micro`. The last fields are None until they are computed.
    """

    tokens: Int32[AnyArray, "*micro rows time"]  # 0 in padding
    positions: Int32[AnyArray, "*micro rows time"]  # of each token in its own episode
    segments: Int32[AnyArray, "*micro rows time"]  # the token's episode in its row, from 1; 0 in padding
    sources: Int32[AnyArray, "*all_micro shares policy"]  # in a share's flattened rows: one before each policy token
    targets: Int32[AnyArray, "*all_micro shares policy"]  # the policy's tokens, which are *predicted* at `sources`
    index: Int32[AnyArray, "*all_micro episodes own"]  # of an episode's policy tokens in the flattened [shares, policy]
    mask: Bool[AnyArray, "*all_micro episodes own"]  # where `index` names a policy token
    sampling_log_probabilities: Float32[AnyArray, "*all_micro episodes own"]  # recorded when the tokens were sampled
    # per token: a critic's
    advantages: Float32[AnyArray, "*all_micro episodes"] | Float32[AnyArray, "*all_micro episodes own"]
    rewards: Float32[AnyArray, "*all_micro episodes"]
    step_rewards: Float32[AnyArray, "*all_micro episodes own"] | None = None  # in addition to the episode's
    reference_log_probabilities: Float32[AnyArray, "*all_micro episodes own"] | None = None
    old_log_probabilities: Float32[AnyArray, "*all_micro episodes own"] | None = None  # before the rollout's updates
    values: Float32[AnyArray, "*all_micro episodes own"] | None = None  # the critic's, before each token is chosen
    returns: Float32[AnyArray, "*all_micro episodes own"] | None = None  # the critic's targets
    short: "Rows | None" = None

    def by_row_length(self) -> "list[Batch]":
        """Return the micro-batches of each row length as a batch of their own."""
        if self.short is None:
            return [self]
        micro = self.tokens.shape[0]
        scalars = {name: value for name, value in vars(self).items() if name not in (*ROWS, "short")}
        long = self.replace(**jax.tree.map(lambda leaf: leaf[:micro], scalars), short=None)
        return [long, long.replace(**jax.tree.map(lambda leaf: leaf[micro:], scalars), **vars(self.short))]

    @property
    def used(self) -> list[int]:
        """Number of non-empty micro-batches of each row length; for batches on the host."""
        return [int((np.asarray(each.segments) > 0).any(axis=(1, 2)).sum()) for each in self.by_row_length()]

    @property
    def filled(self) -> float:
        """Share of the computed positions that hold a token; for batches on the host."""
        parts = self.by_row_length()
        computed = sum(used * each.segments[0].size for used, each in zip(self.used, parts, strict=True))
        return sum(int((np.asarray(each.segments) > 0).sum()) for each in parts) / computed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The shapes a batch may have.

    Attributes:
      rows: Rows of a micro-batch, which determine its memory; a multiple of the devices that share the batch.
      row_lengths: Possible lengths of a row in tokens: the shortest that holds the longest episode is used.
      short_row_length: Length of rows that need no more tokens, in separate micro-batches; None: all rows of
        a batch have one length. It pays if episodes of more than half a row leave rows underfilled, and compiles
        each update twice, once for each length.
      policy_shares: Shares of the tokens of a device's rows to which the number of policy tokens is padded. Each is a
        shape to compile, and every padded position is unembedded.
      min_micro_batches: Smallest number of micro-batches in a batch; empty ones cost no computation.
      min_episodes: Smallest number of episodes of a micro-batch, padding included; padding costs a few scalars.
    """

    rows: Count
    row_lengths: tuple[Count, ...]
    short_row_length: Count | None = None
    policy_shares: tuple[PositiveShare, ...] = POLICY_SHARES
    min_micro_batches: Count = 1
    min_episodes: Count = 1

    def __post_init__(self):
        check_fields(self)
        if not self.row_lengths or min(self.row_lengths) < 2:
            raise UserError(
                f"Layout.row_lengths is {self.row_lengths}, which holds no episode: give one of 2 tokens or more"
            )

    def row_length(self, needed: int) -> int:
        """Return the smallest row length of at least `needed` tokens."""
        if needed > max(self.row_lengths):
            raise UserError(
                f"an episode has {needed} tokens but the longest training row (Layout.row_lengths) holds "
                f"{max(self.row_lengths)}: add a longer row length or lower the sampler's context."
            )
        return min(length for length in self.row_lengths if length >= needed)

    def lengths(self, needed: int) -> list[int]:
        """Return the row length of a batch whose longest episode has `needed` tokens, and that of its short rows."""
        long, short = self.row_length(needed), self.short_row_length
        return [long] if short is None or short >= long else [long, short]

    def policy_lengths(self, tokens: int) -> tuple[int, ...]:
        """Return the numbers of policy tokens to which rows of `tokens` tokens in all are padded."""
        return tuple(int(np.ceil(share * tokens)) for share in self.policy_shares)

    def policy_length(self, tokens: int, needed: int) -> int:
        """Return the smallest of the `policy_lengths` that holds `needed` policy tokens."""
        if needed > max(lengths := self.policy_lengths(tokens)):
            raise UserError(
                f"the policy wrote {needed} of {tokens} tokens of training rows, but Layout.policy_shares is "
                f"{self.policy_shares}: add a larger share (1.0 always serves)."
            )
        return min(length for length in lengths if length >= needed)

    def micro_batches(self, needed: int) -> int:
        """Return the padded number of micro-batches, doubling from the least."""
        return _at_least(needed, self.min_micro_batches, 2)

    def episodes(self, needed: int) -> int:
        """Return the padded number of episodes of a micro-batch, growing fourfold from the least."""
        return _at_least(needed, max(self.rows, self.min_episodes), EPISODE_GROWTH)


def _at_least(needed: int, smallest: int, growth: int) -> int:
    size = smallest
    while size < needed:
        size *= growth
    return size


def first_fit_decreasing(lengths: Int[np.ndarray, " n"], row_length: int) -> list[list[int]]:
    """Return the items of each row: longest first, each in the first row with room; ties keep their order.

    It takes at most 11/9 of the fewest possible rows (Johnson 1973).
    """
    rows: list[list[int]] = []
    free = np.full(len(lengths), row_length)
    for item in np.argsort(-lengths, kind="stable"):
        row = int(np.argmax(free >= lengths[item]))
        if row == len(rows):
            rows.append([])
        rows[row].append(int(item))
        free[row] -= lengths[item]
    return rows


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """Assignment of items to rows, shares and micro-batches.

    Attributes:
      row_lengths: Tokens of the rows, and of short rows where there may be any.
      policy_length: Policy tokens of every share, padding included.
      micro_batches: Indices of the items, [row length][micro-batch][share][row][item]. Rows may be missing.
    """

    row_lengths: list[int]
    policy_length: int
    micro_batches: list[list[list[list[list[int]]]]]


def arrange(
    lengths: Int[np.ndarray, " n"], written: Int[np.ndarray, " n"], layout: Layout, shares: int = 1
) -> Arrangement:
    """Assign episodes to rows, and rows to micro-batches and shares with about equal numbers of policy tokens.

    Episodes are packed into rows of the full length. Rows that are filled no further than the short length then become
    short rows, except those that complete the last micro-batch of long rows.

    Args:
      lengths: Tokens of each episode.
      written: Number of policy tokens among them.
      layout: The shapes.
      shares: As in `pack`.
    """
    row_lengths = layout.lengths(int(lengths.max()))
    rows = first_fit_decreasing(lengths, row_lengths[0])
    ends = [int(lengths[row].sum()) for row in rows]
    fullest = sorted(range(len(rows)), key=lambda number: -ends[number])
    long = sum(end > row_lengths[-1] for end in ends) if len(row_lengths) > 1 else len(rows)
    end = -(-long // layout.rows) * layout.rows
    policy = [int(written[row].sum()) for row in rows]
    room = layout.rows // shares
    micro_batches, most = [], 0
    for part in [fullest[:end], fullest[end:]][: len(row_lengths)]:
        members = _spread(sorted(part), policy, -(-len(part) // layout.rows) * shares, room)
        most = max([most, *(sum(policy[number] for number in share) for share in members)])
        given = [[rows[number] for number in share] for share in members]
        micro_batches.append([given[start : start + shares] for start in range(0, len(given), shares)])
    return Arrangement(row_lengths, layout.policy_length(room * row_lengths[0], most), micro_batches)


def _spread(items: Sequence[int], weights: Sequence[int], shares: int, room: int) -> list[list[int]]:
    """Assign items to shares of limited room, the heaviest first, each to the share with the least weight so far."""
    members: list[list[int]] = [[] for _ in range(shares)]
    totals = [0] * shares
    for item in sorted(items, key=lambda item: -weights[item]):
        share = min((each for each in range(shares) if len(members[each]) < room), key=lambda each: totals[each])
        members[share].append(item)
        totals[share] += weights[item]
    return members


def _empty(micro: int, rows: int, time: int, episodes: int, own: int, shares: int, policy: int) -> dict[str, Any]:
    """Return the fields of a batch without episodes."""
    return {
        **{name: np.zeros((micro, rows, time), np.int32) for name in ROWS},
        **{name: np.zeros((micro, shares, policy), np.int32) for name in ("sources", "targets")},
        "index": np.zeros((micro, episodes, own), np.int32),
        "mask": np.zeros((micro, episodes, own), bool),
        "sampling_log_probabilities": np.zeros((micro, episodes, own), np.float32),
        "advantages": np.zeros((micro, episodes), np.float32),
        "rewards": np.zeros((micro, episodes), np.float32),
    }


def largest_batch(layout: Layout, shares: int = 1) -> Batch:
    """Return an empty batch of the largest micro-batches that a layout allows; `shares` as in `pack`."""
    time = max(layout.row_lengths)
    own, policy = (max(layout.policy_lengths(tokens)) for tokens in (time, layout.rows // shares * time))
    episodes = layout.episodes(layout.rows)
    return Batch(**_empty(layout.min_micro_batches, layout.rows, time, episodes, own, shares, policy))


def _fill_share(
    fields: Mapping[str, np.ndarray],
    micro: int,
    share: int,
    first_episode: int,
    rows: Sequence[Sequence[Trajectory]],
) -> None:
    """Write the rows of one share, the scalars of their episodes from `first_episode` on."""
    (_, shares, policy), (_, all_rows, time) = fields["sources"].shape, fields["tokens"].shape
    used, episode = 0, first_episode
    for row, members in enumerate(rows):
        start = 0
        for segment, member in enumerate(members, 1):
            chosen = np.flatnonzero(member.by_policy)
            here = micro, share * (all_rows // shares) + row, slice(start, start + len(member.tokens))
            fields["tokens"][here] = member.tokens
            fields["positions"][here] = np.arange(len(member.tokens))
            fields["segments"][here] = segment
            written = micro, share, slice(used, used + len(chosen))
            fields["sources"][written] = row * time + start + chosen - 1
            fields["targets"][written] = member.tokens[chosen]
            _write_scalars(fields, (micro, episode), member, chosen, share * policy + used)
            start += len(member.tokens)
            used, episode = used + len(chosen), episode + 1


def _write_scalars(
    fields: Mapping[str, np.ndarray], episode: tuple[int, int], member: Trajectory, chosen: np.ndarray, first: int
) -> None:
    """Write the arrays that losses read of an episode, whose policy tokens, at `chosen`, are numbered from `first`."""
    own = (*episode, slice(0, len(chosen)))
    fields["index"][own] = first + np.arange(len(chosen))
    fields["mask"][own] = True
    fields["sampling_log_probabilities"][own] = member.log_probabilities[chosen]
    fields["advantages"][episode] = member.advantage
    fields["rewards"][episode] = member.reward
    if member.step_rewards is not None:
        fields["step_rewards"][own] = member.step_rewards[chosen]


def pack(trajectories: Sequence[Trajectory], layout: Layout, shares: int = 1) -> Batch:
    """Pack trajectories into one batch (host, NumPy): one call of the update, in as many micro-batches as it takes.

    For several updates per rollout (PPO's mini-batches) pack each part of the trajectories by itself.

    Args:
      trajectories: The episodes.
      layout: The shapes.
      shares: Devices, or groups of devices with the same rows, that divide the rows of a micro-batch.

    Raises:
      UserError: No trajectories; one longer than the longest row; one that begins with a policy token; rows that the
        devices cannot divide.
    """
    _check(trajectories, layout, shares)
    lengths = np.array([len(trajectory.tokens) for trajectory in trajectories])
    written = np.array([int(trajectory.by_policy.sum()) for trajectory in trajectories])
    arrangement = arrange(lengths, written, layout, shares)
    counts = [sum(len(row) for share in micro for row in share) for part in arrangement.micro_batches for micro in part]
    own = layout.policy_length(arrangement.row_lengths[0], int(written.max()))
    sizes = layout.episodes(max(counts)), own, shares, arrangement.policy_length
    parts = []
    for row_length, micro_batches in zip(arrangement.row_lengths, arrangement.micro_batches, strict=True):
        fields = _empty(layout.micro_batches(len(micro_batches)), layout.rows, row_length, *sizes)
        if any(trajectory.step_rewards is not None for trajectory in trajectories):
            fields["step_rewards"] = np.zeros(fields["mask"].shape, np.float32)
        for micro, micro_batch in enumerate(micro_batches):
            first_episode = 0
            for share, rows in enumerate(micro_batch):
                members = [[trajectories[item] for item in row] for row in rows]
                _fill_share(fields, micro, share, first_episode, members)
                first_episode += sum(map(len, rows))
        parts.append(fields)
    return _joined(*parts)


def _joined(long: dict[str, Any], short: dict[str, Any] | None = None) -> Batch:
    """Combine the fields of the micro-batches of both row lengths into one batch."""
    if short is None:
        return Batch(**long)
    scalars = {name: np.concatenate([long[name], short[name]]) for name in long if name not in ROWS}
    texts, short_texts = ({name: fields[name] for name in ROWS} for fields in (long, short))
    return Batch(**texts, **scalars, short=Rows(**short_texts))


def _check(trajectories: Sequence[Trajectory], layout: Layout, shares: int) -> None:
    if not trajectories:
        raise UserError("there is no trajectory to learn from: ask for at least one question and one sample a step.")
    for number, trajectory in enumerate(trajectories):
        if trajectory.by_policy[0]:
            raise UserError(
                f"trajectory {number} begins with a token of the policy, which nothing predicts: "
                "begin its episode with a prompt."
            )
    if layout.rows % shares:
        raise UserError(
            f"{layout.rows} rows a micro-batch (Layout.rows) cannot be shared by {shares} devices "
            f"(mesh axes data x fsdp): make Layout.rows a multiple of {shares}."
        )

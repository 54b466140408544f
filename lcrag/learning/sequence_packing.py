"""Packs episodes of many lengths into a few fixed shapes: several episodes share a row, rows share a micro-batch.

Packing changes no loss: losses work on [episodes, time] arrays of the policy's own tokens, and `Batch` says where in
the rows each of them is predicted. Shapes come from a small finite set (`Layout`), which bounds the number of compiled
updates. They depend only on the episodes of the batch, so a resumed run has the same shapes as an uninterrupted one.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import flax.struct
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from lcrag.errors import Count, UserError, typed

ROWS = ("tokens", "positions", "segments")

if TYPE_CHECKING:
    AnyArray: TypeAlias = Array | np.ndarray
else:
    # The last two describe arrays: JAX and `lcrag compile` pass them instead of arrays, to compile without data.
    AnyArray: TypeAlias = Array | np.ndarray | jax.ShapeDtypeStruct | jax.stages.ArgInfo


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """What learning reads of one episode, or of one demonstration."""

    tokens: Int[np.ndarray, " n"]  # the whole context
    by_policy: Bool[np.ndarray, " n"]  # the tokens to learn from: sampled or, in SFT, targets; never the first
    log_probabilities: Float[np.ndarray, " n"]  # of those tokens when they were sampled; not read elsewhere
    advantage: float = 0.0
    reward: float = 0.0  # from which a critic's advantages are estimated
    step_rewards: Float[np.ndarray, " n"] | None = None  # of single tokens, in addition; used only with a critic
    # What `Learner.learn` compares with its own: see `EpisodeRecord`; None, and no temperature: unknown.
    policy_version: int | None = None
    temperatures: tuple[float, ...] = ()


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
        return [int((np.asarray(part.segments) > 0).any(axis=(1, 2)).sum()) for part in self.by_row_length()]

    @property
    def filled(self) -> float:
        """Share of the computed positions that hold a token; for batches on the host."""
        parts = self.by_row_length()
        computed = sum(used * part.segments[0].size for used, part in zip(self.used, parts, strict=True))
        return sum(int((np.asarray(part.segments) > 0).sum()) for part in parts) / computed


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The shapes a batch may have."""

    rows: Count  # of a micro-batch, which determine its memory; a multiple of the devices that share the batch
    row_lengths: tuple[int, ...]  # in tokens: the shortest that holds the longest episode is used
    # Length of rows that need no more tokens, in separate micro-batches; None: all rows of a batch have one length. It
    # pays if episodes of more than half a row leave rows underfilled, and compiles each update for each length.
    short_row_length: Count | None = None
    # Shares of the tokens of a device's rows to which the number of policy tokens is padded. Each is a shape to
    # compile, and every padded position is unembedded.
    policy_shares: tuple[float, ...] = (1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)
    min_micro_batches: Count = 1  # in a batch; empty ones cost no computation
    min_episodes: Count = 1  # of a micro-batch, padding included, which costs a few scalars

    def __post_init__(self):
        if not self.row_lengths or min(self.row_lengths) < 2:
            raise UserError(
                f"Layout.row_lengths is {self.row_lengths}, which holds no episode: give one of 2 tokens or more"
            )
        if not self.policy_shares or not all(0 < share <= 1 for share in self.policy_shares):
            raise UserError(f"Layout.policy_shares is {self.policy_shares}: give shares above 0, at most 1")

    def check_shares(self, shares: int) -> None:
        """Raises a UserError if the rows cannot be divided among `shares` devices."""
        if self.rows % shares:
            raise UserError(f"Layout.rows is {self.rows} for {shares} devices: make it a multiple of {shares}")

    def row_length(self, needed: int) -> int:
        """Return the smallest row length of at least `needed` tokens."""
        if needed > max(self.row_lengths):
            raise UserError(
                f"an episode has {needed} tokens but the longest training row (Layout.row_lengths) holds "
                f"{max(self.row_lengths)}: add a longer row length or lower the sampler's context."
            )
        return min(length for length in self.row_lengths if length >= needed)

    def policy_lengths(self, tokens: int) -> tuple[int, ...]:
        """Return the numbers of policy tokens to which those of rows of `tokens` tokens in all are padded."""
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
        """Return the padded number of micro-batches, doubling from the minimum."""
        return next(size for doublings in itertools.count() if (size := self.min_micro_batches << doublings) >= needed)

    def episodes(self, needed: int) -> int:
        """Return the padded number of episodes of a micro-batch, growing fourfold from the minimum."""
        smallest = max(self.rows, self.min_episodes)
        return next(size for times in itertools.count() if (size := smallest << 2 * times) >= needed)


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


def arrange(
    lengths: Int[np.ndarray, " n"], written: Int[np.ndarray, " n"], layout: Layout, shares: int = 1
) -> tuple[list[int], int, list[list[list[list[list[int]]]]]]:
    """Assign episodes to rows, and rows to micro-batches and shares with about equal numbers of policy tokens.

    Episodes are packed into rows of the full length. Rows that are filled no further than the short length then become
    short rows, except those that complete the last micro-batch of long rows. Of the `lengths` of episodes in tokens the
    policy wrote `written`.

    Returns:
      The tokens of the rows, and of short rows where there may be any; the policy tokens of every share, padding
      included; and the indices of the episodes, [row length][micro-batch][share][row][episode]. Rows may be missing.
    """
    row_lengths = [layout.row_length(int(lengths.max()))]
    if layout.short_row_length is not None and layout.short_row_length < row_lengths[0]:
        row_lengths.append(layout.short_row_length)
    rows = first_fit_decreasing(lengths, row_lengths[0])
    ends = [int(lengths[row].sum()) for row in rows]
    fullest = sorted(range(len(rows)), key=lambda number: -ends[number])
    long = sum(end > row_lengths[-1] for end in ends) if len(row_lengths) > 1 else len(rows)
    end = -(-long // layout.rows) * layout.rows
    policy = [int(written[row].sum()) for row in rows]
    room = layout.rows // shares
    micro_batches, max_policy = [], 0
    for part in [fullest[:end], fullest[end:]][: len(row_lengths)]:
        # the rows with most policy tokens first, each to the share with the fewest so far
        members: list[list[int]] = [[] for _ in range(-(-len(part) // layout.rows) * shares)]
        totals = [0] * len(members)
        for row in sorted(sorted(part), key=lambda row: -policy[row]):
            share = min((n for n in range(len(members)) if len(members[n]) < room), key=totals.__getitem__)
            members[share].append(row)
            totals[share] += policy[row]
        max_policy = max([max_policy, *totals])
        given = [[rows[row] for row in share] for share in members]
        micro_batches.append([given[start : start + shares] for start in range(0, len(given), shares)])
    return row_lengths, layout.policy_length(room * row_lengths[0], max_policy), micro_batches


def _empty(micro: int, rows: int, time: int, episodes: int, own: int, shares: int, policy: int) -> dict[str, Any]:
    of_episodes, of_tokens = (micro, episodes), (micro, episodes, own)
    return {
        **{name: np.zeros((micro, rows, time), np.int32) for name in ROWS},
        **{name: np.zeros((micro, shares, policy), np.int32) for name in ("sources", "targets")},
        "index": np.zeros(of_tokens, np.int32),
        "mask": np.zeros(of_tokens, bool),
        "sampling_log_probabilities": np.zeros(of_tokens, np.float32),
        "advantages": np.zeros(of_episodes, np.float32),
        "rewards": np.zeros(of_episodes, np.float32),
    }


def largest_batch(layout: Layout, shares: int = 1) -> Batch:
    """Return an empty batch of the largest micro-batches that a layout allows; `shares` as in `pack`."""
    time = max(layout.row_lengths)
    own, policy = (max(layout.policy_lengths(tokens)) for tokens in (time, layout.rows // shares * time))
    episodes = layout.episodes(layout.rows)
    return Batch(**_empty(layout.min_micro_batches, layout.rows, time, episodes, own, shares, policy))


def pack(trajectories: Sequence[Trajectory], layout: Layout, shares: int = 1) -> Batch:
    """Pack trajectories into one batch (host, NumPy): one call of the update, in as many micro-batches as it takes.

    For several updates per rollout (PPO's mini-batches) pack each part of the trajectories by itself. `shares` devices,
    or groups of devices with the same rows, divide the rows of a micro-batch.
    """
    if not trajectories:
        raise UserError("there is no trajectory to learn from: ask for at least one question and one sample a step.")
    for number, trajectory in enumerate(trajectories):
        if trajectory.by_policy[0]:
            raise UserError(
                f"trajectory {number} begins with a token of the policy, which nothing predicts: "
                "begin its episode with a prompt."
            )
    layout.check_shares(shares)
    lengths = np.array([len(trajectory.tokens) for trajectory in trajectories])
    written = np.array([int(trajectory.by_policy.sum()) for trajectory in trajectories])
    row_lengths, policy, arranged = arrange(lengths, written, layout, shares)
    counts = [sum(len(row) for share in micro for row in share) for part in arranged for micro in part]
    sizes = layout.episodes(max(counts)), layout.policy_length(row_lengths[0], int(written.max())), shares, policy
    parts = []
    for row_length, micro_batches in zip(row_lengths, arranged, strict=True):
        fields = _empty(layout.micro_batches(len(micro_batches)), layout.rows, row_length, *sizes)
        if any(trajectory.step_rewards is not None for trajectory in trajectories):
            fields["step_rewards"] = np.zeros(fields["mask"].shape, np.float32)
        for micro, micro_batch in enumerate(micro_batches):
            episode = 0
            for share, rows in enumerate(micro_batch):
                first_row, used = share * (layout.rows // shares), 0
                for row, members in enumerate(rows):
                    start = 0
                    for segment, item in enumerate(members, 1):
                        member = trajectories[item]
                        chosen = np.flatnonzero(member.by_policy)
                        # its text, in a row
                        here = micro, first_row + row, slice(start, start + len(member.tokens))
                        fields["tokens"][here] = member.tokens
                        fields["positions"][here] = np.arange(len(member.tokens))
                        fields["segments"][here] = segment
                        # its policy tokens, in the flattened rows of the share
                        predicted = micro, share, slice(used, used + len(chosen))
                        fields["sources"][predicted] = row * row_length + start + chosen - 1
                        fields["targets"][predicted] = member.tokens[chosen]
                        # what losses read of it
                        its_tokens = micro, episode, slice(0, len(chosen))
                        fields["index"][its_tokens] = share * policy + used + np.arange(len(chosen))
                        fields["mask"][its_tokens] = True
                        fields["sampling_log_probabilities"][its_tokens] = member.log_probabilities[chosen]
                        fields["advantages"][micro, episode] = member.advantage
                        fields["rewards"][micro, episode] = member.reward
                        if member.step_rewards is not None:
                            fields["step_rewards"][its_tokens] = member.step_rewards[chosen]
                        start, used, episode = start + len(member.tokens), used + len(chosen), episode + 1
        parts.append(fields)
    if len(parts) == 1:
        return Batch(**parts[0])
    long, short = parts
    scalars = {name: np.concatenate([long[name], short[name]]) for name in long if name not in ROWS}
    texts, short_texts = ({name: fields[name] for name in ROWS} for fields in parts)
    return Batch(**texts, **scalars, short=Rows(**short_texts))

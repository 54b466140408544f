"""Episodes of many lengths into a few fixed shapes: several episodes share a row, rows share a micro-batch.

Packing is a layout and nothing else: losses work on [episodes, time] arrays of the policy's own tokens, and
`Batch` says where in the rows each of them is predicted. Shapes come from a small finite set (`Layout`),
so that the update compiles a handful of times in a whole run; they depend on the episodes of the batch alone,
so that a resumed run sees the shapes it would have seen.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.struct
import numpy as np
from jaxtyping import Bool, Float, Int

from lcrag.errors import UserError

POLICY_SHARES = (1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)
EPISODE_GROWTH = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode as learning sees it.

    Attributes:
      tokens: The whole context.
      by_policy: True on the tokens to learn from (sampled by the policy; in SFT the targets). Never the first.
      log_probabilities: Of those tokens under the policy that sampled them; not read elsewhere.
      advantage: Of the episode.
      reward: Of the episode; what a critic's advantages are estimated from.
    """

    tokens: Int[np.ndarray, " n"]
    by_policy: Bool[np.ndarray, " n"]
    log_probabilities: Float[np.ndarray, " n"]
    advantage: float = 0.0
    reward: float = 0.0


class Batch(flax.struct.PyTreeNode):
    """Packed micro-batches, the filled ones first; sizes are those of `Layout`.

    The fields are arrays of the shapes named below, on the host or the devices, or in the same structure
    (of one micro-batch: without `micro`) what JAX puts in their place: shardings, abstract shapes.

    Attributes:
      tokens: int32 [micro, rows, time]. The rows; 0 in padding.
      positions: int32 [micro, rows, time]. Of each token in its own episode.
      segments: int32 [micro, rows, time]. Which episode of the row a token belongs to, from 1; 0 is padding.
      sources: int32 [micro, rows, policy]. The places in the row from which the policy's tokens are *predicted*
        (one before each token).
      targets: int32 [micro, rows, policy]. The policy's tokens themselves, aligned with `sources`.
      index: int32 [micro, episodes, policy]. Of each episode's policy tokens, in order, into the flattened
        [rows, policy] of its micro-batch.
      mask: bool [micro, episodes, policy]. True where `index` names a policy token.
      sampling_log_probabilities: float32 [micro, episodes, policy]. Recorded when the tokens were sampled.
      advantages: float32 [micro, episodes]; [micro, episodes, policy] once a critic has estimated them.
      rewards: float32 [micro, episodes].
      reference_log_probabilities: float32 [micro, episodes, policy], or None. Of the reference policy, once
        scored (`lcrag.learning.make_score`).
      old_log_probabilities: Likewise, of the policy before it learns from this rollout.
      values: Likewise, what the critic expected before each token.
      returns: Likewise, what it is to expect there (`lcrag.learning.critic.estimated`).
    """

    tokens: Any
    positions: Any
    segments: Any
    sources: Any
    targets: Any
    index: Any
    mask: Any
    sampling_log_probabilities: Any
    advantages: Any
    rewards: Any
    reference_log_probabilities: Any = None
    old_log_probabilities: Any = None
    values: Any = None
    returns: Any = None


def _at_least(needed: int, smallest: int, growth: int) -> int:
    size = smallest
    while size < needed:
        size *= growth
    return size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The shapes a batch may have.

    Attributes:
      rows: Rows of a micro-batch (memory); a multiple of the devices that share the batch.
      row_lengths: Tokens of a row: the least that holds the longest episode is taken.
      policy_shares: Shares of the row length that the policy tokens of one row are padded to; each is a
        shape to compile, and unembedding is paid per policy position.
      least_micro_batches: Micro-batches of the smallest batch; empty ones cost no computation.
      least_episodes: Places for episodes in a micro-batch, at the least; an empty place costs a few scalars.
    """

    rows: int
    row_lengths: tuple[int, ...]
    policy_shares: tuple[float, ...] = POLICY_SHARES
    least_micro_batches: int = 1
    least_episodes: int = 1

    def __post_init__(self):
        if self.rows < 1 or not self.row_lengths or min(self.row_lengths) < 2:
            raise UserError(
                f"Layout(rows={self.rows}, row_lengths={self.row_lengths}) holds no episode: give at least one row "
                "and one row length of 2 tokens or more."
            )
        if self.least_micro_batches < 1:
            raise UserError(f"Layout.least_micro_batches is {self.least_micro_batches}: give it a value of 1 or more.")

    def row_length(self, needed: int) -> int:
        """Return the smallest row length of at least `needed` tokens."""
        fitting = [length for length in self.row_lengths if length >= needed]
        if not fitting:
            raise UserError(
                f"an episode has {needed} tokens but the longest training row (Layout.row_lengths) holds "
                f"{max(self.row_lengths)}: add a longer row length or lower the sampler's context."
            )
        return min(fitting)

    def policy_lengths(self, row_length: int) -> tuple[int, ...]:
        """Return the sizes that the policy tokens of a row of this length are padded to."""
        return tuple(int(np.ceil(share * row_length)) for share in self.policy_shares)

    def policy_length(self, row_length: int, needed: int) -> int:
        """Return the smallest of these sizes that holds `needed` policy tokens."""
        fitting = [length for length in self.policy_lengths(row_length) if length >= needed]
        if not fitting:
            raise UserError(
                f"the policy wrote {needed} of a training row's {row_length} tokens, but Layout.policy_shares is "
                f"{self.policy_shares}: add a larger share (1.0 always serves)."
            )
        return min(fitting)

    def micro_batches(self, needed: int) -> int:
        """Return the padded number of micro-batches, doubling from the least."""
        return _at_least(needed, self.least_micro_batches, 2)

    def episodes(self, needed: int) -> int:
        """Return the padded number of episodes of a micro-batch, growing fourfold from the least."""
        return _at_least(needed, max(self.rows, self.least_episodes), EPISODE_GROWTH)


def first_fit_decreasing(lengths: Int[np.ndarray, " n"], row_length: int) -> list[list[int]]:
    """Put items into rows, longest first, each into the first row with room (Johnson 1973: at most 11/9 of the best).

    Returns:
      For each row the numbers of its items; ties keep their order.
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


def _empty(micro: int, rows: int, time: int, episodes: int, policy: int) -> Batch:
    return Batch(
        **{name: np.zeros((micro, rows, time), np.int32) for name in ("tokens", "positions", "segments")},
        **{name: np.zeros((micro, rows, policy), np.int32) for name in ("sources", "targets")},
        index=np.zeros((micro, episodes, policy), np.int32),
        mask=np.zeros((micro, episodes, policy), bool),
        sampling_log_probabilities=np.zeros((micro, episodes, policy), np.float32),
        advantages=np.zeros((micro, episodes), np.float32),
        rewards=np.zeros((micro, episodes), np.float32),
    )


def largest_batch(layout: Layout) -> Batch:
    """Return an empty batch of the largest micro-batches that a layout allows: what the update must hold at most."""
    time = max(layout.row_lengths)
    policy = max(layout.policy_lengths(time))
    return _empty(layout.least_micro_batches, layout.rows, time, layout.episodes(layout.rows), policy)


def _fill_row(batch: Batch, micro: int, row: int, first_episode: int, members: Sequence[Trajectory]) -> None:
    """Write the episodes of one row into (NumPy) `batch`, their scalars from `first_episode` on."""
    start = used = 0
    for number, member in enumerate(members):
        here = slice(start, start + len(member.tokens))
        chosen = np.flatnonzero(member.by_policy)
        batch.tokens[micro, row, here] = member.tokens
        batch.positions[micro, row, here] = np.arange(len(member.tokens))
        batch.segments[micro, row, here] = number + 1
        batch.sources[micro, row, used : used + len(chosen)] = start + chosen - 1
        batch.targets[micro, row, used : used + len(chosen)] = member.tokens[chosen]

        place = micro, first_episode + number, slice(len(chosen))
        batch.index[place] = row * batch.sources.shape[-1] + used + np.arange(len(chosen))
        batch.mask[place] = True
        batch.sampling_log_probabilities[place] = member.log_probabilities[chosen]
        batch.advantages[micro, first_episode + number] = member.advantage
        batch.rewards[micro, first_episode + number] = member.reward
        start, used = here.stop, used + len(chosen)


def pack(trajectories: Sequence[Trajectory], layout: Layout) -> Batch:
    """Pack trajectories into one batch (host, NumPy): one call of the update, in as many micro-batches as it takes.

    For several updates per rollout (PPO's mini-batches) pack each part of the trajectories by itself.

    Raises:
      UserError: No trajectories; one longer than the longest row; one that begins with a policy token.
    """
    if not trajectories:
        raise UserError("there is no trajectory to learn from: ask for at least one question and one sample a step.")
    for number, trajectory in enumerate(trajectories):
        if trajectory.by_policy[0]:
            raise UserError(
                f"trajectory {number} begins with a token of the policy, which nothing predicts: "
                "begin its episode with a prompt."
            )
    lengths = np.array([len(trajectory.tokens) for trajectory in trajectories])
    row_length = layout.row_length(int(lengths.max()))
    rows = [[trajectories[item] for item in row] for row in first_fit_decreasing(lengths, row_length)]
    micro_batches = [rows[start : start + layout.rows] for start in range(0, len(rows), layout.rows)]
    policy_tokens = max(sum(int(member.by_policy.sum()) for member in row) for row in rows)
    batch = _empty(
        layout.micro_batches(len(micro_batches)),
        layout.rows,
        row_length,
        layout.episodes(max(sum(map(len, micro_batch)) for micro_batch in micro_batches)),
        layout.policy_length(row_length, policy_tokens),
    )
    for micro, micro_batch in enumerate(micro_batches):
        first_episode = 0
        for row, members in enumerate(micro_batch):
            _fill_row(batch, micro, row, first_episode, members)
            first_episode += len(members)
    return batch

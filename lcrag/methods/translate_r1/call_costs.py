"""Any reward with the cost of tool calls: the kernels of `costs`, for a batch of episodes in any order."""

import dataclasses

import numpy as np
from jaxtyping import Int

from lcrag.errors import UserError
from lcrag.methods.translate_r1.cost_adjustment import METHODS, cost_adjusted_rewards
from lcrag.rewards.terms import Episodes, TermSum, Values


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostOfCalls:
    """Adjusts the total rewards of each group by what its tool calls cost; see `cost_adjusted_rewards`.

    Episodes of a group may stand anywhere in a batch, and groups may differ in size. Named are "task", the total as it
    was, "cost", what is added to it, and "cost_fired", whether anything was added in the episode's group: its mean is
    the share of groups in which the cost was felt, for "gated" the share in which the gate was open.

    Attributes:
      method: One of `METHODS`.
      strength: Of the cost.
      minimum_native_correct: Correct samples without a call that open the gate.
      correct_threshold: Total reward from which a sample counts as correct (0.5 where rewards are graded).

    Raises:
      UserError: there is no such method, the strength is negative, or the gate would always be open.
    """

    method: str
    strength: float
    minimum_native_correct: int
    correct_threshold: float

    def __post_init__(self):
        if self.method not in METHODS:
            raise UserError(f"no cost of calls is called {self.method!r}: choose one of {', '.join(METHODS)}")
        if self.strength < 0:
            raise UserError(f"cost.strength is {self.strength}: calls cost 0 or more")
        if self.minimum_native_correct < 1:
            raise UserError(
                f"cost.minimum_native_correct is {self.minimum_native_correct}: the gate needs 1 sample or more"
            )

    def check_group(self, samples: int) -> None:
        """Refuses groups in which the gate could not open.

        Raises:
          UserError: they have too few samples.
        """
        if self.method == "gated" and samples < self.minimum_native_correct:
            raise UserError(
                f"cost.minimum_native_correct is {self.minimum_native_correct}, but groups have {samples} samples, so"
                " the gate would never open: lower it, or raise Method.samples"
            )

    def __call__(self, episodes: Episodes, total: Values) -> tuple[Values, dict[str, Values]]:
        calls = _calls(episodes)
        row, column = _places(np.asarray(episodes.group_ids))
        shape = (row.max(initial=-1) + 1, column.max(initial=-1) + 1)
        if shape[0]:
            self.check_group(int(shape[1]))
        rewards, counted, correct = np.zeros(shape), np.zeros(shape, int), np.zeros(shape, bool)
        rewards[row, column], counted[row, column] = total, calls
        correct[row, column] = total >= self.correct_threshold
        adjusted = cost_adjusted_rewards(
            rewards, counted, correct, self.method, self.strength, self.minimum_native_correct
        )
        costs = np.asarray(adjusted, np.float64) - rewards.astype(np.float32)
        fired = (costs != 0).any(axis=-1)
        added = costs[row, column]
        return total + added, {"task": total, "cost": added, "cost_fired": fired[row].astype(float)}


def cost(
    reward: TermSum,
    method: str = "gated",
    strength: float = 0.1,
    minimum_native_correct: int = 6,
    correct_threshold: float = 0.5,
) -> TermSum:
    """Another reward, and what calls of a tool cost (Translate-R1, section 4.3).

    Args:
      reward: The task's.
      method: "none" (a free tool), "flat", "otc", "group_relative" (ungated) or "gated".
      strength: alpha of "flat", lambda of "group_relative" and "gated".
      minimum_native_correct: k, the correct samples without a call that open the gate (the paper: 6 of 8).
      correct_threshold: Task reward from which a sample counts as correct.

    Returns:
      The other reward with one more adjustment, behind its own. It raises a `UserError` where an episode does not say
      how often it called a tool.

    Raises:
      UserError: as `CostOfCalls`.
    """
    costs = CostOfCalls(
        method=method,
        strength=strength,
        minimum_native_correct=minimum_native_correct,
        correct_threshold=correct_threshold,
    )
    return dataclasses.replace(
        reward,
        adjustments=(*reward.adjustments, costs),
        group_checks=(*reward.group_checks, costs.check_group),
    )


def _calls(episodes: Episodes) -> Int[np.ndarray, " episodes"]:
    if len(episodes.extra) != len(episodes.answers) or not all("tool_calls" in extra for extra in episodes.extra):
        raise UserError(
            "cost needs to know tool_calls of each episode, which another program does not say: bind Method.program ="
            " @translate_r1"
        )
    return np.array([extra["tool_calls"] for extra in episodes.extra], int)


def _places(
    group_ids: Int[np.ndarray, " episodes"],
) -> tuple[Int[np.ndarray, " episodes"], Int[np.ndarray, " episodes"]]:
    """Each episode's row, which is its group, and its column there."""
    _, rows, sizes = np.unique(group_ids, return_inverse=True, return_counts=True)
    order = np.argsort(rows, kind="stable")
    columns = np.empty(len(rows), int)
    columns[order] = np.concatenate([np.arange(size) for size in sizes]) if len(sizes) else 0
    return rows, columns

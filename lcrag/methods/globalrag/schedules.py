"""How a term's weight changes over the steps."""

from scipy.special import expit

from lcrag.errors import UserError
from lcrag.rewards.terms import Schedule

WIDTH_STEPS = 10.0
TURNING_SHARE = 0.9


def annealed(weight: float, transition_steps: float | None) -> float | Schedule:
    """weight / (1 + exp((t - 0.9 T) / 10)) at step t: from the weight to nothing, half of it at 0.9 T.

    Paper: GlobalRAG, section 3.2.5, equation 6.

    Args:
      weight: At the beginning.
      transition_steps: T; None: the weight stays.

    Raises:
      UserError: T is 0 or less.
    """
    if transition_steps is None:
        return weight
    if transition_steps <= 0:
        raise UserError(
            f"the plan rewards are annealed over {transition_steps:g} steps: give 1 or more, or None for never"
        )
    turn = TURNING_SHARE * transition_steps
    return lambda step: weight * float(expit((turn - step) / WIDTH_STEPS))

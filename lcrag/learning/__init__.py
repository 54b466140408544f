"""Learning: advantages, losses, packing, updates, checkpoints and the learners built from them.

`lcrag.learning.learners` (`Learner`, `SupervisedLearner`) and `lcrag.learning.checkpoints` are imported separately,
because importing Orbax takes seconds.
"""

from lcrag.learning.critic import Critic
from lcrag.learning.losses import (
    PolicyGradient,
    Supervised,
    generalized_advantages,
    group_advantages,
    policy_gradient_loss,
)
from lcrag.learning.sequence_packing import Batch, Layout, Trajectory, largest_batch, pack
from lcrag.learning.update import (
    Optimizer,
    TrainState,
    adamw,
    batch_shardings,
    initial_state,
    make_score,
    make_update,
    state_shardings,
)

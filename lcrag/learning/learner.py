"""How a policy learns from rollouts: the decoder's functions, an objective and an optimizer over a mesh."""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from lcrag.learning import (
    ActorCriticState,
    Batch,
    Critic,
    Layout,
    Optimizer,
    PolicyGradient,
    TrainState,
    Trajectory,
    estimated,
    initial_state,
    make_score,
    make_update,
    pack,
)
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.update import Hidden, Unembed, Update
from lcrag.learning.value_learner import ValueLearner
from lcrag.policy import (
    DecoderConfig,
    Policy,
    hidden_states,
    join,
    param_shardings,
    split_trainable,
    unembed_log_probabilities,
)
from lcrag.policy.fingerprint import parameter_fingerprint

# Of several updates, the last one's; of all other metrics, the mean.
COUNTS = ("update/", "critic/skipped")


def decoder_functions(config: DecoderConfig, mesh: Mesh) -> tuple[Hidden, Unembed]:
    """The two functions that learning knows a decoder by, laid out on a mesh."""
    hidden = functools.partial(hidden_states, config, mesh=mesh)
    return hidden, functools.partial(unembed_log_probabilities, config, mesh=mesh)


def policy_update(
    config: DecoderConfig, mesh: Mesh, objective: PolicyGradient, optimizer: Optimizer, temperature: float
) -> Update:
    """The update that training runs, and that `lcrag compile` compiles."""
    hidden, unembed = decoder_functions(config, mesh)
    shardings, _ = split_trainable(config, param_shardings(config, mesh))
    return make_update(
        hidden, unembed, objective, optimizer, temperature=temperature, mesh=mesh, param_shardings=shardings
    )


def needs_reference(objective: PolicyGradient, critic: Critic | None) -> bool:
    """Whether learning asks how probable the policy's tokens were to the policy that the run started from."""
    return bool(objective.kl_coefficient or (critic is not None and critic.kl_in_reward))


class Learner:
    """A policy's train state, and its critic's where it has one.

    Args:
      policy: Where to start; its parameters are given away.
      objective: Policy-gradient loss.
      optimizer: The policy's.
      layout: Shapes of training rows.
      temperature: The sampling temperature, above 0.
      critic: Estimates the advantages (PPO); None: the trajectories bring theirs.
      parts: Mini-batches that a rollout is cut into, one update each; at most as many as it has episodes.
      passes: How often a rollout is learned from.
    """

    def __init__(
        self,
        policy: Policy,
        objective: PolicyGradient,
        optimizer: Optimizer,
        layout: Layout,
        temperature: float,
        critic: Critic | None = None,
        *,
        parts: int = 1,
        passes: int = 1,
    ):
        config, mesh = policy.config, policy.mesh
        self._layout, self._parts, self._passes = layout, parts, passes
        params, self._frozen = split_trainable(config, policy.params)
        self.base = parameter_fingerprint(self._frozen) if self._frozen else None
        self._settings, self._critic = critic, None if critic is None else ValueLearner(policy, critic)
        score = make_score(*decoder_functions(config, mesh), mesh, temperature)
        self._score = functools.partial(score, frozen=self._frozen)
        self._scores_old = objective.importance_cap is not None and parts * passes > 1
        shardings, _ = split_trainable(config, param_shardings(config, mesh))
        self._reference = None
        if needs_reference(objective, critic):
            self._reference = params
            # the update gives its state's memory away, and the reference's parameters are still wanted
            copy = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 0, tree), out_shardings=shardings)
            params = copy(params)
        self._update = policy_update(config, mesh, objective, optimizer, temperature)
        self._policy: TrainState = initial_state(params, optimizer, mesh, shardings)

    @property
    def state(self) -> TrainState:
        """All that a checkpoint holds."""
        return self._policy if self._critic is None else ActorCriticState.of(self._policy, self._critic.state)

    @property
    def params(self):
        """All parameters of the policy as they are now, frozen ones included."""
        return join(self._policy.params, self._frozen)

    def restore(self, checkpoints: Checkpoints) -> int:
        """Continues from the latest checkpoint if there is one; returns the first step to do."""
        step, restored = checkpoints.continue_from(self.state)
        if self._critic is None:
            self._policy = restored
        else:
            self._policy, self._critic.state = restored.policy, restored.critic
        return step

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Updates the policy, and its critic, with the episodes of one rollout; returns what was measured.

        With several updates, means over them, but of counts and whether updates were finite the last; and
        "sampling_training_gap" the first, because later ones are off-policy by design.
        """
        parts = max(1, min(self._parts, len(trajectories)))
        batches = [self._scored(pack(trajectories[part::parts], self._layout)) for part in range(parts)]
        estimates: dict[str, float] = {}
        if self._settings is not None:
            batches, estimates = estimated(batches, self._settings)
        measured = [self._updated(batch) for _ in range(self._passes) for batch in batches]
        means = {name: float(np.mean([each[name] for each in measured])) for name in measured[0]}
        counts = {name: value for name, value in measured[-1].items() if name.startswith(COUNTS)}
        return means | counts | {"sampling_training_gap": measured[0]["sampling_training_gap"]} | estimates

    def _scored(self, batch: Batch) -> Batch:
        """The batch with what the policies and the critic of before its updates say of it."""
        scores = {}
        if self._reference is not None:
            scores["reference_log_probabilities"] = self._score(self._reference, batch)
        if self._scores_old:
            scores["old_log_probabilities"] = self._score(self._policy.params, batch)
        if self._critic is not None:
            scores["values"] = self._critic.values(batch)
        return batch.replace(**jax.device_get(scores))

    def _updated(self, batch: Batch) -> dict[str, float]:
        with jax.transfer_guard("disallow"):
            self._policy, metrics = self._update(self._policy, batch, self._frozen)
            found = {name: float(value) for name, value in jax.device_get(metrics).items()}
            if self._critic is None:
                return found
            of_critic = self._critic.learn(batch)
        worse = max(found["update/non_finite_in_a_row"], of_critic.pop("update/non_finite_in_a_row"))
        return found | of_critic | {"update/non_finite_in_a_row": worse}

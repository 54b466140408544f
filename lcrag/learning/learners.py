"""Learners: how a policy learns from rollouts (`Learner`) and from demonstrations (`SupervisedLearner`)."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, PyTree

from lcrag.errors import UserError
from lcrag.learning.checkpoints import Checkpoints, abstract_state
from lcrag.learning.critic import (
    ActorCriticState,
    Critic,
    estimate_advantages,
    split_value,
    value_functions,
    value_model_of,
    value_shardings,
    value_update,
)
from lcrag.learning.losses import PolicyGradient, Supervised
from lcrag.learning.sequence_packing import Batch, Layout, Trajectory, pack
from lcrag.learning.update import (
    Hidden,
    Optimizer,
    TrainState,
    Unembed,
    Update,
    batch_shares,
    initial_state,
    make_score,
    make_update,
)
from lcrag.policy import (
    DecoderConfig,
    Policy,
    compute_parameters,
    hidden_states,
    join,
    param_shardings,
    parameter_fingerprint,
    split_trainable,
    unembed_log_probabilities,
)

# Metrics reported from the last of several updates; all others are means over the updates.
COUNTS = ("update/", "critic/skipped")
CRITIC_NAMES = {name: f"critic/{name.split('/')[-1]}" for name in ("gradient_norm", "learning_rate", "update/skipped")}


@functools.lru_cache(maxsize=32)
def decoder_functions(config: DecoderConfig, mesh: Mesh) -> tuple[Hidden, Unembed]:
    """Return the two functions of a decoder that learning needs."""
    hidden = functools.partial(hidden_states, config, mesh=mesh)
    return hidden, functools.partial(unembed_log_probabilities, config, mesh=mesh)


@functools.lru_cache(maxsize=32)
def policy_update(
    config: DecoderConfig,
    mesh: Mesh,
    objective: PolicyGradient | Supervised,
    optimizer: Optimizer,
    temperature: float = 1.0,
) -> Update:
    """Build the update of a policy, for training and `lcrag compile`; equal settings share a compiled update."""
    shardings, _ = split_trainable(config, param_shardings(config, mesh))
    settings = {"temperature": temperature, "mesh": mesh, "param_shardings": shardings}
    return make_update(*decoder_functions(config, mesh), objective, optimizer, **settings)


def frozen_fingerprint(policy: Policy) -> str | None:
    """Return the fingerprint of the policy's frozen parameters, or None if all are learned."""
    _, frozen = split_trainable(policy.config, policy.params)
    return parameter_fingerprint(frozen) if frozen else None


def packed(trajectories: Sequence[Trajectory], layout: Layout, shares: int) -> Batch:
    """Pack trajectories into as many micro-batches as so many can need, so that steps share a compiled update.

    Empty ones are skipped.
    """
    most = layout.micro_batches(-(-len(trajectories) // layout.rows))
    return pack(trajectories, dataclasses.replace(layout, min_micro_batches=most), shares)


def needs_reference(objective: PolicyGradient, critic: Critic | None) -> bool:
    """Return whether learning needs log-probabilities of the reference, the policy that the run started from."""
    return bool(objective.kl_coefficient or (critic is not None and critic.kl_in_reward))


@dataclasses.dataclass
class TrainedModel:
    """A model in training: its train state, its frozen parameters, and the compiled functions that read both."""

    state: TrainState
    frozen: PyTree
    scores: Callable[..., jax.Array]
    update: Update

    @classmethod
    def of_policy(
        cls, policy: Policy, objective: PolicyGradient | Supervised, optimizer: Optimizer, temperature: float = 1.0
    ) -> "TrainedModel":
        """Begin training a policy; the first update donates its trained parameters."""
        config, mesh = policy.config, policy.mesh
        params, frozen = split_trainable(config, policy.params)
        shardings, _ = split_trainable(config, param_shardings(config, mesh))
        state = initial_state(params, optimizer, mesh, shardings)
        scores = make_score(*decoder_functions(config, mesh), mesh, temperature)
        return cls(state, frozen, scores, policy_update(config, mesh, objective, optimizer, temperature))

    @property
    def params(self) -> PyTree:
        """All current parameters, frozen ones included."""
        return join(self.state.params, self.frozen)

    def score(self, batch: Batch, params: PyTree = None) -> Float[jax.Array, "micro episodes own"]:
        """Score the policy tokens of a batch, by default with the current parameters."""
        return self.scores(self.state.params if params is None else params, batch, self.frozen)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Make one update and return its metrics."""
        with jax.transfer_guard("disallow"):
            self.state, metrics = self.update(self.state, batch, self.frozen)
            return {name: float(value) for name, value in jax.device_get(metrics).items()}


class Learner:
    """Learns from rollouts: holds the train state of a policy and, with PPO, of its critic.

    Args:
      policy: The initial policy; its parameters are donated.
      temperature: The sampling temperature, with which learning compares that of every trajectory.
      critic: Estimates the advantages (PPO); None: the trajectories contain them.
      parts: Mini-batches of a rollout, one update each; at most as many as it has episodes.
      passes: Number of passes over a rollout.

    Attributes:
      policy_version: The number of rollouts learned from so far, with which learning compares that of trajectories.
    """

    def __init__(
        self,
        policy: Policy,
        objective: PolicyGradient,
        optimizer: Optimizer,
        layout: Layout,
        temperature: float = 1.0,
        critic: Critic | None = None,
        *,
        parts: int = 1,
        passes: int = 1,
    ):
        config, mesh = policy.config, policy.mesh
        self._layout, self._shares = layout, batch_shares(mesh)
        self._parts, self._passes, self._settings = parts, passes, critic
        self.policy_version, self._temperature = 0, temperature
        self._takes_older = objective.importance_cap is not None
        self._scores_old = objective.rescores_old_policy and parts * passes > 1
        self._critic = self._reference = None
        if critic is not None:  # its decoder starts as a copy of the policy's
            value_params, value_frozen = value_model_of(config, policy.params, mesh)
            shardings, _ = split_value(config, value_shardings(config, mesh))
            value_state = initial_state(value_params, critic.optimizer, mesh, shardings)
            value_scores = make_score(*value_functions(config, mesh), mesh)
            self._critic = TrainedModel(value_state, value_frozen, value_scores, value_update(config, mesh, critic))
        if needs_reference(objective, critic):
            # A copy because the update donates its state, in the compute dtype because that takes less memory.
            shardings, _ = split_trainable(config, param_shardings(config, mesh))
            copy = lambda tree: compute_parameters(config, jax.tree.map(lambda leaf: leaf + 0, tree))  # noqa: E731
            self._reference = jax.jit(copy, out_shardings=shardings)(split_trainable(config, policy.params)[0])
        self._policy = TrainedModel.of_policy(policy, objective, optimizer, temperature)

    @property
    def state(self) -> TrainState:
        """The content of a checkpoint."""
        state = self._policy.state
        return state if self._critic is None else ActorCriticState(**vars(state), critic=self._critic.state)

    @state.setter
    def state(self, state: TrainState) -> None:
        if self._critic is not None and isinstance(state, ActorCriticState):
            self._critic.state, state = state.critic, state.policy
        self._policy.state = state

    @property
    def params(self) -> PyTree:
        """All current parameters of the policy, frozen ones included."""
        return self._policy.params

    def restore(self, checkpoints: Checkpoints) -> int:
        """Continue from the latest intact checkpoint if there is one; return the first step to do."""
        self.policy_version, self.state = checkpoints.continue_from(self.state)
        return self.policy_version

    def learn(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Update the policy and its critic with the episodes of one rollout; return the metrics.

        Metrics are means over the updates, except counts, which are those of the last update, and
        "sampling_training_gap", which is that of the first, because later ones are off-policy by design.
        "packing/filled" is the share of the computed positions that held a token.

        Raises:
          UserError: A trajectory was sampled by another version of the policy, which only an objective with an
            `importance_cap` corrects for, or at another temperature.
        """
        sampled_by = [trajectory.policy_version for trajectory in trajectories if trajectory.policy_version is not None]
        versions = set(sampled_by) - {self.policy_version}
        if versions and not self._takes_older:
            raise UserError(
                f"an episode was sampled by version {min(versions)} of the policy, but version {self.policy_version}"
                " would learn from it: hand over the parameters after every update (sampler.set_params(learner.params,"
                " learner.policy_version)), or set PolicyGradient.importance_cap, which corrects for the difference"
            )
        if temperatures := {t for trajectory in trajectories for t in trajectory.temperatures} - {self._temperature}:
            raise UserError(
                f"an episode was sampled at the temperature {min(temperatures):g}, but the loss is computed at"
                f" {self._temperature:g}: give Runner and Learner one temperature"
            )

        # the scores that the policy, the reference and the critic give before the rollout's updates
        parts = max(1, min(self._parts, len(trajectories)))
        batches = []
        for part in range(parts):
            batch = packed(trajectories[part::parts], self._layout, self._shares)
            scores = {}
            if self._reference is not None:
                scores["reference_log_probabilities"] = self._policy.score(batch, self._reference)
            if self._scores_old:
                scores["old_log_probabilities"] = self._policy.score(batch)
            if self._critic is not None:
                scores["values"] = self._critic.score(batch)
            batches.append(batch.replace(**jax.device_get(scores)))
        estimates: dict[str, float] = {}
        if self._settings is not None:
            batches, estimates = estimate_advantages(batches, self._settings)

        # the updates
        measured = []
        for batch in batches * self._passes:
            metrics = self._policy.learn(batch)
            if self._critic is not None:
                of_critic = {CRITIC_NAMES.get(name, name): value for name, value in self._critic.learn(batch).items()}
                worse = max(half["update/non_finite_in_a_row"] for half in (metrics, of_critic))
                metrics = metrics | of_critic | {"update/non_finite_in_a_row": worse}
            measured.append(metrics)
        self.policy_version += 1
        means = {name: float(np.mean([update[name] for update in measured])) for name in measured[0]}
        counts = {name: value for name, value in measured[-1].items() if name.startswith(COUNTS)}
        gap, filled = measured[0]["sampling_training_gap"], float(np.mean([batch.filled for batch in batches]))
        return means | counts | {"sampling_training_gap": gap, "packing/filled": filled} | estimates


class SupervisedLearner:
    """Learns from demonstrations: holds a policy's train state, and computes validation losses.

    The parameters of the initial policy are donated; the `steps` of the optimizer count updates.
    """

    def __init__(self, policy: Policy, objective: Supervised, optimizer: Optimizer, layout: Layout):
        self._layout, self._shares, self._aggregation = layout, batch_shares(policy.mesh), objective.aggregation
        self._policy = TrainedModel.of_policy(policy, objective, optimizer)

    @property
    def state(self) -> TrainState:
        """The content of a checkpoint."""
        return self._policy.state

    @property
    def params(self) -> PyTree:
        """All current parameters, frozen ones included."""
        return self._policy.params

    def restore(self, checkpoints: Checkpoints) -> int:
        """Continue from the latest intact checkpoint if there is one; return the first step to do."""
        step, self._policy.state = checkpoints.continue_from(self.state)
        return step

    def take_best(self, checkpoints: Checkpoints) -> int:
        """Replace the parameters by those of the intact checkpoint with the lowest validation loss; return its step."""
        wanted = abstract_state(self.state.params)
        jax.tree.map(lambda leaf: leaf.delete(), self.state.params)
        step, params = checkpoints.restore_params(wanted, best=True)
        self._policy.state = self.state.replace(params=params)
        return step

    def learn(self, rows: Sequence[Trajectory]) -> dict[str, float]:
        """Make one update and return its metrics."""
        batch = packed(rows, self._layout, self._shares)
        return self._policy.learn(batch) | {"packing/filled": batch.filled}

    def loss(self, rows: Sequence[Trajectory], rows_per_batch: int) -> float:
        """Compute the supervised loss of all rows together, in nats, as the objective aggregates it."""
        total, count = 0.0, 0
        for start in range(0, len(rows), rows_per_batch):
            batch = packed(rows[start : start + rows_per_batch], self._layout, self._shares)
            with jax.transfer_guard("disallow"):
                scores = jax.device_get(self._policy.score(batch))
            mask = np.asarray(batch.mask)
            losses, tokens = -np.where(mask, scores, 0.0).sum(axis=-1, dtype=np.float64), mask.sum(axis=-1)
            if self._aggregation == "sequence_mean":
                losses, tokens = losses / np.maximum(tokens, 1), tokens > 0
            total, count = total + float(losses.sum()), count + int(tokens.sum())
        return total / count

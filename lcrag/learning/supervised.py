"""How a policy imitates demonstrations: updates on packed rows, and the loss on rows that it does not learn from."""

from collections.abc import Sequence

import jax
import numpy as np

from lcrag.learning import (
    Batch,
    Layout,
    Optimizer,
    Supervised,
    TrainState,
    Trajectory,
    initial_state,
    make_score,
    make_update,
    pack,
)
from lcrag.learning.checkpoints import Checkpoints, abstract_state
from lcrag.learning.learner import decoder_functions
from lcrag.policy import Policy, join, param_shardings, split_trainable
from lcrag.policy.fingerprint import parameter_fingerprint


class SupervisedLearner:
    """A policy's train state, and the functions that change and judge it.

    Args:
      policy: Where to start; its parameters are given away.
      objective: Supervised loss.
      optimizer: Its `steps` count updates.
      layout: Shapes of training rows.
    """

    def __init__(self, policy: Policy, objective: Supervised, optimizer: Optimizer, layout: Layout):
        config, mesh = policy.config, policy.mesh
        self._layout, self._aggregation = layout, objective.aggregation
        params, self._frozen = split_trainable(config, policy.params)
        self.base = parameter_fingerprint(self._frozen) if self._frozen else None
        shardings, _ = split_trainable(config, param_shardings(config, mesh))
        functions = decoder_functions(config, mesh)
        self._update = make_update(*functions, objective, optimizer, mesh=mesh, param_shardings=shardings)
        self._score = make_score(*functions, mesh)
        self.state: TrainState = initial_state(params, optimizer, mesh, shardings)

    @property
    def params(self):
        """All parameters as they are now, frozen ones included."""
        return join(self.state.params, self._frozen)

    def restore(self, checkpoints: Checkpoints) -> int:
        """Continues from the latest checkpoint if there is one; returns the first step to do."""
        step, self.state = checkpoints.continue_from(self.state)
        return step

    def take_best(self, checkpoints: Checkpoints) -> int:
        """Replaces the parameters by those of the lowest validation loss; returns their step."""
        step = checkpoints.best_step()
        assert step is not None, "the last step is always validated and saved"
        checkpoints.wait()
        wanted = abstract_state(self.state.params)
        jax.tree.map(lambda leaf: leaf.delete(), self.state.params)
        self.state = self.state.replace(params=checkpoints.restore_params(wanted, step))
        return step

    def learn(self, rows: Sequence[Trajectory]) -> dict[str, float]:
        """One update; returns what was measured."""
        batch = pack(rows, self._layout)
        with jax.transfer_guard("disallow"):
            self.state, metrics = self._update(self.state, batch, self._frozen)
            measured = {name: float(value) for name, value in jax.device_get(metrics).items()}
        return measured | {"packing/filled": filled(batch)}

    def loss(self, rows: Sequence[Trajectory], rows_per_batch: int) -> float:
        """The supervised loss of all rows together, in nats, as the objective aggregates it."""
        total, count = 0.0, 0
        for start in range(0, len(rows), rows_per_batch):
            batch = pack(rows[start : start + rows_per_batch], self._layout)
            with jax.transfer_guard("disallow"):
                scores = jax.device_get(self._score(self.state.params, batch, self._frozen))
            more_total, more_count = summed(scores, batch.mask, self._aggregation)
            total, count = total + more_total, count + more_count
        return total / count


def filled(batch: Batch) -> float:
    """The share of a batch's row positions that hold a token, micro-batches without any left out."""
    used = batch.segments > 0
    return float(used[used.any(axis=(1, 2))].mean())


def summed(scores: np.ndarray, mask: np.ndarray, aggregation: str) -> tuple[float, int]:
    """The sum that an aggregation divides, and what it divides by, of log-probabilities [micro, episodes, time]."""
    losses = -np.where(mask, scores, 0.0).sum(axis=-1, dtype=np.float64)
    tokens = mask.sum(axis=-1)
    if aggregation == "token_mean":
        return float(losses.sum()), int(tokens.sum())
    return float((losses / np.maximum(tokens, 1)).sum()), int((tokens > 0).sum())

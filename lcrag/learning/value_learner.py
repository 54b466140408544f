"""How a critic learns: the value model's functions and its own optimizer over the policy's mesh."""

import functools

import jax
from jax.sharding import Mesh

from lcrag.learning import Batch, Critic, TrainState, initial_state, make_score, make_update
from lcrag.learning.update import Hidden, Unembed, Update
from lcrag.policy import DecoderConfig, Policy, hidden_states
from lcrag.policy.value_model import split_value, value_config, value_model_of, value_shardings, values


def value_functions(config: DecoderConfig, mesh: Mesh) -> tuple[Hidden, Unembed]:
    """The two functions that learning knows a value model by, laid out on a mesh; `config` is the policy's."""
    hidden = functools.partial(hidden_states, value_config(config), mesh=mesh)
    return hidden, lambda params, states, targets, temperature: (values(params, states), None)


def value_update(config: DecoderConfig, mesh: Mesh, critic: Critic) -> Update:
    """The update of a critic that training runs, and that `lcrag compile` compiles; `config` is the policy's."""
    shardings, _ = split_value(config, value_shardings(config, mesh))
    functions = value_functions(config, mesh)
    return make_update(*functions, critic.objective, critic.optimizer, mesh=mesh, param_shardings=shardings)


class ValueLearner:
    """A value model that began as the policy.

    Attributes:
      state: Its train state.
    """

    state: TrainState

    def __init__(self, policy: Policy, critic: Critic):
        config, mesh = policy.config, policy.mesh
        params, self._frozen = value_model_of(config, policy.params, mesh)
        shardings, _ = split_value(config, value_shardings(config, mesh))
        self.state = initial_state(params, critic.optimizer, mesh, shardings)
        self._update = value_update(config, mesh, critic)
        self._score = make_score(*value_functions(config, mesh), mesh)

    def values(self, batch: Batch) -> jax.Array:
        """What it expects before every policy token of a batch, [micro, episodes, policy]."""
        return self._score(self.state.params, batch, self._frozen)

    def learn(self, batch: Batch) -> dict[str, float]:
        """One update; returns what was measured, of the optimizer under "critic/"."""
        self.state, metrics = self._update(self.state, batch, self._frozen)
        return {_name(name): float(value) for name, value in jax.device_get(metrics).items()}


def _name(name: str) -> str:
    shared = {"gradient_norm": "critic/gradient_norm", "learning_rate": "critic/learning_rate"}
    return (shared | {"update/skipped": "critic/skipped"}).get(name, name)

"""The update of a policy: the decoder's functions, an objective and an optimizer over a mesh."""

import functools

from jax.sharding import Mesh

from lcrag.learning import Optimizer, PolicyGradient, make_update
from lcrag.learning.update import Hidden, Unembed, Update
from lcrag.policy import DecoderConfig, hidden_states, param_shardings, split_trainable, unembed_log_probabilities


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

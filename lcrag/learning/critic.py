"""PPO's critic: settings, the value model, and the advantages and returns of a rollout.

The value model is the policy's body with a scalar head in place of the unembedding. Its parameters are those of the
decoder without an unembedding, plus `value_head`; the decoder's functions (`hidden_states`, `param_shardings`) apply to
its body with the configuration `value_config`.

Arrays are over the policy's own tokens, in the layout of a `Batch`: environment tokens are not steps of the decision
process, and have no value and no loss.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from lcrag.errors import NotNegative, Positive, Share, typed
from lcrag.learning.losses import ValueRegression, generalized_advantages, kl_k1
from lcrag.learning.sequence_packing import Batch
from lcrag.learning.update import Hidden, Optimizer, TrainState, Unembed, Update, make_update
from lcrag.policy import (
    AnyMesh,
    DecoderConfig,
    abstract_parameters,
    hidden_states,
    logical_sharding,
    param_shardings,
    split_trainable,
)
from lcrag.policy.parameters import Params

HEAD = "value_head"


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Critic:
    """Settings of PPO's value model, whose advantages replace the group-relative ones."""

    optimizer: Optimizer  # of the value model
    discount: Share = 1.0  # gamma of `generalized_advantages`, per policy token
    trace: Share = 1.0  # lambda
    value_clip: Positive | None = 0.5  # largest change of a value since the rollout that still lowers the loss
    kl_in_reward: NotNegative = 0.0  # weight of the KL to the policy that the run started from, in every token's reward
    whiten: bool = True  # whether the advantages of a rollout get mean 0 and standard deviation 1

    def with_updates(self, updates: int, steps: int) -> "Critic":
        """Return the critic for a run with `updates` updates per step; see `Optimizer`."""
        return dataclasses.replace(self, optimizer=self.optimizer.with_updates(updates, steps))


def value_config(config: DecoderConfig) -> DecoderConfig:
    """Returns the configuration of the value model's body, which has no unembedding."""
    return dataclasses.replace(config, tie_embeddings=True)


def values(params: Params, hidden: Float[Array, "*axes width"]) -> Float[Array, "*axes"]:
    """Computes float32 values of contexts from the final hidden state of their last token."""
    head = params[HEAD]
    return (hidden.astype(jnp.float32) @ head["kernel"] + head["bias"])[..., 0]


def abstract_value_parameters(config: DecoderConfig) -> Params:
    """Returns shapes and dtypes of the value model's parameters; `config` is the policy's."""
    head = {"kernel": (config.width, 1), "bias": (1,)}
    shapes = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in head.items()}
    return abstract_parameters(value_config(config)) | {HEAD: shapes}


def value_shardings(config: DecoderConfig, mesh: AnyMesh) -> PyTree:
    """Returns a NamedSharding for every parameter of the value model; `config` is the policy's."""
    head = {"kernel": logical_sharding(mesh, "embed", None), "bias": logical_sharding(mesh, None)}
    return param_shardings(value_config(config), mesh) | {HEAD: head}


def split_value(config: DecoderConfig, tree: PyTree) -> tuple[PyTree, PyTree]:
    """Splits a tree of the value model's structure into (trained, frozen); `config` is the policy's.

    With adapters, only these and the head are trained.
    """
    body = {name: leaf for name, leaf in tree.items() if name != HEAD}
    trained, frozen = split_trainable(config, body)
    return trained | {HEAD: tree[HEAD]}, frozen


def value_model_of(config: DecoderConfig, params: Params, mesh: Mesh) -> tuple[Params, Params]:
    """Initialises a value model from a policy; returns (trained, frozen).

    Trained parameters are copied, on the same devices; frozen ones are shared with the policy. The head starts at zero,
    and so do all values: before its first update, advantages depend only on returns.
    """
    body = {name: leaf for name, leaf in params.items() if name != "unembedding"}
    trained, frozen = split_trainable(config, body)
    shardings, _ = split_value(config, value_shardings(config, mesh))

    def copy(tree: Params) -> Params:
        head = abstract_value_parameters(config)[HEAD]
        head = {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in head.items()}
        return jax.tree.map(lambda leaf: leaf + 0, tree) | {HEAD: head}

    return jax.jit(copy, out_shardings=shardings)(trained), frozen


class ActorCriticState(TrainState):
    """The train states of a policy and its critic; the fields of the policy's state keep their names."""

    critic: Any

    @property
    def policy(self) -> TrainState:
        return TrainState(**{field.name: getattr(self, field.name) for field in dataclasses.fields(TrainState)})


@functools.lru_cache(maxsize=32)
def value_functions(config: DecoderConfig, mesh: Mesh) -> tuple[Hidden, Unembed]:
    """Return the two functions of a value model that learning needs; `config` is the policy's."""
    hidden = functools.partial(hidden_states, value_config(config), mesh=mesh)
    return hidden, lambda params, states, targets, temperature: (values(params, states), None)


@functools.lru_cache(maxsize=32)
def value_update(config: DecoderConfig, mesh: Mesh, critic: Critic) -> Update:
    """Build the update of a critic, for training and `lcrag compile`; `config` is the policy's."""
    shardings, _ = split_value(config, value_shardings(config, mesh))
    functions, objective = value_functions(config, mesh), ValueRegression(critic.value_clip)
    return make_update(*functions, objective, critic.optimizer, mesh=mesh, param_shardings=shardings)


def estimate_advantages(batches: Sequence[Batch], critic: Critic) -> tuple[list[Batch], dict[str, float]]:
    """Fill in returns and per-token advantages, from rewards and the critic's values (host; one whole rollout).

    A token's reward is r_t = [t is last] R - kl_in_reward (log policy - log reference)_t, the k1 estimate (Ziegler et
    al. 2019, arXiv:1909.08593, equation 2; per token as in Ouyang et al. 2022, arXiv:2203.02155, equation 2), plus the
    trajectory's `step_rewards`. Whitening is TRL's: over all policy tokens of the rollout, (A - mean) / sqrt(variance +
    1e-8), the variance divided by tokens - 1. Returns are computed from the advantages before whitening. The batches
    have `values` and, if the reward has a KL penalty, the reference's scores.

    Returns:
      The batches, and measurements of the rollout: "return/mean", "advantage/mean" and "advantage/std" (before
      whitening), "value/explained_variance" (1 - var(R - V) / var(R), of the values that the advantages were
      estimated with), and "reward/kl_penalty" (sum over an episode's tokens, mean over episodes).
    """
    settings = critic.discount, critic.trace, critic.kl_in_reward
    batches = [batch.replace(**jax.device_get(_estimates(batch, *settings))) for batch in batches]

    def of_tokens(name: str) -> Float[np.ndarray, " tokens"]:  # of the whole rollout, in float64
        parts = [np.asarray(getattr(batch, name))[np.asarray(batch.mask)] for batch in batches]
        return np.concatenate(parts).astype(np.float64)

    advantages, returns, values = (of_tokens(name) for name in ("advantages", "returns", "values"))
    variance = returns.var()
    measured = {
        "return/mean": returns.mean(),
        "advantage/mean": advantages.mean(),
        "advantage/std": advantages.std(),
        "value/explained_variance": 1 - (returns - values).var() / variance if variance else 0.0,
    }
    if critic.kl_in_reward:
        log_ratios = of_tokens("sampling_log_probabilities") - of_tokens("reference_log_probabilities")
        episodes = sum(np.count_nonzero(np.any(batch.mask, axis=-1)) for batch in batches)
        measured["reward/kl_penalty"] = -critic.kl_in_reward * np.sum(log_ratios) / episodes
    if critic.whiten:
        variance = advantages.var(ddof=1) if len(advantages) > 1 else 0.0
        mean, deviation = float(advantages.mean()), float(np.sqrt(variance + 1e-8))
        whitened = [(batch.advantages - mean) / deviation for batch in batches]
        batches = [
            batch.replace(advantages=np.where(batch.mask, advantages, 0).astype(np.float32))
            for batch, advantages in zip(batches, whitened, strict=True)
        ]
    return batches, {name: float(value) for name, value in measured.items()}


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _estimates(batch: Batch, discount: float, trace: float, kl_coefficient: float) -> dict[str, Array]:
    """Compute advantages and returns, [micro, episodes, own]."""
    mask, shape = jnp.asarray(batch.mask, bool), batch.mask.shape
    last = mask & (jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1] == 1)
    rewards = jnp.where(last, jnp.asarray(batch.rewards)[..., None], 0.0)
    if kl_coefficient:
        log_ratio = batch.reference_log_probabilities - batch.sampling_log_probabilities
        rewards = rewards - kl_coefficient * jnp.where(mask, kl_k1(log_ratio), 0.0)
    if batch.step_rewards is not None:
        rewards += batch.step_rewards
    rewards, values, mask = (jnp.reshape(array, (-1, shape[-1])) for array in (rewards, batch.values, mask))
    advantages, returns = generalized_advantages(rewards, values, mask, discount, trace)
    return {"advantages": advantages.reshape(shape), "returns": returns.reshape(shape)}

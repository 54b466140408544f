"""A one-layer attention model of a few hundred parameters, and random trajectories, for the tests of learning."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from lcrag.learning import Layout, PolicyGradient, Trajectory, adamw, initial_state, make_update, pack

VOCABULARY, WIDTH = 17, 8


def new_params(seed=0):
    draw = np.random.default_rng(seed).normal
    return {
        "embedding": jnp.asarray(draw(size=(VOCABULARY, WIDTH)), jnp.float32),
        "layer": {"kernel": jnp.asarray(draw(size=(WIDTH, WIDTH)) / 3, jnp.float32), "bias": jnp.zeros(WIDTH)},
        "norm": {"scale": jnp.ones((1, WIDTH))},
    }


def hidden(params, tokens, positions, segments):
    states = params["embedding"][tokens] + jnp.sin(positions[..., None] * (1.0 + jnp.arange(WIDTH)))
    time = jnp.arange(tokens.shape[1])
    visible = (segments[:, :, None] == segments[:, None, :]) & (time[:, None] >= time)
    scores = jnp.where(visible, jnp.einsum("btw,bsw->bts", states, states), -1e9)
    mixed = jnp.einsum("bts,bsw->btw", jax.nn.softmax(scores), states)
    states = states + jnp.tanh(mixed @ params["layer"]["kernel"] + params["layer"]["bias"])
    return states * params["norm"]["scale"][0]


def unembed(params, states, targets, temperature):
    log_probabilities = jax.nn.log_softmax(states @ params["embedding"].T / temperature)
    entropy = -jnp.sum(jnp.exp(log_probabilities) * log_probabilities, axis=-1)
    return jnp.take_along_axis(log_probabilities, targets[..., None], -1)[..., 0], entropy


def trajectory(random, length, policy_share=0.5):
    by_policy = random.random(length) < policy_share
    by_policy[0] = False
    return Trajectory(
        tokens=random.integers(0, VOCABULARY, length).astype(np.int32),
        by_policy=by_policy,
        log_probabilities=np.where(by_policy, random.normal(-2.5, 0.3, length), 0).astype(np.float32),
        advantage=float(random.normal()),
    )


def trajectories(seed=0, count=9, shortest=4, longest=14):
    random = np.random.default_rng(seed)
    return [trajectory(random, int(random.integers(shortest, longest))) for _ in range(count)]


def batch_of_step(step, rows=8, shares=1):
    return pack(trajectories(seed=step), Layout(rows=rows, row_lengths=(16,), policy_shares=(1.0,)), shares)


@functools.cache
def optimizer():
    return adamw(learning_rate=0.01, steps=10, warmup_share=0.2)


@functools.cache
def plain_update():
    return make_update(hidden, unembed, PolicyGradient(), optimizer())


def new_state(seed=0, **settings):
    return initial_state(new_params(seed), optimizer(), **settings)

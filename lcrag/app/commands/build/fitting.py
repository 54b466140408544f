"""Supervised training on a stream of rows: the pre-tasks and the SFT of the tiny policy."""

import functools
import itertools
from collections.abc import Callable, Iterator

import jax

from lcrag.learning import Layout, Supervised, Trajectory, adamw, initial_state, make_update, pack
from lcrag.policy import DecoderConfig, hidden_states, unembed_log_probabilities

Progress = Callable[[int, dict[str, float]], None]


def fit(
    config: DecoderConfig,
    params,
    rows: Iterator[Trajectory],
    *,
    steps: int,
    tokens_per_step: int,
    learning_rate: float,
    layout: Layout,
    progress: Progress,
    decay: str = "cosine",
):
    """Trains on `steps` batches of about `tokens_per_step` tokens; returns the parameters.

    Args:
      config: The decoder.
      params: Where to start; their memory is given away.
      rows: Trajectories whose policy tokens are learned.
      steps: Updates.
      tokens_per_step: Rows are taken until they have this many tokens.
      learning_rate: After a warm-up of a twentieth of the steps.
      layout: Shapes of the packed rows.
      progress: Called with (steps done, metrics) after every step.
      decay: "cosine" or "constant".
    """
    optimizer = adamw(learning_rate=learning_rate, steps=steps, warmup_share=0.05, decay=decay, beta2=0.98)
    hidden = functools.partial(hidden_states, config)
    update = make_update(hidden, functools.partial(unembed_log_probabilities, config), Supervised(), optimizer)
    state = initial_state(params, optimizer)
    for step in range(steps):
        state, metrics = update(state, pack(_taken(rows, tokens_per_step), layout))
        progress(step + 1, {name: float(value) for name, value in jax.device_get(metrics).items()})
    return state.params


def _taken(rows: Iterator[Trajectory], tokens: int) -> list[Trajectory]:
    taken: list[Trajectory] = []
    for row in itertools.takewhile(lambda _: sum(len(each.tokens) for each in taken) < tokens, rows):
        taken.append(row)
    return taken

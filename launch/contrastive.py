"""Contrastive training of an encoder on pairs of texts (InfoNCE: van den Oord et al. 2018, arXiv:1807.03748, eq. 4)."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from lcrag.errors import UserError
from lcrag.retrieval.encoder import Encoder, embed, pad_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A query and a passage that answers it; pairs of the same group are never each other's negatives."""

    query: str
    passage: str
    group: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastiveConfig:
    """Settings of contrastive training."""

    steps: int
    batch: int = 256  # pairs per update
    tokens: int = 64  # texts are truncated and padded to this length, so one shape is compiled
    learning_rate: float = 2e-3  # linear warm-up over the first 5 % of the steps, then a cosine to zero
    temperature: float = 0.05  # similarities are divided by it
    weight_decay: float = 0.01  # on matrices only


def info_nce(
    queries: Float[Array, "batch width"],
    passages: Float[Array, "batch width"],
    groups: Int[Array, " batch"],
    temperature: float,
) -> Float[Array, ""]:
    """Computes InfoNCE, averaged over both directions: each query's passage among all passages, and the reverse.

    Other passages of the query's group are excluded from the denominator.
    """
    scores = queries @ passages.T / temperature
    same_group = (groups[:, None] == groups[None, :]) & ~jnp.eye(len(groups), dtype=bool)
    scores = jnp.where(same_group, -jnp.inf, scores)
    positives = jnp.diagonal(scores)
    forward = jax.nn.logsumexp(scores, axis=1) - positives
    backward = jax.nn.logsumexp(scores, axis=0) - positives
    return (forward.mean() + backward.mean()) / 2


def train_encoder(
    encoder: Encoder,
    pairs: Iterable[Pair],
    config: ContrastiveConfig,
    progress: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
) -> Encoder:
    """Returns a new encoder, trained from `encoder` on the first steps x batch pairs.

    `encoder` itself is left unchanged. `progress` is called after each update with its number (from 1) and
    `{"loss": ...}`.
    """
    warm_up = max(1, config.steps // 20)
    schedule = optax.warmup_cosine_decay_schedule(0.0, config.learning_rate, warm_up, max(config.steps, warm_up + 1))
    # In stacked layers biases and norms are matrices too, so weight decay is chosen by name, not by rank.
    decayed = lambda params: jax.tree_util.tree_map_with_path(  # noqa: E731
        lambda path, _: path[-1].key in ("kernel", "embedding"), params
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=config.weight_decay, mask=decayed)
    )

    def loss_of(params: Any, queries: tuple, passages: tuple, groups: Array) -> Array:
        query_vectors, passage_vectors = (
            embed(encoder.config, encoder.settings.pooling, params, *side) for side in (queries, passages)
        )
        return info_nce(query_vectors, passage_vectors, groups, config.temperature)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, state, queries, passages, groups):
        loss, gradients = jax.value_and_grad(loss_of)(params, queries, passages, groups)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    def padded(texts: list[str], kind: str) -> tuple:
        rows = [row[: config.tokens] for row in encoder.tokenize(texts, kind)]
        return pad_rows(rows, (len(rows), config.tokens))

    # A copy on one device, because the update donates its state and the caller's encoder stays usable.
    params = jax.tree.map(jnp.copy, jax.device_put(encoder.params, jax.local_devices()[0]))
    state = optimizer.init(params)
    iterator = iter(pairs)
    for step in range(1, config.steps + 1):
        batch = list(itertools.islice(iterator, config.batch))
        if len(batch) < config.batch:
            raise UserError(
                f"the pairs ran out at step {step} of {config.steps}: give {config.steps * config.batch} or lower steps"
            )
        numbers = {group: index for index, group in enumerate(dict.fromkeys(pair.group for pair in batch))}
        groups = np.array([numbers[pair.group] for pair in batch], np.int32)
        queries = padded([pair.query for pair in batch], "query")
        passages = padded([pair.passage for pair in batch], "passage")
        params, state, loss = update(params, state, queries, passages, groups)
        progress(step, {"loss": float(loss)})
    return Encoder(encoder.config, encoder.settings, params, encoder.tokenizer)

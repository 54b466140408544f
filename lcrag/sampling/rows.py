"""Selects some of the slots, and writes them back, without moving data between devices.

Slots are divided into equal consecutive shares, and `rows` numbers slots within each share; the size of a share marks
padding.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from lcrag.sampling.forms import Cache


def per_slot(x: Shaped[Array, "slots *rest"], rows: Int[Array, "shares rows"]) -> Shaped[Array, "chosen *rest"]:
    """Selects the slots' entries, in order."""
    return _by_share(lambda mine, rows: mine[rows], x, rows).reshape(-1, *x.shape[1:])


def with_per_slot(
    x: Shaped[Array, "slots *rest"], rows: Int[Array, "shares rows"], new: Shaped[Array, "chosen *rest"]
) -> Shaped[Array, "slots *rest"]:
    """The inverse of `per_slot`: writes the slots' entries."""
    parts = new.reshape(*rows.shape, *x.shape[1:])
    put = _by_share(lambda mine, rows, new: mine.at[rows].set(new, mode="drop"), x, rows, parts)
    return put.reshape(x.shape)


def _by_share(function: Callable[..., Array], x: Array, rows: Array, *others: Array) -> Array:
    return jax.vmap(function)(x.reshape(rows.shape[0], -1, *x.shape[1:]), rows, *others)


def window_of(
    x: Float[Array, "*layers slots heads positions width"], rows: Int[Array, "shares rows"] | None, window: int
) -> Float[Array, "*layers chosen heads window width"]:
    """Selects the first positions of the slots in `rows`, or of all slots if `rows` is None."""
    if rows is None:
        return x[..., :window, :]
    *layers, _, heads, _, width = x.shape
    shared = x.reshape(*layers, rows.shape[0], -1, *x.shape[-3:])
    axis = len(layers)
    taken = jax.vmap(lambda mine, rows: mine[..., rows, :, :window, :], in_axes=(axis, 0), out_axes=axis)(shared, rows)
    return taken.reshape(*layers, -1, heads, window, width)


def all_rows(slots: int, shares: int) -> Int[Array, "shares rows"]:
    """Returns the rows of all slots."""
    return jnp.tile(jnp.arange(slots // shares), (shares, 1))


def columns_of(
    x: Float[Array, "chosen heads _ _"], starts: Int[Array, "chosen"], count: int, axis: int = -2
) -> Float[Array, "chosen heads _ _"]:
    """Selects `count` positions of each row, from its own start on; `axis` is that of the positions."""
    return jax.vmap(lambda x, start: jax.lax.dynamic_slice_in_dim(x, start, count, axis))(x, starts)


def with_columns(
    x: Float[Array, "*layers slots heads positions width"],
    rows: Int[Array, "shares rows"],
    starts: Int[Array, "chosen"],
    new: Float[Array, "*layers chosen heads count width"],
) -> Float[Array, "*layers slots heads positions width"]:
    """Writes `new` into some slots in place, into the positions from each slot's start on."""
    if x.ndim == 4:
        return with_columns(x[None], rows, starts, new[None])[0]
    shared = x.reshape(x.shape[0], rows.shape[0], -1, *x.shape[2:])
    parts = new.reshape(x.shape[0], *rows.shape, *new.shape[2:])
    numbers = jax.lax.ScatterDimensionNumbers((0, 2, 3, 4), (1,), (1, 3))

    def put_rows(mine, rows, starts, new):
        places = jnp.stack([rows, starts], axis=-1)
        return jax.lax.scatter(mine, places, new, numbers, mode="drop")

    return jax.vmap(put_rows, (1, 0, 0, 1), 1)(shared, rows, starts.reshape(rows.shape), parts).reshape(x.shape)


def with_new_columns(
    cache: Cache,
    seen: Cache,
    rows: Int[Array, "shares rows"],
    first: Int[Array, "chosen"],
    count: int,
) -> Cache:
    """Writes the new positions in the windows of some slots back into the cache.

    Args:
      cache: All slots, all positions.
      seen: The slots' windows; they differ from `cache` only in the `count` positions from each row's `first` on.
      rows: The slots.
      first, count: See `seen`.
    """
    starts, count = starts_within(jax.tree.leaves(seen)[0].shape[-2], first, count)

    def columns(new: Float[Array, "*layers chosen heads window width"]):
        return jax.vmap(columns)(new) if new.ndim > 4 else columns_of(new, starts, count)

    return jax.tree.map(lambda x, new: with_columns(x, rows, starts, columns(new)), cache, seen)


def starts_within(window: int, first: Int[Array, "chosen"], count: int) -> tuple[Int[Array, "chosen"], int]:
    """Returns starts and a count of positions within the window that include the `count` positions from `first` on."""
    count = min(count, window)
    return jnp.minimum(first, window - count), count

"""The compiled programs of a sampler: a finite set of shapes, each compiled once and counted."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from lcrag.policy import DecoderConfig, logical_sharding, replicated
from lcrag.sampling import slots as device
from lcrag.sampling.slots import Report, Slots


class Programs:
    """Compiles `append`, `fork`, `begin` and `decode` ahead of time, per static shape."""

    def __init__(self, config: DecoderConfig, mesh: Mesh, block: int):
        self._config, self._block = config, block
        self._shardings = slot_shardings(mesh)
        self._everywhere = replicated(mesh)
        self._compiled: dict[tuple, Any] = {}

    @property
    def count(self) -> int:
        """How many shapes have been compiled."""
        return len(self._compiled)

    def append(self, window: int, *arguments) -> Slots:
        function = functools.partial(device.append, self._config, window)
        return self._run(("append", window, arguments[-2].shape), function, arguments, donated=1)

    def fork(self, window: int, *arguments) -> Slots:
        return self._run(("fork", window), functools.partial(device.fork, window), arguments, donated=0)

    def begin(self, *arguments) -> Slots:
        return self._run(("begin",), device.begin, arguments, donated=0)

    def decode(self, window: int, *arguments) -> tuple[Slots, Report]:
        function = functools.partial(device.decode, self._config, window, self._block)
        key = ("decode", window, arguments[2].shape)
        return self._run(key, function, arguments, donated=1, outputs=(self._shardings, self._everywhere))

    def _run(self, key: tuple, function: Callable, arguments: tuple, donated: int, outputs=None):
        if key not in self._compiled:
            jitted = jax.jit(function, donate_argnums=donated, out_shardings=outputs or self._shardings)
            self._compiled[key] = jitted.lower(*arguments).compile()
        return self._compiled[key](*arguments)


def slot_shardings(mesh: Mesh) -> Slots:
    """Slots are spread over the mesh's batch axes, key-value heads over its tensor axis."""
    row = logical_sharding(mesh, "slots")
    cache: NamedSharding = logical_sharding(mesh, "layers", "slots", "heads", None, None)
    names = (name for name in Slots._fields if name != "cache")
    return Slots(cache=device.KeyValueCache(cache, cache), **dict.fromkeys(names, row))

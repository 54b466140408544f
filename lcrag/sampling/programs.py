"""The compiled programs of a sampler: a finite set of shapes, each compiled once and counted."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.stages import Lowered

from lcrag.policy import DecoderConfig, logical_sharding, replicated
from lcrag.sampling import slots as device
from lcrag.sampling.slots import Report, Slots


class CompiledFunctions:
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
        lower = functools.partial(self.lower_append, window)
        return self._run(("append", window, arguments[-2].shape), lower, arguments)

    def fork(self, window: int, *arguments) -> Slots:
        lower = functools.partial(self._lower, functools.partial(device.fork, window), donated=0)
        return self._run(("fork", window), lower, arguments)

    def begin(self, *arguments) -> Slots:
        return self._run(("begin",), functools.partial(self._lower, device.begin, donated=0), arguments)

    def decode(self, window: int, *arguments) -> tuple[Slots, Report]:
        lower = functools.partial(self.lower_decode, window)
        return self._run(("decode", window, arguments[2].shape), lower, arguments)

    def lower_append(self, window: int, *arguments) -> Lowered:
        """Traces `append` for arrays, or for `jax.ShapeDtypeStruct`s with their shardings."""
        return self._lower(functools.partial(device.append, self._config, window), *arguments, donated=1)

    def lower_decode(self, window: int, *arguments) -> Lowered:
        """Traces `decode` for arrays, or for `jax.ShapeDtypeStruct`s with their shardings."""
        function = functools.partial(device.decode, self._config, window, self._block)
        return self._lower(function, *arguments, donated=1, outputs=(self._shardings, self._everywhere))

    def _lower(self, function: Callable, *arguments, donated: int, outputs=None) -> Lowered:
        return jax.jit(function, donate_argnums=donated, out_shardings=outputs or self._shardings).lower(*arguments)

    def _run(self, key: tuple, lower: Callable[..., Lowered], arguments: tuple):
        if key not in self._compiled:
            self._compiled[key] = lower(*arguments).compile()
        return self._compiled[key](*arguments)


def slot_shardings(mesh: Mesh) -> Slots:
    """Slots are spread over the mesh's batch axes, key-value heads over its tensor axis."""
    row = logical_sharding(mesh, "slots")
    cache: NamedSharding = logical_sharding(mesh, "layers", "slots", "heads", None, None)
    names = (name for name in Slots._fields if name != "cache")
    return Slots(cache=device.KeyValueCache(cache, cache), **dict.fromkeys(names, row))

"""The form of a sampler's parameters and cache: copied, merged, gathered, stacked or layer by layer."""

import dataclasses
import functools
from typing import Any, Literal, TypeAlias

import jax
from flax import traverse_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lcrag.policy import (
    AnyMesh,
    DecoderConfig,
    KeyValueCache,
    compute_parameters,
    empty_cache,
    gathered,
    logical_sharding,
    merge_lora,
    param_shardings,
)

LayersForm: TypeAlias = Literal["auto", "stacked", "apart"]
Cache: TypeAlias = KeyValueCache | tuple[KeyValueCache, ...]  # of all layers, or each of one


@dataclasses.dataclass(frozen=True)
class SamplerForm:
    """The form of a sampler's parameters and cache.

    Attributes:
      policy: The decoder in training.
      mesh: The sampler's devices.
      gather: Whether parameters are replicated along the mesh axis "fsdp".
      layers: Whether each layer's parameters and cache are separate arrays ("apart") or slices of stacked arrays. XLA
        for GPUs copies such a slice before every use, XLA for TPUs reads it in place; "auto" follows the platform.
      merge: Whether adapters are merged into the kernels: this saves small products, and costs a copy of the kernels.
    """

    policy: DecoderConfig
    mesh: AnyMesh
    gather: bool = False
    layers: LayersForm = "auto"
    merge: bool = False

    @property
    def apart(self) -> bool:
        """Whether each layer has separate arrays."""
        if self.layers == "auto":
            devices = self.mesh.devices if isinstance(self.mesh, Mesh) else None  # an abstract mesh has none
            return devices is not None and devices.flat[0].platform in ("gpu", "cuda", "rocm")
        return self.layers == "apart"

    @functools.cached_property
    def decoder(self) -> DecoderConfig:
        """The decoder that samples, without adapters where they are merged."""
        return dataclasses.replace(self.policy, lora=None) if self.merge else self.policy

    @property
    def parameter_shardings(self) -> Any:
        shardings = param_shardings(self.decoder, self.mesh)
        shardings = gathered(shardings) if self.gather else shardings
        without_first = lambda each, layer: NamedSharding(each.mesh, PartitionSpec(*each.spec[1:]))  # noqa: E731
        return self._separated(shardings, without_first) if self.apart else shardings

    @property
    def cache_shardings(self) -> Cache:
        """Slots are spread over the mesh's batch axes, key-value heads over its tensor axis."""
        each = logical_sharding(self.mesh, "slots", "heads", None, None)
        if self.apart:
            return (KeyValueCache(each, each),) * self.decoder.layers
        stacked = logical_sharding(self.mesh, "layers", "slots", "heads", None, None)
        return KeyValueCache(stacked, stacked)

    def empty_cache(self, slots: int, positions: int) -> Cache:
        """Returns a cache of zeros; see `lcrag.policy.empty_cache`."""
        whole = functools.partial(empty_cache, self.decoder, slots, positions, self.mesh)
        if not self.apart:
            return whole()
        return tuple(jax.tree.map(lambda x: x[0], whole(layers=1)) for _ in range(self.decoder.layers))

    def parameters(self, params: Any) -> Any:
        """Converts parameters to this form, without copying arrays that have it; also under `jax.eval_shape`."""
        merged = merge_lora(self.policy, params, self.policy.dtype)[1] if self.merge else params
        own = compute_parameters(self.decoder, merged)
        return self._separated(own, lambda stack, layer: stack[layer]) if self.apart else own

    def placed(self, params: Any) -> Any:
        """Converts parameters and places them on the mesh; arrays already in place are not copied."""
        given = jax.device_put(params, param_shardings(self.policy, self.mesh))
        if self.apart:
            return self._separate(given)
        return jax.device_put(self.parameters(given), self.parameter_shardings)

    @functools.cached_property
    def _separate(self):
        """Casts and separates in one program, without a copy of the whole stack in between."""
        return jax.jit(self.parameters, out_shardings=self.parameter_shardings)

    def own_leaves(self, given: Any, own: Any) -> list[Any]:
        """Returns the leaves of `own` that are not shared with `given`: the additional memory of this form."""
        theirs, lora = traverse_util.flatten_dict(given), self.policy.lora if self.merge else None
        leaves = jax.tree.leaves(own["layers"]) if self.apart else []  # all layers are copies
        shared = {name: tree for name, tree in own.items() if not (self.apart and name == "layers")}
        for path, leaf in traverse_util.flatten_dict(shared).items():
            is_merged = lora is not None and "/".join(path[-3:-1]) in lora.targets
            if is_merged or theirs.get(path) != leaf:
                leaves.append(leaf)
        return leaves

    def _separated(self, tree: Any, slice_of: Any) -> Any:
        """Splits stacked layers into a list of layers."""
        parts = [
            jax.tree.map(functools.partial(slice_of, layer=layer), tree["layers"])
            for layer in range(self.policy.layers)
        ]
        return {**tree, "layers": parts}

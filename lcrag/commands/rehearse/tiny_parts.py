"""Stand-ins of a rehearsal for large or remote parts: a tiny random policy, one device, fake models."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Float

from lcrag.composition.components import Computation, model_file_shape, resolved_folder
from lcrag.composition.stand_ins import Call, Kind, StandIn
from lcrag.episodes import Completion
from lcrag.errors import UserError
from lcrag.policy import (
    DecoderConfig,
    Policy,
    add_lora,
    check_mesh_sizes,
    initialise,
    load_tokenizer,
    make_mesh,
    read_config,
)
from lcrag.policy.sharding import MESH_AXES
from lcrag.sampling import SamplingParameters

TINY: dict[str, Any] = {"width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_width": 16, "mlp_width": 96}
TINY |= {"compute_dtype": "float32", "lora": None}  # bfloat16 is slow on a CPU; adapters are added where there are some


@dataclasses.dataclass
class TinyParts:
    """The stand-ins of one rehearsal, and the settings of the parts that they replace.

    Attributes:
      decoder: Shape of the real policy, by its `config.json` or by a file of gin/model; set during composition.
      mesh_sizes: Sizes of the real mesh (data, fsdp, tensor); set during composition.
      replaced: Names of the replaced models; set during composition.
    """

    decoder: DecoderConfig | None = None
    mesh_sizes: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"data": 1, "fsdp": 1, "tensor": 1})
    replaced: list[str] = dataclasses.field(default_factory=list)

    @property
    def stand_ins(self) -> dict[Kind, StandIn]:
        """The stand-ins, by kind."""
        return {"policy": self.policy, "mesh": self.mesh, "model": self.model, "encoder": self.encoder}

    def mesh(self, call: Call) -> Mesh:
        """One device of this machine."""
        self.mesh_sizes = {axis: call.arguments[axis] for axis in MESH_AXES}
        return make_mesh(1, 1, 1, devices=jax.devices()[:1])

    def policy(self, call: Call) -> Policy:
        """A random policy of the same family, tokenizer, vocabulary and positions, with two narrow layers in float32.

        Raises:
          UserError: the policy has no folder, or it holds no tokenizer.
        """
        if "folder" in call.missing:
            raise UserError(
                "policy.folder has no value: name a folder with the policy's config.json and tokenizer.json, which a"
                " rehearsal reads without the weights, by --gin.policy.folder='\"FOLDER\"'"
            )
        path = resolved_folder(call.arguments["folder"])
        computation: Computation = call.arguments["computation"]
        shape = None if (path / "config.json").is_file() else model_file_shape()
        self.decoder = computation.of(shape or read_config(path))
        config, mesh = dataclasses.replace(self.decoder, **TINY), call.arguments["mesh"]
        params = initialise(config, jax.random.key(0), mesh)
        if computation.lora is not None:
            config, params = add_lora(config, params, computation.lora, jax.random.key(0), mesh)
        return Policy(call.arguments["folder"], config, params, load_tokenizer(path), mesh)

    def model(self, call: Call) -> "PretendedModel":
        """A model that answers at once."""
        self.replaced.append(call.name)
        return PretendedModel()

    def encoder(self, call: Call) -> "PretendedEncoder":
        """An encoder whose vectors are random."""
        self.replaced.append(call.name)
        return PretendedEncoder()

    def platform(self, devices: int | None) -> AbstractMesh:
        """The mesh of the real devices.

        Args:
          devices: Their number; None: as the mesh's sizes say.

        Raises:
          UserError: the sizes do not multiply to it.
        """
        sizes = dict(self.mesh_sizes)
        check_mesh_sizes(**sizes)
        others = sizes["fsdp"] * sizes["tensor"]
        if sizes["data"] == -1:
            sizes["data"] = max(1, (devices or others) // others)
        needed = sizes["data"] * others
        if devices is not None and needed != devices:
            axes = " x ".join(f"{axis}={size}" for axis, size in sizes.items())
            raise UserError(
                f"a mesh of {axes} needs {needed} devices, but the topology has {devices}: name the topology of the"
                " platform file, or change the mesh bindings"
            )
        return AbstractMesh(tuple(sizes[axis] for axis in MESH_AXES), MESH_AXES)


class PretendedModel:
    """A fake model that answers immediately; translates a text to itself."""

    hashes: Mapping[str, str] = {}

    def __call__(self, asked: Sequence[Any], source: str | None = None, target: str = "") -> Sequence[Any]:
        """Returns the texts of a translation unchanged, or the completions of prompts."""
        if target:
            return list(asked)
        requests: Sequence[tuple[str, SamplingParameters]] = asked
        return [Completion(text="pretended", finish_reason="eos", tokens=1) for _ in requests]


class PretendedEncoder:
    """Random vectors of unit length, the same for the same text."""

    hashes: Mapping[str, str] = {}

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "texts width"]:
        """Returns a vector for each text."""
        vectors = [np.random.default_rng(list(text.encode())).normal(size=32) for text in texts]
        return np.stack([vector / np.linalg.norm(vector) for vector in vectors]).astype(np.float32)

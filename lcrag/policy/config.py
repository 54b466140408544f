"""The decoder's shape and platform settings, the mesh of devices, and the table by which arrays are divided over it."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from lcrag.errors import Count, Positive, UserError, typed

# --- Shape ---

Family = Literal["qwen2", "qwen3", "llama", "gemma3"]
ComputeDtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "dots", "full"]
AttentionChoice = Literal["auto", "xla", "cudnn", "splash"]

# The linear layers of a block, by their path in it.
LINEAR_LAYERS = (
    "attention/query",
    "attention/key",
    "attention/value",
    "attention/output",
    "mlp/gate",
    "mlp/up",
    "mlp/down",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Scaling of rotary frequencies: all by one factor ("linear"), or the low ones as Llama 3 does ("llama3")."""

    factor: float
    low_frequency_factor: float = 1.0  # of Llama 3's scaling, as the next one
    high_frequency_factor: float = 4.0
    original_positions: int | None = None  # of Llama 3's scaling; None: linear


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """LoRA adapters (Hu et al., 2022, arXiv:2106.09685) of frozen linear layers.

    y = x W + (alpha / rank) x A B, where only A and B are trained. A is initialised uniformly in ±1/sqrt(inputs), as in
    the authors' code and in PEFT, and B to zero, so fresh adapters do not change the policy.
    """

    rank: Count = 16
    alpha: Positive = 32.0
    targets: Sequence[str] = LINEAR_LAYERS

    def __post_init__(self):
        object.__setattr__(self, "targets", tuple(self.targets))  # a configuration may give a list
        if not self.targets or (unknown := sorted(set(self.targets) - set(LINEAR_LAYERS))):
            what = f"there is no linear layer {unknown[0]!r}" if self.targets else "no layer is named"
            raise UserError(f"Lora.targets: {what}; choose among {', '.join(LINEAR_LAYERS)}")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """Platform settings of a decoder: the fields of a `DecoderConfig` that no `config.json` holds.

    Attributes:
      compute_dtype: Dtype of activations; trained parameters stay float32.
      remat: What the backward pass recomputes: nothing ("none"), everything except the outputs of linear layers and
        attention kernels ("dots"), or whole blocks ("full"). For the shape of Qwen2.5-3B and 16,384 tokens, a full
        update needs 181, 99 and 83 GiB on one TPU v5p chip by the compiler's count, with adapters 111, 46 and 15 GiB.
      attention: Kernel for attention over whole rows: "auto" (by platform), "xla", "cudnn" or "splash".
      unroll_layers: Whether whole rows unroll the scan over layers, which compiles twice as long. None: on CPUs, where
        the scan copies each layer's slice (an update of SmolLM2-135M on 1,024 tokens takes 1.2 times as long), unless
        the backward pass recomputes: outside of a loop, XLA for CPUs keeps what it should drop.
      lora: LoRA adapters, which are then the only trained parameters; the frozen weights are held in the compute
        dtype. None: no adapters.
    """

    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "none"
    attention: AttentionChoice = "auto"
    unroll_layers: bool | None = None
    lora: Lora | None = None

    def of(self, config: "DecoderConfig") -> "DecoderConfig":
        """Returns a decoder's configuration with these settings."""
        return dataclasses.replace(config, **{name: getattr(self, name) for name in vars(DEFAULT_COMPUTATION)})


DEFAULT_COMPUTATION = Computation()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig(Computation):
    """A decoder-only transformer: Qwen2/2.5 (qkv bias), Qwen3 (q/k norm), Llama 3 (rope scaling), Gemma 3 (sliding
    windows, see `gemma`) or a tiny one.

    Attributes:
      family: The Hugging Face architecture of the weights.
      sliding_window: Tokens that a token attends to in all layers except `global_layers`, itself included; None:
        everything before it, in every layer.
      query_pre_attn_scalar: The square of the divisor of attention scores; None: `head_width`.
      source: The model folder that it was read from, if any; its tokenizer and settings are copied when the model is
        saved. Ignored by comparisons.
    """

    family: Family = "qwen3"
    vocabulary_size: int  # rows of the embedding
    width: int  # of the residual stream
    layers: int
    heads: int
    kv_heads: int  # key and value heads; divides `heads`
    head_width: int
    mlp_width: int  # inner size of the gated MLP
    max_positions: int  # longest context the model was trained for, in tokens
    rope_theta: float = 1_000_000.0
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    global_layers: Sequence[int] = ()  # counted from 0; read only with a sliding window
    local_rope_theta: float = 10_000.0  # of layers with a sliding window, which are not scaled
    query_pre_attn_scalar: float | None = None
    logit_softcap: float | None = None  # logits z become cap * tanh(z / cap)
    norm_epsilon: float = 1e-6  # added to the mean square in RMS norms
    tie_embeddings: bool = True  # the unembedding is the transposed embedding
    source: str | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self):
        if self.head_width % 2:
            raise UserError(f"heads {self.head_width} wide cannot be rotated: make head_width even")
        if self.heads % self.kv_heads:
            raise UserError(
                f"{self.heads} heads cannot share {self.kv_heads} key-value heads: let one divide the other"
            )
        object.__setattr__(self, "global_layers", tuple(self.global_layers))  # a configuration may give a list
        if self.sliding_window is not None and self.sliding_window < 1:
            raise UserError(f"sliding_window is {self.sliding_window}: give it 1 token or more, or None")
        if outside := [layer for layer in self.global_layers if not 0 <= layer < self.layers]:
            raise UserError(f"global_layers names layer {outside[0]}, but there are {self.layers}, counted from 0")

    @property
    def gemma(self) -> bool:
        """Whether norms stand after blocks too and multiply by 1 + weight, MLPs are GeGLU, and embeddings are scaled.

        Gemma 3 technical report (2025, arXiv:2503.19786).
        """
        return self.family == "gemma3"

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.compute_dtype)

    def is_local(self, layer: int) -> bool:
        """Whether a layer, counted from 0, attends within a sliding window only."""
        return self.sliding_window is not None and layer not in self.global_layers

    def check_vocabulary(self, tokens: int, folder: object = None) -> None:
        """Raises a UserError if a tokenizer has more tokens than the model has embeddings; `folder` is named."""
        if tokens > self.vocabulary_size:
            raise UserError(
                f"the tokenizer {f'of {folder} ' if folder else ''}has {tokens} tokens, but the model embeds only"
                f" {self.vocabulary_size}: it belongs to another model, or tokens were added to it alone"
            )


# --- Sharding ---

MESH_AXES = ("data", "fsdp", "tensor")
AnyMesh: TypeAlias = Mesh | AbstractMesh  # an abstract mesh has sizes, and no devices

# Logical axis -> mesh axis. Rows of a batch are spread over every replica of the parameters.
AXIS_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    ("batch", ("data", "fsdp")),
    ("slots", ("data", "fsdp")),
    ("vocabulary", "tensor"),
    ("embed", "fsdp"),
    ("heads", "tensor"),
    ("mlp", "tensor"),
    ("norm", None),
    ("rank", None),
    ("layers", None),
)


@typed
def make_mesh(
    data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Sequence[jax.Device | int] | None = None
) -> Mesh:
    """Makes a mesh over (data, fsdp, tensor); with `data=-1` the size of data follows from the other two.

    `devices` are devices, or their places among all; None: all.
    """
    present = jax.devices()
    devices = list(present if devices is None else devices)
    for place, device in enumerate(devices):
        if isinstance(device, int) and not 0 <= device < len(present):
            raise UserError(f"mesh.devices names device {device}, but there are {len(present)}, from 0: name these")
        devices[place] = present[device] if isinstance(device, int) else device
    if len(set(devices)) < len(devices):
        raise UserError(f"mesh.devices is {tuple(map(str, devices))}: name each device once")
    check_mesh_sizes(data, fsdp, tensor)
    if data == -1:
        data = max(1, len(devices) // (fsdp * tensor))
    if data * fsdp * tensor != len(devices):
        mend = "change the mesh bindings"
        if len(devices) < data * fsdp * tensor and all(getattr(device, "platform", "") == "cpu" for device in devices):
            mend += (
                "; this JAX sees no accelerator: for NVIDIA GPUs install lcrag[cuda], for TPUs lcrag[tpu], or take a"
                " platform for CPUs, platform/laptop.gin"
            )
        raise UserError(
            f"a mesh of data={data} x fsdp={fsdp} x tensor={tensor} needs {data * fsdp * tensor} devices,"
            f" but {len(devices)} are present: {mend}"
        )
    return Mesh(np.asarray(devices).reshape(data, fsdp, tensor), MESH_AXES)


def check_mesh_sizes(data: int, fsdp: int, tensor: int) -> None:
    """Raises a UserError if a size that `make_mesh` takes is below 1, and is not `data=-1`."""
    for name, size in (("data", data), ("fsdp", fsdp), ("tensor", tensor)):
        if size < 1 and (name, size) != ("data", -1):
            raise UserError(f"mesh.{name} is {size}: give it a value of 1 or more")


def logical_spec(*axes: str | None) -> PartitionSpec:
    """Returns the mesh axes of an array with these logical axes."""
    rules = dict(AXIS_RULES)
    return PartitionSpec(*(rules[axis] if axis else None for axis in axes))


def logical_sharding(mesh: AnyMesh, *axes: str | None) -> NamedSharding:
    return NamedSharding(mesh, logical_spec(*axes))


def constrain(array: jax.Array, mesh: Mesh | None, *axes: str | None) -> jax.Array:
    """Constrains the sharding of an activation; without a mesh, XLA decides."""
    return array if mesh is None else jax.lax.with_sharding_constraint(array, logical_sharding(mesh, *axes))


def spread_kv_heads(config: DecoderConfig, mesh: AnyMesh | None) -> int:
    """Returns the number of key-value heads when each device of the axis "tensor" has those that its queries read."""
    return config.kv_heads if mesh is None else math.lcm(config.kv_heads, mesh.shape["tensor"])


def gathered(shardings):
    """Returns the same tree of shardings, replicated along the mesh axis "fsdp"."""
    spec = lambda sharding: PartitionSpec(*(None if axis == "fsdp" else axis for axis in sharding.spec))  # noqa: E731
    return jax.tree.map(lambda sharding: NamedSharding(sharding.mesh, spec(sharding)), shardings)


def replicated(mesh: AnyMesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


# --- Accelerators ---

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """Data sheet of one device as JAX counts them: a chip, or one core of a chip that it lists as two devices."""

    name: str  # as `--topology` writes it
    kind: str  # prefix of JAX's `device_kind`
    memory_bytes: float  # available to programs
    flops_per_second: float  # dense bfloat16 operations; a multiplication and an addition are two
    bytes_per_second: float  # memory bandwidth


# TPU memory is what XLA 0.10.2 reports as available when a program does not fit; rates are from Google's data sheets.
# GPU memory is 95 % of what the driver reports (XLA_PYTHON_CLIENT_MEM_FRACTION=0.95); rates are NVIDIA's, SXM, dense.
ACCELERATORS = (
    Accelerator("v4", "TPU v4", 30.75 * GIB, 275e12, 1228e9),
    Accelerator("v5e", "TPU v5 lite", 15.75 * GIB, 197e12, 819e9),
    Accelerator("v5p", "TPU v5", 95.74 * GIB, 459e12, 2765e9),
    Accelerator("v6e", "TPU v6 lite", 31.25 * GIB, 918e12, 1640e9),
    Accelerator("tpu7x", "TPU7x", 94.75 * GIB, 1153e12, 3690e9),
    Accelerator("a100", "NVIDIA A100", 75 * GIB, 312e12, 2039e9),
    Accelerator("h100", "NVIDIA H100", 75 * GIB, 989e12, 3350e9),
    Accelerator("h200", "NVIDIA H200", 132 * GIB, 989e12, 4800e9),
)


def update_options(mesh: Mesh) -> dict[str, str] | None:
    """Returns XLA's options for an update on a mesh; None: its defaults.

    XLA for TPUs would split products with weights that are sharded over "fsdp", to overlap them with gathers. By the
    compiler's model an update then takes 1.76 times as long (docs/describe.md).
    """
    if mesh.devices.flat[0].platform != "tpu" or mesh.shape["fsdp"] == 1:
        return None
    return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}  # no operand of a product is as large


def accelerator_of(device: Any) -> Accelerator | None:
    """Returns the entry of a JAX device, with the memory that the device reports, or None if it is not listed."""
    matches = [accelerator for accelerator in ACCELERATORS if device.device_kind.startswith(accelerator.kind)]
    if not matches:
        return None
    accelerator = max(matches, key=lambda match: len(match.kind))  # "TPU v5 lite" is not "TPU v5"
    try:
        statistics = device.memory_stats() or {}
    except (AttributeError, NotImplementedError, RuntimeError):  # devices of a topology have no memory statistics
        statistics = {}
    return dataclasses.replace(accelerator, memory_bytes=float(statistics.get("bytes_limit", accelerator.memory_bytes)))


def accelerator_named(name: str) -> Accelerator | None:
    return next((accelerator for accelerator in ACCELERATORS if accelerator.name == name.lower()), None)

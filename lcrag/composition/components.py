"""Builds the policy, the sampler and the episode runner from gin bindings."""

import copy
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import gin
import jax
from jax.sharding import Mesh

from lcrag.composition.stand_ins import replaceable
from lcrag.data.files import records_fingerprint
from lcrag.data.questions import Question
from lcrag.episodes import Chat, Retries, Runner
from lcrag.episodes.agreement import check_same_everywhere, together
from lcrag.errors import UserError
from lcrag.files import local_files
from lcrag.limits import Seed
from lcrag.policy import (
    DecoderConfig,
    HuggingFaceTokenizer,
    Lora,
    Policy,
    add_lora,
    load_hugging_face,
    load_tokenizer,
    make_mesh,
    parameter_fingerprint,
    read_config,
    stored_dtype,
)
from lcrag.policy.config import AttentionChoice, ComputeDtype, Remat
from lcrag.policy.model_files import sampled_fingerprint
from lcrag.retrieval import SearchableCollections, load_collections, load_encoder
from lcrag.runs.sinks import Sinks
from lcrag.sampling import Sampler, SamplerConfig, SlotSampler

WEIGHTS = pathlib.Path(__file__).parents[1] / "atlas" / "weights"

configured_sampler = gin.external_configurable(SamplerConfig, "Sampler", module="lcrag.sampling")
configured_runner = gin.external_configurable(Runner, module="lcrag.episodes")
configured_encoder = gin.external_configurable(load_encoder, module="lcrag.retrieval")
configured_chat = gin.external_configurable(Chat, module="lcrag.episodes")
gin.external_configurable(replaceable("mesh", "mesh")(make_mesh), "mesh", module="lcrag.policy")
configured_collections = gin.external_configurable(
    replaceable("collections")(load_collections), module="lcrag.retrieval"
)
gin.external_configurable(Retries, module="lcrag.episodes")
configured_sinks = gin.external_configurable(Sinks, "MetricsLog", module="lcrag.runs")
gin.register(Lora, module="lcrag.policy")


@gin.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """Platform settings of a decoder: the fields of a `DecoderConfig` that no `config.json` holds.

    Attributes:
      compute_dtype: Dtype of activations, "float32" or "bfloat16"; trained parameters are always float32.
      remat: Activations that the backward pass recomputes; see `DecoderConfig`.
      attention: Implementation of attention over whole rows; "auto": the kernel of the platform.
      unroll_layers: Whether to unroll the scan over layers, which is faster for tiny models.
      windowed_einsum: Whether matrix products of an update are split to overlap with all-gathers of weights (TPUs).
      lora: LoRA adapters, which are then the only trained parameters; the frozen weights are held in the compute
        dtype. None: no adapters.
    """

    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "none"
    attention: AttentionChoice = "auto"
    unroll_layers: bool = False
    windowed_einsum: bool = False
    lora: Lora | None = None

    def of(self, config: DecoderConfig) -> DecoderConfig:
        """Returns the decoder configuration with these settings."""
        return dataclasses.replace(config, **{name: getattr(self, name) for name in _fields()})


def _fields() -> list[str]:
    return [field.name for field in dataclasses.fields(Computation)]


DEFAULT_COMPUTATION = Computation()


def computation_of(config: DecoderConfig) -> Computation:
    """Returns the platform settings of a decoder."""
    return Computation(**{name: getattr(config, name) for name in _fields()})


def resolved_folder(folder: str) -> pathlib.Path:
    """Returns the local path of a folder of weights.

    `folder` is a path, an address in object storage (of which a local copy is returned), or the name of a folder that
    ships with the package ("atlas/cold_start").
    """
    shipped = WEIGHTS / folder.removeprefix("atlas/")
    path = local_files(folder)
    return shipped if not path.exists() and shipped.is_dir() else path


@gin.configurable
@replaceable("policy")
def policy(folder: str, mesh: Mesh, computation: Computation = DEFAULT_COMPUTATION, adapter_seed: Seed = 0) -> Policy:
    """Loads a policy from a Hugging Face folder, or from the package ("atlas/cold_start").

    Args:
      folder: Folder with `config.json`, `model.safetensors` and `tokenizer.json`.
      mesh: Devices over which the parameters are sharded.
      computation: Platform settings; with `lora`, new adapters are added and the weights are frozen.
      adapter_seed: Seed of the adapters' randomly initialised matrices.
    """
    path, lora = resolved_folder(folder), computation.lora
    config, params = load_hugging_face(path, "float32" if lora is None else computation.compute_dtype, mesh)
    if lora is not None:
        config, params = add_lora(config, params, lora, jax.random.key(adapter_seed), mesh)
    config = computation.of(config)
    saved_dtype = None if lora is None else stored_dtype(path)
    return Policy(folder, config, params, _fitting_tokenizer(path, config), mesh, saved_dtype)


def _fitting_tokenizer(folder: pathlib.Path, config: DecoderConfig) -> HuggingFaceTokenizer:
    """Loads the tokenizer of a folder, and checks that the model embeds all of its tokens."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise UserError(
            f"{folder}/tokenizer.json has {tokenizer.vocabulary_size} tokens, but the model embeds only"
            f" {config.vocabulary_size}: the tokenizer belongs to another model"
        )
    return tokenizer


def model_file_shape() -> DecoderConfig | None:
    """Returns the model's shape as a file of gin/model binds it, or None if no such file is used."""
    decoder = gin.get_bindings("compile", resolve_references=False).get("decoder")
    return None if decoder is None else copy.deepcopy(decoder)  # copying a reference makes gin evaluate it


def check_shape(folder: str, like: Policy) -> None:
    """Checks that the `config.json` in a folder describes a model of the same shape as `like`.

    Raises:
      UserError: the shape differs, or `config.json` cannot be read.
    """
    if computation_of(like.config).of(read_config(resolved_folder(folder))) != like.config:
        raise UserError(
            f"the policy in {folder} has another shape than {like.name}: compare policies of one shape"
            " (Evaluation.references = {} compares with none)"
        )


def policy_parameters(folder: str, like: Policy) -> Any:
    """Loads the parameters of another policy of the same shape as `like`.

    Raises:
      UserError: the shape differs.
    """
    check_shape(folder, like)
    return policy(folder, like.mesh, computation_of(like.config)).params


def make_sampler(policy: Policy, mesh: Mesh | None = None) -> Sampler:
    """Returns the configured sampler with the policy's parameters, on `mesh` or by default the policy's mesh."""
    return Sampler(policy.config, policy.params, policy.tokenizer, configured_sampler(), mesh or policy.mesh)


def check_models(models: Iterable[object]) -> None:
    """Calls the method `check` of every model that has one, which raises a UserError if it cannot be loaded."""
    for model in models:
        getattr(model, "check", lambda: None)()


def make_runner(
    sampler: SlotSampler,
    policy: Policy,
    collections: SearchableCollections,
    seed: int,
    *,
    may_wait: bool = False,
) -> Runner:
    """Returns the configured episode runner.

    Processes that run the same programs in one lane must call the sampler with the same arguments at the same points,
    so they have to wait for searches.

    Args:
      sampler: The sampler.
      policy: The policy that the sampler runs.
      collections: The collections to search.
      seed: Seed of sampling.
      may_wait: Whether several processes wait for searches although `Runner.wait_for_searches` is False.

    Raises:
      UserError: several processes share the sampler without waiting for searches, or a model of the runner cannot be
        loaded.
    """
    parts: dict[str, Any] = {"sampler": sampler, "tokenizer": policy.tokenizer, "search": collections.search}
    if may_wait and together():
        parts |= {"wait_for_searches": True}
    runner = configured_runner(**parts, chat=configured_chat(), seed=seed)
    if together() and not runner.wait_for_searches:
        raise UserError(
            f"Runner.wait_for_searches is False, but {jax.process_count()} processes share one lane and must not go on"
            f" at different times: set Runner.wait_for_searches to True, or for train and evaluate Lanes.count to"
            f" {jax.process_count()} or a multiple of it"
        )
    check_models(runner.completers.values())
    return runner


def content_hashes(
    policy: Policy,
    collections: SearchableCollections | None,
    questions: Iterable[Question],
    models: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """Returns content hashes of the policy, collections, questions and models, which gin names only by their folders.

    Several processes compare these hashes, and also a fingerprint sampled from the policy's files, because each process
    reads only its shard of the parameters.

    Args:
      policy: The policy.
      collections: The collections to search.
      questions: All questions.
      models: Other models by name; models of endpoints have no hashes.

    Raises:
      UserError: the hosts of several processes have different files.
    """
    own = {
        "policy": parameter_fingerprint(policy.params),
        "tokenizer": policy.tokenizer.fingerprint(),
        "questions": records_fingerprint(questions),
    }
    for name, model in (models or {}).items():
        own |= {f"{name}/{part}": value for part, value in getattr(model, "hashes", {}).items()}
    own |= collections.content_hashes() if collections is not None else {}
    folder = resolved_folder(policy.name)
    files = {"folder of the policy": sampled_fingerprint(folder)} if jax.process_count() > 1 else {}
    check_same_everywhere(files | own)
    return own

"""The policy and what runs it, each built from a few gin bindings."""

import copy
import dataclasses
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import gin
import jax
from jax.sharding import Mesh

from lcrag.app.composition.stand_ins import replaceable
from lcrag.app.runs.sinks import Sinks
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
from lcrag.policy.bitwise import check_bitwise
from lcrag.policy.config import AttentionChoice, ComputeDtype, Remat
from lcrag.policy.model_files import sampled_fingerprint
from lcrag.retrieval import SearchableCollections, load_collections, load_encoder
from lcrag.sampling import Sampler, SamplerConfig, SlotSampler

WEIGHTS = pathlib.Path(__file__).parents[2] / "atlas" / "weights"

configured_sampler = gin.external_configurable(SamplerConfig, "Sampler", module="lcrag.sampling")
configured_runner = gin.external_configurable(Runner, module="lcrag.episodes")
configured_encoder = gin.external_configurable(load_encoder, module="lcrag.retrieval")
configured_chat = gin.external_configurable(Chat, module="lcrag.episodes")
gin.external_configurable(replaceable("mesh", "mesh")(make_mesh), "mesh", module="lcrag.policy")
configured_collections = gin.external_configurable(
    replaceable("collections")(load_collections), module="lcrag.retrieval"
)
gin.external_configurable(Retries, module="lcrag.episodes")
configured_sinks = gin.external_configurable(Sinks, "MetricsLog", module="lcrag.app.runs")
gin.register(Lora, module="lcrag.policy")


@gin.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class Computation:
    """Platform settings of a decoder: the fields of a `DecoderConfig` that no `config.json` holds.

    Attributes:
      compute_dtype: "float32" or "bfloat16", of activations; parameters that are trained stay float32.
      remat: What the backward pass recomputes; see `DecoderConfig`.
      attention: What attends over whole rows; "auto": the platform's own kernel.
      unroll_layers: Unroll the scan over layers; quicker for tiny models.
      windowed_einsum: TPUs: whether products of an update are cut into pieces that overlap with gathers of weights.
      bitwise: Whether sampling and training give the same log-probabilities to the bit; see `DecoderConfig`.
      lora: Adapters, the only trained parameters; frozen weights are held in the compute dtype. None: no adapters.
    """

    compute_dtype: ComputeDtype = "float32"
    remat: Remat = "none"
    attention: AttentionChoice = "auto"
    unroll_layers: bool = False
    windowed_einsum: bool = False
    bitwise: bool = False
    lora: Lora | None = None

    def of(self, config: DecoderConfig) -> DecoderConfig:
        """Returns the same decoder with these settings."""
        return dataclasses.replace(config, **{name: getattr(self, name) for name in _fields()})


def _fields() -> list[str]:
    return [field.name for field in dataclasses.fields(Computation)]


DEFAULT_COMPUTATION = Computation()


def computation_of(config: DecoderConfig) -> Computation:
    """Returns the platform settings of a decoder."""
    return Computation(**{name: getattr(config, name) for name in _fields()})


def resolved_folder(folder: str) -> pathlib.Path:
    """A folder of weights: a path, or the name of one that ships with the package ("atlas/cold_start").

    Of a folder in object storage, a local copy.
    """
    shipped = WEIGHTS / folder.removeprefix("atlas/")
    path = local_files(folder)
    return shipped if not path.exists() and shipped.is_dir() else path


@gin.configurable
@replaceable("policy")
def policy(folder: str, mesh: Mesh, computation: Computation = DEFAULT_COMPUTATION, adapter_seed: Seed = 0) -> Policy:
    """Loads a policy from a Hugging Face folder, or from the package ("atlas/cold_start").

    Args:
      folder: Where `config.json`, `model.safetensors` and `tokenizer.json` are.
      mesh: Devices.
      computation: Platform settings; with `lora`, new adapters are added and the weights are frozen.
      adapter_seed: Seed of the adapters' random halves.
    """
    check_bitwise(computation.bitwise, mesh)
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
    """Returns the shape that a file of gin/model gives the policy, or None if there is no such file."""
    decoder = gin.get_bindings("compile", resolve_references=False).get("decoder")
    return None if decoder is None else copy.deepcopy(decoder)  # gin evaluates a reference that is copied


def check_shape(folder: str, like: Policy) -> None:
    """Checks by its `config.json` that a folder's policy has the shape of `like`.

    Raises:
      UserError: it has another shape, or cannot be read.
    """
    if computation_of(like.config).of(read_config(resolved_folder(folder))) != like.config:
        raise UserError(
            f"the policy in {folder} has another shape than {like.name}: compare policies of one shape"
            " (Evaluation.references = {} compares with none)"
        )


def policy_parameters(folder: str, like: Policy) -> Any:
    """The parameters of another policy that has the same shape as `like`.

    Raises:
      UserError: it has another shape.
    """
    check_shape(folder, like)
    return policy(folder, like.mesh, computation_of(like.config)).params


def make_sampler(policy: Policy, mesh: Mesh | None = None) -> Sampler:
    """Returns the configured sampler with the policy's parameters, on the policy's mesh or another one."""
    return Sampler(policy.config, policy.params, policy.tokenizer, configured_sampler(), mesh or policy.mesh)


def check_models(models: Iterable[object]) -> None:
    """Raises a UserError if one of some models cannot be loaded; those without a method `check` are not checked."""
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
    """Returns the configured runner over a sampler and collections.

    Where several processes run the same programs, all must take the same decisions.

    Args:
      sampler: The slots.
      policy: The policy in them.
      collections: What is searched.
      seed: Seed of sampling.
      may_wait: Whether several processes wait for searches although `Runner.wait_for_searches` is False.

    Raises:
      UserError: decisions would depend on how long searches take in one of the processes, or a model of the runner
        cannot be loaded.
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
    """Returns the hash of everything that a result depends on and that gin names only by its folder.

    Several processes compare them, and samples of their policies' files: of the parameters each reads its part only.

    Args:
      policy: The policy.
      collections: The searched collections.
      questions: All questions.
      models: Other models, by name; those of endpoints have no hashes.

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

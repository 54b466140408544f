"""The parts of an experiment, each built from a few gin bindings."""

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gin
import jax
from jax.sharding import Mesh

from lcrag.app.composition.computation import DEFAULT_COMPUTATION, Computation, computation_of
from lcrag.atlas import World, build_world
from lcrag.atlas.comparisons import comparison_questions
from lcrag.data.batches import Coupled, coupled
from lcrag.data.fingerprints import records_fingerprint
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import Question
from lcrag.episodes import Chat, Retries, Runner
from lcrag.errors import UserError
from lcrag.policy import (
    DecoderConfig,
    HuggingFaceTokenizer,
    Policy,
    add_lora,
    load_hugging_face,
    load_tokenizer,
    make_mesh,
    read_config,
    stored_dtype,
)
from lcrag.policy.fingerprint import parameter_fingerprint
from lcrag.retrieval import (
    Collections,
    Encoder,
    Passage,
    SearchableCollections,
    build_collection,
    load_collections,
    load_encoder,
)
from lcrag.sampling import Sampler, SamplerConfig

WEIGHTS = pathlib.Path(__file__).parents[2] / "atlas" / "weights"

configured_sampler = gin.external_configurable(SamplerConfig, "Sampler", module="lcrag.sampling")
configured_runner = gin.external_configurable(Runner, module="lcrag.episodes")
configured_encoder = gin.external_configurable(load_encoder, module="lcrag.retrieval")
configured_chat = gin.external_configurable(Chat, module="lcrag.episodes")
gin.external_configurable(make_mesh, "mesh", module="lcrag.policy")
gin.external_configurable(load_collections, module="lcrag.retrieval")
gin.external_configurable(Retries, module="lcrag.episodes")


def resolved_folder(folder: str) -> pathlib.Path:
    """A folder of weights: a path, or the name of one that ships with the package ("atlas/cold_start")."""
    shipped = WEIGHTS / folder.removeprefix("atlas/")
    path = pathlib.Path(folder)
    return shipped if not path.exists() and shipped.is_dir() else path


@gin.configurable
def policy(folder: str, mesh: Mesh, computation: Computation = DEFAULT_COMPUTATION, adapter_seed: int = 0) -> Policy:
    """Loads a policy from a Hugging Face folder, or from the package ("atlas/cold_start").

    Args:
      folder: Where `config.json`, `model.safetensors` and `tokenizer.json` are.
      mesh: Devices.
      computation: How it is computed on them; with adapters, fresh ones are added and the weights are frozen.
      adapter_seed: Of the adapters' random halves.
    """
    path, lora = resolved_folder(folder), computation.lora
    config, params = load_hugging_face(path, "float32" if lora is None else computation.compute_dtype, mesh)
    if lora is not None:
        config, params = add_lora(config, params, lora, jax.random.key(adapter_seed), mesh)
    config = computation.of(config)
    saved_dtype = None if lora is None else stored_dtype(path)
    return Policy(folder, config, params, _fitting_tokenizer(path, config), mesh, saved_dtype)


def _fitting_tokenizer(folder: pathlib.Path, config: DecoderConfig) -> HuggingFaceTokenizer:
    """The tokenizer of a folder, whose every token has a row in the model's embedding."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise UserError(
            f"{folder}/tokenizer.json has {tokenizer.vocabulary_size} tokens, but the model embeds only"
            f" {config.vocabulary_size}: the tokenizer belongs to another model"
        )
    return tokenizer


def check_shape(folder: str, like: Policy) -> None:
    """Refuses a folder whose policy has another shape than `like`, by its `config.json`.

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


@gin.configurable
def atlas_world(seed: int = 0, english_coverage: float = 0.8, coverage: float = 0.55) -> World:
    """The embedded world; see `lcrag.atlas.build_world`."""
    return build_world(seed, english_coverage=english_coverage, coverage=coverage)


@gin.configurable
def atlas_questions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    hops: int | None = 1,
    copyable: bool | None = None,
    translated_share: float = 1.0,
    limit: int | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """The atlas's questions of a split, every language version of a question together.

    Args:
      split: train, validation, held_out or unseen.
      languages: Languages to ask in.
      hops: 1, 2 or None for both.
      copyable: Only answers used as they are in every language (True), only translated ones (False), or both.
      translated_share: Share of the questions with translated answers that is kept, spread evenly.
      limit: At most this many questions, each in all languages, spread evenly over the split.
      world: Builds the atlas.
    """
    table = coupled(world().questions(split, languages, hops, copyable))
    used_as_they_are = [versions for versions in table if versions[0].extra["copyable"]]
    translated = [versions for versions in table if not versions[0].extra["copyable"]]
    table = used_as_they_are + _spread(translated, round(translated_share * len(translated)))
    table = table if limit is None else _spread(table, limit)
    return [question for versions in table for question in versions]


@gin.configurable
def atlas_comparisons(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    limit: int | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """The atlas's comparison questions of a split; see `lcrag.atlas.comparisons`.

    Args:
      split: train, validation, held_out or unseen.
      languages: Languages to ask in.
      limit: At most this many questions, each in all languages, spread evenly over the split.
      world: Builds the atlas.
    """
    table = coupled(comparison_questions(world(), split, languages))
    return [question for versions in _spread(table, limit or len(table)) for question in versions]


def _spread(items: Sequence[Coupled], count: int) -> list[Coupled]:
    """At most `count` items, evenly spaced."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


@gin.configurable
def atlas_collections(
    folder: str | None = None, encoder: str = "atlas/encoder", world: Callable[[], World] = atlas_world
) -> Collections:
    """One collection per language of the atlas, built on first use and kept in the user's cache.

    Args:
      folder: Where they are kept; None: a folder of the cache named by the world's and the encoder's fingerprints.
      encoder: Folder of the encoder, or the name of one that ships with the package.
      world: Builds the atlas.
    """
    atlas, opened = world(), configured_encoder(resolved_folder(encoder))
    root = pathlib.Path(folder) if folder else cache_folder() / f"{atlas.fingerprint()}-{opened.fingerprint()}"
    return kept_collections(root, opened, LCRL_LANGUAGES, atlas.passages)


def kept_collections(
    root: pathlib.Path,
    encoder: Encoder,
    languages: Sequence[str],
    passages: Callable[[str], Iterable[Passage]],
) -> Collections:
    """The collections in a folder, those that are not there yet built first."""
    for language in languages:
        if not (root / language).exists():
            build_collection(passages(language), encoder, root, language=language)
    return load_collections(root, encoder)


def cache_folder() -> pathlib.Path:
    """Where what can be rebuilt is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "lcrag" / "collections"


def make_sampler(policy: Policy) -> Sampler:
    """The sampler, as configured, with the policy's parameters."""
    return Sampler(policy.config, policy.params, policy.tokenizer, configured_sampler(), policy.mesh)


def make_runner(sampler: Sampler, policy: Policy, collections: SearchableCollections, seed: int) -> Runner:
    """The runner, as configured, over a sampler and some collections.

    Of several processes each has its own, and runs all programs: what they do next must be the same everywhere.

    Raises:
      UserError: it would depend on the time that searches take in one of the processes.
    """
    parts = {"sampler": sampler, "tokenizer": policy.tokenizer, "search": collections.search}
    runner = configured_runner(**parts, chat=configured_chat(), seed=seed)
    if jax.process_count() > 1 and not runner.wait_for_searches:
        raise UserError(
            f"Runner.wait_for_searches is False, but {jax.process_count()} processes sample together and must not go"
            " on at different times: set it to True"
        )
    return runner


def content_hashes(
    policy: Policy,
    collections: SearchableCollections | None,
    questions: Iterable[Question],
    models: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """The hash of everything that a result depends on and that gin names only by its folder.

    Args:
      policy: Who answers.
      collections: What is searched.
      questions: All that are asked.
      models: Other models that take part, by name; those behind an endpoint have no hashes.
    """
    own = {
        "policy": parameter_fingerprint(policy.params),
        "tokenizer": policy.tokenizer.fingerprint(),
        "questions": records_fingerprint(questions),
    }
    for name, model in (models or {}).items():
        own |= {f"{name}/{part}": value for part, value in getattr(model, "hashes", {}).items()}
    return own | (collections.content_hashes() if collections is not None else {})

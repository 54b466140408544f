"""Loads policies, and fingerprints what a run reads."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from lcrag.data.files import records_fingerprint
from lcrag.data.questions import Question
from lcrag.episodes.agreement import check_same_everywhere
from lcrag.errors import UserError
from lcrag.files import resolved_folder
from lcrag.policy import (
    DecoderConfig,
    HuggingFaceTokenizer,
    Policy,
    add_lora,
    load_hugging_face,
    load_tokenizer,
    parameter_fingerprint,
    read_config,
    stored_dtype,
)
from lcrag.policy.model_files import sampled_fingerprint
from lcrag.policy.policy import DEFAULT_COMPUTATION, Computation, computation_of
from lcrag.retrieval import SearchableCollections


def policy(folder: str, mesh: Mesh, computation: Computation = DEFAULT_COMPUTATION, adapter_seed: int = 0) -> Policy:
    """Loads a policy from a Hugging Face folder, or from the package ("atlas/cold_start").

    Args:
      folder: Folder with `config.json`, `model.safetensors` and `tokenizer.json`.
      mesh: Devices over which the parameters are sharded.
      computation: Platform settings; with `lora`, new adapters are added and the weights are frozen.
      adapter_seed: int of the adapters' randomly initialised matrices.
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

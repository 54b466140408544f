"""Loads, checks, fingerprints and exports what a run reads and leaves."""

import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from lcrag.data.questions import Question
from lcrag.data.rows import records_fingerprint
from lcrag.episodes.agreement import check_same_everywhere
from lcrag.errors import UserError
from lcrag.files import resolved_folder
from lcrag.learning import Layout
from lcrag.policy import (
    AnyMesh,
    Policy,
    add_lora,
    load_hugging_face,
    load_tokenizer,
    parameter_fingerprint,
    read_config,
    save_hugging_face,
    stored_dtype,
)
from lcrag.policy.config import ComputeDtype
from lcrag.policy.model_files import sampled_fingerprint
from lcrag.policy.policy import DEFAULT_COMPUTATION, Computation, computation_of
from lcrag.retrieval import SearchableCollections
from lcrag.rewards import Reward, TermSum


def policy(folder: str, mesh: Mesh, computation: Computation = DEFAULT_COMPUTATION, adapter_seed: int = 0) -> Policy:
    """Loads a policy from a Hugging Face folder, or from the package ("atlas/cold_start").

    Its parameters are sharded over the mesh. With `computation.lora`, new adapters are added, whose random matrices
    `adapter_seed` selects, and the weights are frozen.
    """
    path, lora = resolved_folder(folder), computation.lora
    config, params = load_hugging_face(path, "float32" if lora is None else computation.compute_dtype, mesh)
    if lora is not None:
        config, params = add_lora(config, params, lora, jax.random.key(adapter_seed), mesh)
    config = computation.of(config)
    saved_dtype = None if lora is None else stored_dtype(path)
    tokenizer = load_tokenizer(path)
    if tokenizer.vocabulary_size > config.vocabulary_size:
        raise UserError(
            f"{path}/tokenizer.json has {tokenizer.vocabulary_size} tokens, but the model embeds only"
            f" {config.vocabulary_size}: the tokenizer belongs to another model"
        )
    return Policy(folder, config, params, tokenizer, mesh, saved_dtype)


def check_shape(folder: str, like: Policy) -> None:
    """Raises a UserError unless the `config.json` in a folder describes a model of the same shape as `like`."""
    if computation_of(like.config).of(read_config(resolved_folder(folder))) != like.config:
        raise UserError(
            f"the policy in {folder} has another shape than {like.name}: compare policies of one shape"
            " (Evaluation.references = {} compares with none)"
        )


def check_models(models: Iterable[object]) -> None:
    """Calls the method `check` of every model that has one, which raises a UserError if it cannot be loaded."""
    for model in models:
        getattr(model, "check", lambda: None)()


def check_rewarded(reward: Reward | None, questions: Iterable[Question]) -> None:
    """Checks before sampling that a reward can score every question and that its models can be loaded.

    Raises:
      UserError: the text names the model, or the question and the missing data.
    """
    if isinstance(reward, TermSum):
        check_models(reward.models.values())
        for question in questions:
            reward.check(f"{question.coupling} in {question.language} ({question.text[:60]!r})", question.extra)


def check_rows(layout: Layout, context: int, mesh: AnyMesh) -> None:
    """Raises a UserError if training rows cannot hold a full context or be divided among the devices."""
    layout.row_length(context)
    check_shares(layout, mesh)


def check_shares(layout: Layout, mesh: AnyMesh) -> None:
    """Raises a UserError if training rows cannot be divided among the devices."""
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    if layout.rows % shares:
        raise UserError(f"Layout.rows is {layout.rows} for {shares} devices: make it a multiple of {shares}")


def content_hashes(
    policy: Policy,
    collections: SearchableCollections | None,
    questions: Iterable[Question],
    models: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """Returns content hashes of the policy, collections, questions and models, which gin names only by their folders.

    Several processes compare these hashes, and also a fingerprint sampled from the policy's files, because each process
    reads only its shard of the parameters. Models of endpoints have no hashes.

    Raises:
      UserError: the hosts of several processes have different files.
    """
    hashes = {
        "policy": parameter_fingerprint(policy.params),
        "tokenizer": policy.tokenizer.fingerprint(),
        "questions": records_fingerprint(questions),
    }
    for name, model in (models or {}).items():
        hashes |= {f"{name}/{part}": value for part, value in getattr(model, "hashes", {}).items()}
    hashes |= collections.content_hashes() if collections is not None else {}
    folder = resolved_folder(policy.name)
    files = {"folder of the policy": sampled_fingerprint(folder)} if jax.process_count() > 1 else {}
    check_same_everywhere(files | hashes)
    return hashes


def save_policy(folder: pathlib.Path, policy: Policy, params: Any, dtype: ComputeDtype | None = None) -> None:
    """Writes a policy with the given parameters as a Hugging Face folder: weights, configuration, tokenizer, template.

    Adapters are merged; tensors have the policy's `saved_dtype` unless `dtype` is given.
    """
    save_hugging_face(folder, policy.config, params, dtype or policy.saved_dtype, eos_ids=policy.tokenizer.eos_ids)
    if jax.process_index() == 0:
        policy.tokenizer.save(folder)

"""Loads, checks and fingerprints what a run reads, saves its steps, and exports its policy."""

import contextlib
import pathlib
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import PyTree

from lcrag.data.questions import Question, records_fingerprint
from lcrag.episodes.runner import check_same_everywhere
from lcrag.errors import UserError
from lcrag.files import resolved_folder
from lcrag.learning import Layout
from lcrag.learning.checkpoints import Checkpoints
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
from lcrag.policy.config import DEFAULT_COMPUTATION, Computation, ComputeDtype, computation_of
from lcrag.policy.hugging_face import sampled_fingerprint
from lcrag.retrieval import SearchableCollections
from lcrag.rewards import Reward, TermSum
from lcrag.runs.folder import upload_copies
from lcrag.runs.processes import HeldSignals, Stopped

# --- Before the first step ---


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
    """Checks before sampling that a reward can score every question and that its models can be loaded."""
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


# --- Between steps ---


class StepCheckpoints:
    """Saves a run's steps, and defers SIGTERM and Ctrl-C while its block runs, except in `interruptible` blocks.

    At the end of the block everything saved is complete on disk, except after an error. With several processes, a
    signal to any of them ends all after the same step. `state` returns what to save; the state before `first_step` is
    already saved, or is the initial one. If a deferred signal arrived, the block ends by `Stopped`.
    """

    def __init__(self, checkpoints: Checkpoints, state: Callable[[], PyTree], first_step: int):
        self._checkpoints, self._state, self._signals = checkpoints, state, HeldSignals()
        self._done = self._saved = first_step

    def __enter__(self) -> "StepCheckpoints":
        self._signals.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if isinstance(error, Stopped):
                self._save()
            if error is None or isinstance(error, Stopped):
                self._checkpoints.wait()
            if error is None:
                self._raise_agreed()
        finally:
            self._signals.__exit__()
        if error is None:
            self._signals.raise_held()  # a signal to this process alone, after the last agreement

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block that a signal can end at any point by `Stopped`; it must not change the state.

        With several processes, steps are always finished, because one process cannot abandon collective work.
        """
        return contextlib.nullcontext() if jax.process_count() > 1 else self._signals.let_through()

    def finish(self, step: int, *, save: bool, validation_loss: float | None = None) -> None:
        """Records that a step is done, and saves the state after it if `save`; raises `Stopped` after a signal."""
        self._done = step + 1
        if save:
            self._save(validation_loss)
        self._raise_agreed()

    def _raise_agreed(self) -> None:
        """Raises a signal that all processes know of; a signal to this process alone stays deferred until they do."""
        number = self._signals.number
        if jax.process_count() > 1:
            number = int(multihost_utils.process_allgather(np.int32(number)).max())
        if number:
            self._signals.number = number  # which any of the processes may have received
            self._signals.raise_held()

    def _save(self, validation_loss: float | None = None) -> None:
        if self._done > self._saved:
            upload_copies()  # first: a checkpoint in object storage has the metrics of its steps there
            self._checkpoints.save(self._done, self._state(), validation_loss)
            self._saved = self._done

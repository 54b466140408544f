"""Policies in folders: loaded with their tokenizer onto devices, compared in shape, and saved."""

import logging
import os
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh

from lcrag.errors import UserError, typed
from lcrag.files import resolved_folder
from lcrag.policy.config import DEFAULT_COMPUTATION, Computation, ComputeDtype, DecoderConfig, make_mesh
from lcrag.policy.hugging_face import load_hugging_face, read_config, save_hugging_face, stored_dtype
from lcrag.policy.parameters import Policy, add_lora
from lcrag.policy.tokenizer import load_tokenizer


@typed
def load_policy(
    folder: str | os.PathLike[str],
    mesh: Mesh | None = None,
    computation: Computation = DEFAULT_COMPUTATION,
    adapter_seed: int = 0,
) -> Policy:
    """Loads a policy from a Hugging Face folder, or from the package ("atlas/cold_start").

    Its parameters are sharded over the mesh (None: on the first device). With `computation.lora`, new adapters are
    added, whose random matrices `adapter_seed` selects, and the weights are frozen.

    Raises:
      UserError: The folder holds no model, or its files do not belong together.
    """
    path, lora = resolved_folder(folder), computation.lora
    mesh = make_mesh(devices=jax.devices()[:1]) if mesh is None else mesh
    logging.getLogger("lcrag.activity").info("loading the policy %s", path)
    config, params = load_hugging_face(path, "float32" if lora is None else computation.compute_dtype, mesh)
    if lora is not None:
        config, params = add_lora(config, params, lora, jax.random.key(adapter_seed), mesh)
    config = computation.of(config)
    saved_dtype = None if lora is None else stored_dtype(path)
    tokenizer = load_tokenizer(path)
    config.check_vocabulary(tokenizer.vocabulary_size, path)
    return Policy(os.fspath(folder), config, params, tokenizer, mesh, saved_dtype)


def check_shape(folder: str, config: DecoderConfig, name: str) -> None:
    """Raises a UserError unless the `config.json` in a folder describes a model of the same shape as the policy's."""
    if config.of(read_config(resolved_folder(folder))) != config:
        raise UserError(
            f"the policy in {folder} has another shape than {name}: compare policies of one shape"
            " (Evaluation.references = {} compares with none)"
        )


def save_policy(folder: str | pathlib.Path, policy: Policy, params: Any, dtype: ComputeDtype | None = None) -> None:
    """Writes a policy with the given parameters as a Hugging Face folder: weights, configuration, tokenizer, template.

    Adapters are merged; tensors have the policy's `saved_dtype` unless `dtype` is given.
    """
    tokenizer = policy.tokenizer
    dtype = dtype or policy.saved_dtype
    save_hugging_face(folder, policy.config, params, dtype, eos_ids=tokenizer.eos_ids, save_tokenizer=tokenizer.save)

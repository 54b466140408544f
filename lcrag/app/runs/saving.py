"""A policy as a Hugging Face folder: weights, configuration, tokenizer and chat template."""

import pathlib
from typing import Any

import jax

from lcrag.policy import Policy, save_hugging_face
from lcrag.policy.config import ComputeDtype


def save_policy(folder: pathlib.Path, policy: Policy, params: Any, dtype: ComputeDtype | None = None) -> None:
    """Writes a policy with these parameters, so that `transformers` and lcrag open it alike.

    Args:
      folder: Created if absent.
      policy: Its configuration and tokenizer.
      params: All its parameters; adapters are merged into what they adapt.
      dtype: Of the tensors in the files; None: the policy's `saved_dtype`.
    """
    save_hugging_face(folder, policy.config, params, dtype or policy.saved_dtype, eos_ids=policy.tokenizer.eos_ids)
    if jax.process_index() == 0:
        policy.tokenizer.save(folder)

"""The trained policy as a Hugging Face folder, which `transformers` opens."""

import pathlib
from typing import Any

import jax

from lcrag.policy import Policy, save_hugging_face
from lcrag.policy.config import ComputeDtype


def save_policy(folder: pathlib.Path, policy: Policy, params: Any, dtype: ComputeDtype | None = None) -> None:
    """Writes a policy with the given parameters as a Hugging Face folder: weights, configuration, tokenizer, template.

    Args:
      folder: Created if missing.
      policy: Its configuration and tokenizer.
      params: All its parameters; adapters are merged.
      dtype: Dtype of the stored tensors; None: the policy's `saved_dtype`.
    """
    save_hugging_face(folder, policy.config, params, dtype or policy.saved_dtype, eos_ids=policy.tokenizer.eos_ids)
    if jax.process_index() == 0:
        policy.tokenizer.save(folder)

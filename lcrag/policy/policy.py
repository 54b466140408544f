"""A policy: a decoder with its parameters, its tokenizer and its devices."""

import dataclasses
from typing import Any

from jax.sharding import Mesh

from lcrag.policy.config import ComputeDtype, DecoderConfig
from lcrag.policy.hugging_face_tokenizer import HuggingFaceTokenizer


@dataclasses.dataclass(frozen=True)
class Policy:
    """A decoder with its parameters, tokenizer and devices.

    Attributes:
      name: The folder that it comes from.
      config: The decoder.
      params: Its parameters.
      tokenizer: Its tokenizer.
      mesh: Devices.
      saved_dtype: Of the tensors in the files when it is saved: with adapters that of its folder, whatever the frozen
        weights are held in; None: that of the parameters.
    """

    name: str
    config: DecoderConfig
    params: Any
    tokenizer: HuggingFaceTokenizer
    mesh: Mesh
    saved_dtype: ComputeDtype | None = None

"""The `Policy` value: a decoder with everything needed to run it."""

import dataclasses
from typing import Any

from jax.sharding import Mesh

from lcrag.policy.config import ComputeDtype, DecoderConfig
from lcrag.policy.hugging_face_tokenizer import HuggingFaceTokenizer


@dataclasses.dataclass(frozen=True)
class Policy:
    """A decoder with its parameters, tokenizer and devices.

    Attributes:
      name: The folder that it was loaded from.
      config: The decoder.
      params: Its parameters.
      tokenizer: Its tokenizer.
      mesh: Its devices.
      saved_dtype: Dtype of the stored tensors when it is saved; with adapters, that of its folder. None: that of the
        parameters.
    """

    name: str
    config: DecoderConfig
    params: Any
    tokenizer: HuggingFaceTokenizer
    mesh: Mesh
    saved_dtype: ComputeDtype | None = None

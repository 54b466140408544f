"""How an encoder turns texts into vectors."""

import dataclasses
from typing import Literal, get_args

from lcrag.errors import UserError

Pooling = Literal["mean", "cls"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """How texts become vectors.

    Attributes:
      pooling: "mean" over the tokens (E5: Wang et al. 2022, arXiv:2212.03533) or "cls", the first token (BGE).
      query_prefix: Put in front of a query before tokenization.
      passage_prefix: Put in front of a passage.
      max_tokens: Longer texts are cut on the right.
    """

    pooling: Pooling = "mean"
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise UserError(f"pooling {self.pooling!r} is not supported: choose 'mean' or 'cls'")
        if self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}: an encoder must read at least one token")

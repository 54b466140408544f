"""LoRA (Hu et al., 2022, arXiv:2106.09685): low-rank adapters beside frozen linear layers."""

import dataclasses

from lcrag.errors import UserError

# Every linear layer of a block, by its path in it.
LINEAR_LAYERS = (
    "attention/query",
    "attention/key",
    "attention/value",
    "attention/output",
    "mlp/gate",
    "mlp/up",
    "mlp/down",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Adapters of some linear layers: y = x W + (alpha / rank) x A B, where only A and B are learned.

    A begins uniform in ±1/sqrt(inputs), as in the authors' code and in PEFT, and B at zero: a policy with fresh
    adapters is the policy without them.

    Attributes:
      rank: Columns of A and rows of B.
      alpha: The adapters' strength: their product is scaled by alpha / rank.
      targets: The layers that have adapters, of `LINEAR_LAYERS`.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = LINEAR_LAYERS

    def __post_init__(self):
        object.__setattr__(self, "targets", tuple(self.targets))  # gin gives lists too, and a config is hashed
        if self.rank < 1 or self.alpha <= 0:
            raise UserError(f"Lora(rank={self.rank}, alpha={self.alpha}) adapts nothing: make both positive")
        if not self.targets or (unknown := sorted(set(self.targets) - set(LINEAR_LAYERS))):
            what = f"there is no linear layer {unknown[0]!r}" if self.targets else "no layer is named"
            raise UserError(f"Lora.targets: {what}; choose among {', '.join(LINEAR_LAYERS)}")

    @property
    def scale(self) -> float:
        """What the product of the adapters is multiplied with."""
        return self.alpha / self.rank

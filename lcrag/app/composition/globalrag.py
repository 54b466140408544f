"""What GlobalRAG needs beside other methods: an encoder of sub-questions, plans of one-hop questions."""

import functools
from collections.abc import Mapping, Sequence

import gin
import numpy as np
from jaxtyping import Float

from lcrag.app.composition.components import configured_encoder, resolved_folder
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.methods.globalrag.golden_plans import with_own_plan
from lcrag.retrieval import Encoder
from lcrag.retrieval.bert import read_config


class QuestionEncoder:
    """Embeds sub-questions as queries; its weights are loaded when it is first asked, so that evaluations need none.

    Args:
      folder: Folder of the encoder, or the name of one that ships with the package.

    Raises:
      UserError: there is no encoder in the folder.
    """

    def __init__(self, folder: str):
        self._folder = resolved_folder(folder)
        read_config(
            self._folder / "config.json"
        )  # a mistake is said before anything is sampled, and not after the first rollout

    @functools.cached_property
    def _encoder(self) -> Encoder:
        return configured_encoder(self._folder)

    @property
    def hashes(self) -> Mapping[str, str]:
        """The fingerprint of its weights, settings and tokenizer, which are loaded for it."""
        return {"encoder": self._encoder.fingerprint()}

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "texts width"]:
        """A vector of unit length for each text."""
        return self._encoder.encode(texts, kind="query")


@gin.configurable
def question_encoder(folder: str) -> QuestionEncoder:
    """What compares the sub-questions of plans (the paper: E5-base).

    Args:
      folder: Folder of the encoder, or the name of one that ships with the package ("atlas/encoder").
    """
    return QuestionEncoder(folder)


@gin.configurable
def with_own_plans(questions: Sequence[Question]) -> list[Question]:
    """Questions of which those without a golden plan are their own; see `lcrag.methods.globalrag.golden_plans`.

    Args:
      questions: Of one hop, or with golden plans.

    Raises:
      UserError: a golden plan is none.
    """
    try:
        return [with_own_plan(question) for question in questions]
    except ValueError as error:
        raise UserError(f"a golden plan of the questions cannot be used: {error}; mend it in their file") from error

"""Frozen models that episodes or rewards use: local checkpoints, endpoints, and an encoder."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import gin
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from lcrag.composition.components import DEFAULT_COMPUTATION, Computation, configured_encoder, resolved_folder
from lcrag.episodes import Chat, Completer, Completion, GenerationFailure
from lcrag.errors import UserError
from lcrag.limits import Count
from lcrag.models.completers import SamplerCompleter
from lcrag.policy import load_hugging_face, load_tokenizer, parameter_fingerprint, read_config
from lcrag.retrieval import Encoder, bert
from lcrag.sampling import Sampler, SamplerConfig, SamplingParameters


@gin.configurable
def local_model(
    folder: str,
    mesh: Mesh,
    computation: Computation = DEFAULT_COMPUTATION,
    slots: Count = 64,
    context: Count = 2048,
    block: Count = 32,
    append_rows: Sequence[Count] = (),
    append_tokens: Sequence[Count] = (64, 512),
    chat_template: bool = True,
) -> Completer:
    """Returns a local checkpoint of any architecture with its own sampler; its weights are loaded on first use.

    Args:
      folder: A Hugging Face folder, or the name of one that ships with the package.
      mesh: Devices over which its parameters are sharded.
      computation: Platform settings; the weights are held in the compute dtype, without adapters.
      slots: Number of contexts that are sampled at the same time.
      context: Length of a context in tokens: the longest prompt with its answer.
      block: Tokens sampled in one call, after which the host checks for finished answers.
      append_rows: Row counts that are compiled for prefill.
      append_tokens: Chunk lengths that are compiled for prefill, in tokens.
      chat_template: Whether to use the model's chat template, if it has one.

    Raises:
      UserError: the folder holds no checkpoint, or the model's context is shorter than `context`.
    """
    path = resolved_folder(folder)
    settings = SamplerConfig(
        slots=slots, context=context, block=block, append_rows=append_rows, append_tokens=append_tokens
    )

    def load() -> tuple[Completer, Mapping[str, str]]:
        config, params = load_hugging_face(path, computation.compute_dtype, mesh)
        tokenizer = load_tokenizer(path)
        sampler = Sampler(
            dataclasses.replace(computation, lora=None).of(config),
            params,
            tokenizer,
            settings,
            mesh,
        )
        hashes = {"parameters": parameter_fingerprint(params), "tokenizer": tokenizer.fingerprint()}
        return SamplerCompleter(sampler, tokenizer, Chat(template=chat_template)), hashes

    return LoadedWhenAsked(load, lambda: read_config(path))


class LoadedWhenAsked:
    """A model that is loaded on first use, and so takes no memory in an evaluation without rewards.

    Args:
      load: Returns the model and its fingerprints.
      check: Raises a UserError if the model cannot be loaded; called before sampling by commands that use the model.
    """

    def __init__(self, load: Callable[[], tuple[Completer, Mapping[str, str]]], check: Callable[[], object]):
        self._loaded, self.check = functools.cache(load), check

    @property
    def hashes(self) -> Mapping[str, str]:
        """Fingerprints of the parameters and the tokenizer; reading them loads the model."""
        _, hashes = self._loaded()
        return hashes

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> Sequence[Completion | GenerationFailure]:
        """Completes a batch of prompts."""
        model, _ = self._loaded()
        return model(requests)


class QuestionEncoder:
    """Embeds the sub-questions of plans as queries (the paper: E5-base); its weights are loaded on first use.

    Args:
      folder: Folder of the encoder, or the name of one that ships with the package; None: it cannot be used.
    """

    def __init__(self, folder: str | None):
        self._folder = None if folder is None else resolved_folder(folder)

    def check(self) -> None:
        """Raises a UserError if there is no encoder in the folder; called before sampling."""
        if self._folder is None:
            raise UserError("question_encoder.folder names no encoder: give the folder of one with --gin.ENCODER")
        bert.read_config(self._folder / "config.json")

    @functools.cached_property
    def _encoder(self) -> Encoder:
        self.check()
        return configured_encoder(self._folder)

    @property
    def hashes(self) -> Mapping[str, str]:
        """The fingerprint of the weights, settings and tokenizer; reading it loads the encoder."""
        return {"encoder": self._encoder.fingerprint()}

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "texts width"]:
        """Returns a vector of unit length for each text."""
        return self._encoder.encode(texts, kind="query")


@gin.configurable
def question_encoder(folder: str) -> QuestionEncoder:
    """Returns the encoder of plans' sub-questions; see `QuestionEncoder`."""
    return QuestionEncoder(folder)

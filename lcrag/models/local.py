"""Models on this machine that episodes or rewards use: checkpoints with their own sampler, and an encoder."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence

import gin
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from lcrag.episodes import Chat, Completer, Completion, GenerationFailure, completion_of
from lcrag.errors import UserError, typed
from lcrag.files import resolved_folder
from lcrag.models.completers import without_thought
from lcrag.policy import Tokenizer, load_hugging_face, load_tokenizer, parameter_fingerprint, read_config
from lcrag.policy.policy import DEFAULT_COMPUTATION, Computation
from lcrag.retrieval import Encoder, bert
from lcrag.retrieval.encoder_folder import configured_encoder
from lcrag.sampling import Sampler, SamplerConfig, SamplingParameters, continue_contexts


class SamplerCompleter:
    """A model of any architecture on this machine, as a `Completer`.

    Args:
      sampler: Its slots; nothing else may use them.
      tokenizer: Its tokenizer.
      chat: How prompts are given to it if it has a chat template.

    Raises:
      UserError: the chat template does not support a setting of `chat`.
    """

    def __init__(self, sampler: Sampler, tokenizer: Tokenizer, chat: Chat):
        chat.check(tokenizer)
        self._sampler, self._tokenizer, self._chat = sampler, tokenizer, chat

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> list[Completion | GenerationFailure]:
        """Completes a batch of prompts; one whose thought is cut at its token limit fails.

        Raises:
          UserError: a prompt leaves no room for a token in the model's context; or the call is on another thread than
            the policy's while several processes share the devices, which would then run different computations.
        """
        if jax.process_count() > 1 and threading.current_thread() is not threading.main_thread():
            raise UserError(
                f"a second model on the same devices cannot answer during rollouts in {jax.process_count()} processes:"
                " serve it, and name its endpoint instead"
            )
        contexts = [
            (self._chat.opening(self._tokenizer, prompt).ids, dataclasses.replace(generation, unscaled_scores=True))
            for prompt, generation in requests
        ]
        sampled = continue_contexts(self._sampler, contexts)
        answers: list[Completion | GenerationFailure] = []
        for completion in (completion_of(each, self._tokenizer) for each in sampled):
            said = without_thought(completion.text)
            if said is None:
                failure = GenerationFailure(f"its thought was cut after {completion.tokens} tokens: allow it more")
                answers.append(failure)
            elif said == completion.text:
                answers.append(completion)
            else:
                reason = completion.finish_reason
                answers.append(Completion(text=said, finish_reason=reason, tokens=completion.tokens))
        return answers


@gin.configurable
@typed
def local_model(
    folder: str,
    mesh: Mesh,
    computation: Computation = DEFAULT_COMPUTATION,
    slots: int = 64,
    context: int = 2048,
    block: int = 32,
    append_rows: Sequence[int] = (),
    append_tokens: Sequence[int] = (64, 512),
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

    return LazyModel(load, lambda: read_config(path))


class LazyModel:
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


@gin.register("question_encoder")
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

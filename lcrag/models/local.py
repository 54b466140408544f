"""Models on this machine that episodes or rewards use: checkpoints with their own sampler, and an encoder."""

import dataclasses
import functools
import threading
from collections.abc import Mapping, Sequence

import gin
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from lcrag.episodes import Chat, Completion, GenerationFailure, completion_of
from lcrag.errors import UserError, typed
from lcrag.files import resolved_folder
from lcrag.models.completers import without_thought
from lcrag.policy import Tokenizer, load_hugging_face, load_tokenizer, parameter_fingerprint, read_config
from lcrag.policy.policy import DEFAULT_COMPUTATION, Computation
from lcrag.retrieval import Encoder, bert
from lcrag.retrieval.encoder import configured_encoder
from lcrag.sampling import Sampler, SamplerConfig, SamplingParameters, continue_contexts


class SamplerCompleter:
    """A model of any architecture on this machine, as a `Completer`.

    Args:
      sampler: Its slots; nothing else may use them.
      tokenizer: Its tokenizer.
      chat: How prompts are given to it if it has a chat template.
    """

    def __init__(self, sampler: Sampler, tokenizer: Tokenizer, chat: Chat):
        chat.check(tokenizer)
        self._sampler, self._tokenizer, self._chat = sampler, tokenizer, chat

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> list[Completion | GenerationFailure]:
        """Completes a batch of prompts; one whose thought is cut at its token limit fails.

        A prompt that leaves no room for a token in the model's context is a UserError.
        """
        # On another thread than the policy's, the processes would run different computations on the same devices.
        if jax.process_count() > 1 and threading.current_thread() is not threading.main_thread():
            raise UserError(
                f"a second model on the same devices cannot answer during rollouts in {jax.process_count()} processes:"
                " serve it, and name its endpoint instead"
            )
        contexts = [
            (self._chat.opening(self._tokenizer, prompt).ids, dataclasses.replace(generation, unscaled_scores=True))
            for prompt, generation in requests
        ]
        answers: list[Completion | GenerationFailure] = []
        for sampled in continue_contexts(self._sampler, contexts):
            completion = completion_of(sampled, self._tokenizer)
            text, tokens = without_thought(completion.text), completion.tokens
            if text is None:
                answers.append(GenerationFailure(f"its thought was cut after {tokens} tokens: allow it more"))
            elif text == completion.text:
                answers.append(completion)
            else:
                answers.append(Completion(text=text, finish_reason=completion.finish_reason, tokens=tokens))
        return answers


@gin.register("local_model")
@typed
class LocalModel:
    """A checkpoint on this machine, of any architecture, with its own sampler; a `Completer`.

    Its weights are loaded on first use, so they take no memory in an evaluation without rewards.

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
    """

    def __init__(
        self,
        folder: str,
        mesh: Mesh,
        computation: Computation = DEFAULT_COMPUTATION,
        slots: int = 64,
        context: int = 2048,
        block: int = 32,
        append_rows: Sequence[int] = (),
        append_tokens: Sequence[int] = (64, 512),
        chat_template: bool = True,
    ):
        self._folder, self._mesh, self._chat = resolved_folder(folder), mesh, Chat(template=chat_template)
        self._computation = dataclasses.replace(computation, lora=None)
        self._settings = SamplerConfig(
            slots=slots, context=context, block=block, append_rows=append_rows, append_tokens=append_tokens
        )

    def check(self) -> None:
        """Raises a UserError if the folder holds no checkpoint; called before sampling."""
        read_config(self._folder)

    @functools.cached_property
    def _loaded(self) -> tuple[SamplerCompleter, Mapping[str, str]]:
        config, params = load_hugging_face(self._folder, self._computation.compute_dtype, self._mesh)
        tokenizer = load_tokenizer(self._folder)
        sampler = Sampler(self._computation.of(config), params, tokenizer, self._settings, self._mesh)
        hashes = {"parameters": parameter_fingerprint(params), "tokenizer": tokenizer.fingerprint()}
        return SamplerCompleter(sampler, tokenizer, self._chat), hashes

    @property
    def hashes(self) -> Mapping[str, str]:
        """Fingerprints of the parameters and the tokenizer; reading them loads the model."""
        return self._loaded[1]

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> list[Completion | GenerationFailure]:
        """Completes a batch of prompts."""
        return self._loaded[0](requests)


@gin.register("question_encoder")
class QuestionEncoder:
    """Embeds the sub-questions of plans as queries (the paper: E5-base); its weights are loaded on first use.

    `folder` is an encoder's, or the name of one that ships with the package; None: it cannot be used.
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

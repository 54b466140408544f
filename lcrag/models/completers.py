"""Models other than the policy that episodes and rewards ask: checkpoints on this machine, endpoints, judges."""

import concurrent.futures
import dataclasses
import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import httpx2
import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from lcrag.episodes import Chat, Completer, Completion, GenerationFailure, completion_of
from lcrag.episodes.tags import THINK, opening, without_surrogates
from lcrag.errors import Count, Positive, UserError, typed
from lcrag.files import resolved_folder
from lcrag.policy import Tokenizer, load_hugging_face, load_tokenizer, parameter_fingerprint, read_config
from lcrag.policy.config import DEFAULT_COMPUTATION, Computation
from lcrag.retries import Patience, ServiceRefusal, ServiceUnavailable, TemporaryFailure
from lcrag.retrieval import Encoder
from lcrag.retrieval.encoder import encoder_folder, named_encoder
from lcrag.retrieval.remote import HttpService
from lcrag.sampling import Sampler, SamplingParameters, SlotSampler, continue_contexts
from lcrag.sampling.choice import text_until_stop

KEY = "OPENAI_API_KEY"
LOCAL = "http://127.0.0.1:8000/v1"


class RequestFailed(UserError):
    """One request to a model failed after every attempt; other requests may succeed."""


def complete_prompts(
    model: Completer, prompts: Mapping[int, str], generation: SamplingParameters
) -> dict[int, str | GenerationFailure]:
    """Returns the texts of completions, all requested in one batch; a prompt's number selects its random stream."""
    if not prompts:
        return {}
    completions = model([(prompt, dataclasses.replace(generation, episode=n)) for n, prompt in prompts.items()])
    return {
        number: completion if isinstance(completion, GenerationFailure) else completion.text
        for number, completion in zip(prompts, completions, strict=True)
    }


def without_thought(text: str, opened: str | None = None) -> str | None:
    """Returns the text after a model's last closed thought; None if a thought is unfinished.

    `opened` is the tag of a thought that the prompt has opened (`Conversation.thought`).
    """
    begin = opened or opening(THINK)
    end = f"{begin[0]}/{begin[1:]}"
    said = f"{opened or ''}{text}".rpartition(end)[2]
    return None if begin in said else said.lstrip() if end in text else text


# --- On this machine ---


class SamplerCompleter:
    """A model of any architecture on this machine, as a `Completer`.

    Nothing else may use the sampler's slots; `chat` says how prompts are given to a model with a chat template.
    """

    def __init__(self, sampler: SlotSampler, tokenizer: Tokenizer, chat: Chat):
        chat.check(tokenizer)
        self._sampler, self._tokenizer, self._chat = sampler, tokenizer, chat
        self._opened = chat.conversation(tokenizer).thought

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
            text, tokens = without_thought(completion.text, self._opened), completion.tokens
            if text is None:
                answers.append(GenerationFailure(f"its thought was cut after {tokens} tokens: allow it more"))
            elif text == completion.text:
                answers.append(completion)
            else:
                answers.append(Completion(text=text, finish_reason=completion.finish_reason, tokens=tokens))
        return answers


@gin.register
@typed
class LocalModel:
    """A checkpoint on this machine, of any architecture, with its own sampler; a `Completer`.

    Its weights are loaded on first use, so they take no memory in an evaluation without rewards.

    Args:
      folder: A Hugging Face folder, or the name of one that ships with the package.
      computation: Platform settings; the weights are held in the compute dtype, without adapters.
      context: Length of a context in tokens: the longest prompt with its answer.
      block: Tokens sampled in one call, after which the host checks for finished answers.
      append_rows, append_tokens: As of `lcrag.sampling.Sampler`.
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
        self._settings = Sampler(
            slots=slots, context=context, block=block, append_rows=append_rows, append_tokens=append_tokens
        )

    def check(self) -> None:
        """Raises a UserError if the folder holds no checkpoint that its tokenizer fits; called before sampling."""
        config, tokenizer = read_config(self._folder), load_tokenizer(self._folder)
        config.check_vocabulary(tokenizer.vocabulary_size, self._folder)
        self._chat.check(tokenizer)

    @functools.cached_property
    def _loaded(self) -> tuple[SamplerCompleter, Mapping[str, str]]:
        config, params = load_hugging_face(self._folder, self._computation.compute_dtype, self._mesh)
        tokenizer = load_tokenizer(self._folder)
        sampler = SlotSampler(self._computation.of(config), params, tokenizer, self._settings, self._mesh)
        hashes = {"parameters": parameter_fingerprint(params), "tokenizer": tokenizer.fingerprint()}
        return SamplerCompleter(sampler, tokenizer, self._chat), hashes

    @property
    def hashes(self) -> Mapping[str, str]:
        """Fingerprints of the parameters and the tokenizer; reading them loads the model."""
        return self._loaded[1]

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> list[Completion | GenerationFailure]:
        return self._loaded[0](requests)


@gin.register
class QuestionEncoder:
    """Embeds the sub-questions of plans as queries (the paper: E5-base); its weights are loaded on first use.

    `folder` is an encoder's, or the name of one that ships with the package; None: it cannot be used.
    """

    def __init__(self, folder: str | None):
        self._folder = folder

    def check(self) -> None:
        """Raises a UserError if the folder holds no encoder; called before sampling."""
        encoder_folder(self._folder, "QuestionEncoder.folder")

    @functools.cached_property
    def _encoder(self) -> Encoder:
        return named_encoder(self._folder, "QuestionEncoder.folder")

    @property
    def hashes(self) -> Mapping[str, str]:
        return {"encoder": self._encoder.fingerprint()}

    def __call__(self, texts: Sequence[str]) -> Float[np.ndarray, "texts width"]:
        """Returns a vector of unit length for each text."""
        return self._encoder.encode(texts, kind="query")


# --- At an endpoint ---


def read_reply(response: httpx2.Response) -> Completion:
    """Reads a chat completion, whose tokens are 0 if it does not count them.

    One without a text, and what is none, is a TemporaryFailure.
    """
    try:
        answer = response.json()
        choices = [(choice["message"].get("content"), choice.get("finish_reason")) for choice in answer["choices"]]
        # Null or absent from servers that do not count.
        tokens = int((answer.get("usage") or {}).get("completion_tokens") or 0)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise TemporaryFailure("it is no chat completion", broken=True) from error
    for text, reason in choices:
        if isinstance(text, str):
            return Completion(
                text=without_surrogates(text), finish_reason="length" if reason == "length" else "eos", tokens=tokens
            )
    reasons = ", ".join(f"finish_reason {reason}" for _, reason in choices) or "no choices"
    mend = "allow it more tokens, or choose another model"
    raise TemporaryFailure(f"it answers without a text ({reasons}): {mend}", broken=True)


def user_message(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


class ChatEndpoint:
    """Sends requests to a chat model; thread-safe.

    The key is read from the environment (OPENAI_API_KEY), so no configuration or log contains it. `url` ends with
    `/v1`; `seconds` is the time limit of one request.
    """

    def __init__(self, model: str, url: str = LOCAL, *, attempts: int = 6, seconds: float = 120.0):
        self._model, self._url = model, f"{url.rstrip('/')}/chat/completions"
        patience = Patience(attempts=attempts, answer_seconds=seconds, longest_wait_seconds=8.0)
        key = os.environ.get(KEY, "").strip()
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._service = HttpService(model, url, patience, connections=None, headers=headers)
        self.name = self._service.name

    def say(self, messages: Sequence[Mapping[str, str]], **settings: Any) -> Completion:
        """Returns the model's next message in a chat; `settings` are those of the request, such as `max_tokens`.

        Raises:
          RequestFailed: The endpoint rejects this request, or times out, is overloaded or returns no text in every
            attempt.
          UserError: The endpoint cannot be reached, or rejects the key or the model.
        """
        asked = {"model": self._model, "messages": list(messages), **settings}
        try:
            return self._service.request("POST", self._url, read_reply, json=asked)
        except ServiceRefusal as error:
            raise RequestFailed(str(error)) from error
        except ServiceUnavailable as error:
            if isinstance(error.__cause__, TemporaryFailure) and error.__cause__.busy:
                raise RequestFailed(str(error)) from error
            raise


@gin.register
@typed
class EndpointCompleter:
    """A `ChatEndpoint` as a `Completer`; its completions have no log-probabilities, and no thoughts.

    Stop strings are searched for here, since endpoints leave them out of their texts. A request that fails, or whose
    answer is empty or cut inside its thought in every attempt, is a `GenerationFailure`.
    """

    def __init__(
        self, model: str, url: str = LOCAL, concurrency: Count = 32, attempts: int = 6, seconds: float = 120.0
    ):
        self._endpoint = ChatEndpoint(model, url, attempts=attempts, seconds=seconds)
        self._attempts, self._concurrency = attempts, concurrency

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> list[Completion | GenerationFailure]:
        """Completes a batch of prompts, `concurrency` at a time.

        After an error, which propagates, or a signal no request is started, and those in flight are abandoned.
        """
        workers = concurrent.futures.ThreadPoolExecutor(self._concurrency)
        try:
            completions = [workers.submit(self._completed, request) for request in requests]
            done, _ = concurrent.futures.wait(completions, return_when=concurrent.futures.FIRST_EXCEPTION)
            for error in filter(None, (future.exception() for future in done)):
                raise error
            return [future.result() for future in completions]
        finally:
            workers.shutdown(wait=False, cancel_futures=True)

    def _completed(self, request: tuple[str, SamplingParameters]) -> Completion | GenerationFailure:
        prompt, generation = request
        cut = False
        for attempt in range(self._attempts):
            stream = (generation.seed, generation.episode, *([attempt] if attempt else []))
            try:
                reply = self._endpoint.say(
                    user_message(prompt),
                    temperature=generation.temperature,
                    top_p=generation.top_p,
                    max_tokens=generation.max_tokens,
                    seed=int(np.random.SeedSequence(stream).generate_state(1)[0] >> 1),  # endpoints take 31 bits
                )
            except RequestFailed as failed:
                return GenerationFailure(str(failed))
            cut = reply.finish_reason == "length"
            if (said := without_thought(reply.text)) and said.strip():
                text = text_until_stop(said.encode(), generation.stop)
                stopped = any(text.endswith(stop) for stop in generation.stop)
                return dataclasses.replace(reply, text=text, finish_reason="stop" if stopped else reply.finish_reason)
        fault = f"cut after {generation.max_tokens} tokens: allow it more" if cut else "empty"
        return GenerationFailure(f"the answer of {self._endpoint.name} was {fault}")


# --- Judges ---


@gin.register
@typed
class CompletionJudge:
    """A model that judges: returns its text for each of many prompts, requested in one batch.

    The first attempt is greedy, so a judgement can be repeated; later ones sample, since a greedy model would repeat
    itself.

    `max_tokens` limits an answer, `temperature` is that of the attempts after the first.
    """

    def __init__(self, model: Completer, temperature: Positive = 0.7, max_tokens: int = 512, seed: int = 0):
        self._model, self._temperature, self._max_tokens, self._seed = model, temperature, max_tokens, seed

    def check(self) -> None:
        getattr(self._model, "check", lambda: None)()

    def __call__(self, prompts: Sequence[str], attempt: int = 0) -> list[str | None]:
        """Returns the model's texts in order, None where it fails; `attempt` counts earlier ones with these prompts."""
        temperature = self._temperature if attempt else 0.0
        generation = SamplingParameters(max_tokens=self._max_tokens, temperature=temperature, seed=self._seed + attempt)
        texts = complete_prompts(self._model, dict(enumerate(prompts)), generation).values()
        return [text if isinstance(text, str) else None for text in texts]

"""Models beside the policy, frozen: a second checkpoint or an endpoint, and the reader of evidence built on one."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import gin
from jax.sharding import Mesh

from lcrag.app.composition.components import resolved_folder
from lcrag.app.composition.computation import DEFAULT_COMPUTATION, Computation
from lcrag.episodes import Chat, Completer, Completion
from lcrag.methods.r_search.evidence_reader import EvidenceReader
from lcrag.models.completers import EndpointCompleter, SamplerCompleter
from lcrag.policy import load_hugging_face, load_tokenizer, read_config
from lcrag.policy.fingerprint import parameter_fingerprint
from lcrag.sampling import Sampler, SamplerConfig, SamplingParameters

gin.external_configurable(EndpointCompleter, module="lcrag.episodes")
gin.external_configurable(EvidenceReader, module="lcrag.episodes")


@gin.configurable
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
    """A checkpoint of any architecture, run by a sampler of its own; its weights are loaded when it is first asked.

    Args:
      folder: A Hugging Face folder, or the name of one that ships with the package.
      mesh: Devices.
      computation: How it is computed; its weights are held in the compute dtype, without adapters.
      slots: Contexts held at once.
      context: Longest context, in tokens: the longest prompt and the answer.
      block: Most tokens sampled between two looks by the host.
      append_rows: Row counts that are compiled for prefill.
      append_tokens: Chunk lengths that are compiled for prefill.
      chat_template: Whether to use the template of a model that has one.

    Raises:
      UserError: the folder holds no such checkpoint, or its context is shorter.
    """
    path = resolved_folder(folder)
    settings = SamplerConfig(
        slots=slots, context=context, block=block, append_rows=append_rows, append_tokens=append_tokens
    )
    read_config(path)  # a mistake is said before anything is sampled, and not after the first rollout

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

    return LoadedWhenAsked(load)


class LoadedWhenAsked:
    """A model that costs no memory where nobody asks it, as in an evaluation without rewards.

    Args:
      load: Makes the model, and the fingerprints of what it is made of.
    """

    def __init__(self, load: Callable[[], tuple[Completer, Mapping[str, str]]]):
        self._loaded = functools.cache(load)

    @property
    def hashes(self) -> Mapping[str, str]:
        """Fingerprints of its parameters and its tokenizer, which are loaded for it."""
        _, hashes = self._loaded()
        return hashes

    def __call__(self, requests: Sequence[tuple[str, SamplingParameters]]) -> Sequence[Completion]:
        """Completes a batch of prompts."""
        model, _ = self._loaded()
        return model(requests)

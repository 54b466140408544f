"""Completions beside an episode's own context: what they are made from, and the models that make them."""

import codecs
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax

from lcrag.episodes.context_text import Chat
from lcrag.episodes.requests import Completion
from lcrag.errors import UserError
from lcrag.policy import Tokenizer
from lcrag.sampling.continuation import SlotSampler, continue_contexts
from lcrag.sampling.generation import Generation, Sampled

# (prompt, how to continue it) of many requests -> their completions in the same order. Called on another thread, one
# batch at a time. A failure that retrying does not mend is raised, and ends the run: it never becomes an empty text.
Completer: TypeAlias = Callable[[Sequence[tuple[str, Generation]]], Sequence[Completion]]


def completion_of(sampled: Sampled, tokenizer: Tokenizer) -> Completion:
    """What a program sees of a finished generation."""
    ids = sampled.tokens.tolist()
    return Completion(
        text=sampled.text,
        finish_reason=sampled.finish_reason,
        tokens=len(ids),
        pieces=_pieces(ids, tokenizer, ends=sampled.finish_reason == "eos"),
        log_probabilities=tuple(sampled.log_probabilities.tolist()),
    )


def _pieces(ids: Sequence[int], tokenizer: Tokenizer, *, ends: bool) -> tuple[str, ...]:
    """The text of each token; a character spread over several belongs to the last of them, the end has no text."""
    written = ids[:-1] if ends else ids
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [
        decoder.decode(tokenizer.decode_bytes([token]), final=place == len(written) - 1)
        for place, token in enumerate(written)
    ]
    return (*pieces, "") if ends else tuple(pieces)


class SamplerCompleter:
    """Another model on this machine, of any architecture, as a `Completer`.

    Args:
      sampler: Its slots; nobody else may use them.
      tokenizer: Its tokenizer.
      chat: How prompts are put to it if it has a chat template.

    Raises:
      UserError: the chat template cannot do what `chat` asks.
    """

    def __init__(self, sampler: SlotSampler, tokenizer: Tokenizer, chat: Chat):
        chat.check(tokenizer)
        self._sampler, self._tokenizer, self._chat = sampler, tokenizer, chat

    def __call__(self, requests: Sequence[tuple[str, Generation]]) -> list[Completion]:
        """Completes a batch of prompts.

        Raises:
          UserError: a prompt leaves no room for a token in the model's context; or several processes share the devices,
            and this is a thread beside the policy's: they would compute different things at once.
        """
        if jax.process_count() > 1 and threading.current_thread() is not threading.main_thread():
            raise UserError(
                f"a second model on the same devices cannot answer beside the policy in {jax.process_count()}"
                " processes: serve it, and name its endpoint instead"
            )
        contexts = [(self._chat.opening(self._tokenizer, prompt).ids, generation) for prompt, generation in requests]
        sampled = continue_contexts(self._sampler, contexts)
        return [completion_of(each, self._tokenizer) for each in sampled]

"""Single-turn generation for a list of prompts: the sampler at its simplest."""

from collections.abc import Sequence

from lcrag.errors import UserError
from lcrag.policy import DecoderConfig, Tokenizer
from lcrag.sampling.continuation import continue_contexts
from lcrag.sampling.generation import Generation, Sampled
from lcrag.sampling.sampler import Sampler


def generate(
    config: DecoderConfig,
    params,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Sequence[int]],
    stop: Sequence[str] = (),
    *,
    max_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    slots: int = 64,
) -> list[Sampled]:
    """Continues every prompt; a finished slot takes the next prompt at once.

    Args:
      config: The decoder.
      params: Its parameters.
      tokenizer: Its tokenizer.
      prompts: Texts, in which control tokens may be written, or token ids.
      stop: Strings that end a generation.
      max_tokens: Most tokens sampled per prompt.
      temperature: 0 is greedy.
      top_p: Nucleus mass.
      seed: With the prompt's number, names its random stream.
      slots: Prompts under way at once.

    Returns:
      One result per prompt, in order.

    Raises:
      UserError: an empty prompt, or one that leaves no room for a token in the model's context.
    """
    ids = [_opening(tokenizer, prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
    if not ids:
        return []
    if (empty := next((i for i, each in enumerate(ids) if not each), None)) is not None:
        raise UserError(f"prompt {empty} is empty: give at least one token to continue from")
    longest = max(map(len, ids))
    if longest >= config.max_positions:
        raise UserError(
            f"a prompt of {longest} tokens leaves no room in a context of {config.max_positions}: shorten it"
        )
    context = min(longest + max_tokens, config.max_positions)
    sampler = Sampler(config, params, tokenizer, slots=min(slots, len(ids)), context=context)
    stop = tuple(stop)

    def request(index: int) -> Generation:
        return Generation(
            stop=stop, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, episode=index
        )

    return continue_contexts(sampler, [(each, request(index)) for index, each in enumerate(ids)])


def _opening(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The prompt after what a context begins with, unless that is written in it already."""
    ids, beginning = tokenizer.encode(prompt), list(tokenizer.beginning_ids)
    return ids if ids[: len(beginning)] == beginning else beginning + ids

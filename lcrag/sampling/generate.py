"""Single-turn generation: continues many contexts once each, over however many slots a sampler has."""

from collections.abc import Sequence

from lcrag.errors import UserError
from lcrag.policy import DecoderConfig, TokenIds, Tokenizer
from lcrag.sampling.sampler import Sampler
from lcrag.sampling.settings import Sampled, SamplerConfig, SamplingParameters

CONTEXT_STEP = 64  # tokens
SMALLEST_WINDOWS = (96, 128)  # the others are these times powers of two; only those that are reached are compiled


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
    """Continues every prompt; see `SamplingParameters`, where `episode` is the index of the prompt.

    Calls of similar sizes share their compiled functions: the number of slots is rounded up to a power of two, the
    context to a multiple of 64.

    Args:
      config: The decoder.
      params: Its parameters.
      tokenizer: Its tokenizer.
      prompts: Texts, which may contain control tokens, or token ids.
      stop, max_tokens, temperature, top_p, seed: Sampling parameters of all prompts.
      slots: Maximum number of prompts sampled at once.

    Returns:
      One result per prompt, in order.
    """
    if not prompts:
        return []
    ids, beginning = [], list(tokenizer.beginning_ids)
    for prompt in prompts:
        tokens = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        begun = not isinstance(prompt, str) or tokens[: len(beginning)] == beginning  # the text may contain them
        ids.append(tokens if begun else beginning + tokens)
    needed = max(map(len, ids)) + max_tokens
    context = min(-(-needed // CONTEXT_STEP) * CONTEXT_STEP, config.max_positions)
    windows = [size << doublings for doublings in range(16) for size in SMALLEST_WINDOWS if size << doublings < context]
    settings = SamplerConfig(slots=min(slots, 1 << (len(ids) - 1).bit_length()), context=context, windows=windows)
    requests = [
        SamplingParameters(
            stop=tuple(stop), max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, episode=index
        )
        for index in range(len(ids))
    ]
    sampler = Sampler(config, params, tokenizer, settings)
    return continue_contexts(sampler, list(zip(ids, requests, strict=True)))


def continue_contexts(sampler: Sampler, contexts: Sequence[tuple[TokenIds, SamplingParameters]]) -> list[Sampled]:
    """Samples a continuation of each context; a slot that finishes takes the next context at once.

    The slots of the sampler are all free, before and after. Contexts are tokens, at least one, and how to continue
    them; the results are in their order.
    """
    lengths = [len(tokens) for tokens, _ in contexts]
    if 0 in lengths:
        raise UserError(f"prompt {lengths.index(0)} is empty: give at least one token to continue from")
    longest = max(lengths, default=0)
    if longest >= sampler.context:
        raise UserError(
            f"a prompt of {longest} tokens leaves no room in a sampler's context of {sampler.context}: raise the"
            " context, or shorten the prompt"
        )
    results: dict[int, Sampled] = {}
    owners: dict[int, int] = {}
    queue = list(range(len(contexts)))[::-1]
    while queue or owners:
        admitted = {slot: queue.pop() for slot in range(sampler.slots) if queue and slot not in owners}
        owners |= admitted
        if admitted:
            sampler.append({slot: contexts[index][0] for slot, index in admitted.items()})
            sampler.begin({slot: contexts[index][1] for slot, index in admitted.items()})
        for slot, sampled in sampler.decode().items():
            results[owners.pop(slot)] = sampled
            sampler.free([slot])
    return [results[index] for index in range(len(contexts))]

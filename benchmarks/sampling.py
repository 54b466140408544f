"""Times multi-turn sampling with the cache kept across turns, compared with prefilling the history every turn.

    python benchmarks/sampling.py

Runs 64 episodes of three turns, each of 64 retrieved and 32 sampled tokens, on a decoder with width 256, four layers
and 4,096 tokens. Both sides use the same compiled decode loop; results are medians of alternating repeats.
"""

import argparse
import statistics
import time

import jax
import numpy as np

from lcrag.atlas.vocabulary import SHIPPED_FOLDER
from lcrag.policy import DecoderConfig, initialise, load_tokenizer
from lcrag.sampling import Sampler, SamplerConfig, SamplingParameters

TURNS, RETRIEVED, SAMPLED = 3, 64, 32


def make_sampler(episodes: int) -> Sampler:
    config = DecoderConfig(
        vocabulary_size=4096,
        width=256,
        layers=4,
        heads=4,
        kv_heads=2,
        head_width=64,
        mlp_width=768,
        max_positions=512,
        unroll_layers=True,
    )
    context = TURNS * (RETRIEVED + SAMPLED)
    params = initialise(config, jax.random.key(0))
    windows = tuple(range(96, context, 96))
    options = {"append_tokens": (64, 256), "block": SAMPLED, "wanted": 1.0, "windows": windows}
    return Sampler(
        config, params, load_tokenizer(SHIPPED_FOLDER), SamplerConfig(slots=episodes, context=context, **options)
    )


def rollouts(sampler: Sampler, keep_cache: bool) -> float:
    """Returns the seconds of all turns of all episodes."""
    generator = np.random.default_rng(0)
    history: dict[int, list[int]] = {slot: [] for slot in range(sampler.slots)}
    started = time.perf_counter()
    for turn in range(TURNS):
        new = {slot: generator.integers(1, 4096, RETRIEVED).tolist() for slot in history}
        if not keep_cache:
            sampler.free(history)
        sampler.append({slot: new[slot] if keep_cache else history[slot] + new[slot] for slot in history})
        requests = {slot: SamplingParameters(max_tokens=SAMPLED, seed=turn, episode=slot) for slot in history}
        sampler.begin(requests)
        while sampler.running:
            for slot, sampled in sampler.decode().items():
                history[slot] += new[slot] + sampled.tokens.tolist()
    sampler.free(history)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sampler = make_sampler(options.episodes)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(options.repeats + 1):
        for keep_cache in (True, False):
            taken = rollouts(sampler, keep_cache)
            if repeat:  # the first round compiles
                seconds[keep_cache].append(taken)
    tokens = options.episodes * TURNS * SAMPLED
    kept, refilled = (statistics.median(seconds[side]) for side in (True, False))
    print(f"cache kept     {tokens / kept:8,.0f} sampled tokens/s")
    print(f"re-prefilled   {tokens / refilled:8,.0f} sampled tokens/s")
    print(f"ratio          {refilled / kept:8.2f}")
    print(f"compiled shapes {sampler.statistics.compiled_shapes}")


if __name__ == "__main__":
    main()

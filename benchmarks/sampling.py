"""Times multi-turn rollouts through the runner, compared with `transformers` on the same sizes.

    python benchmarks/sampling.py [--turns=3] [--long_tailed] [--repeats=3]

64 episodes, each a prompt of 64 tokens and then, in every turn, 32 sampled and 64 observed tokens, on a decoder with
four layers, 256 wide, and a vocabulary of 4,096. Compared are `transformers` with its cache kept by hand across the
turns, and without (Search-R1's way: every turn prefills the history); neither tokenises, unlike the runner. With
`--long_tailed`, 96 episodes on 48 slots have lengths of their own (log-normal, mean 24, at most 128), which
`transformers` has no counterpart for; the share of the computed slot-steps that sampled a token is printed.

All sides alternate. Prints medians of sampled tokens per second, and the floor: the larger, step by step, of the bytes
that a decode step must read over the measured copy rate and of its operations over the measured rate of a matrix
product, plus the operations of prefilling.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from timing import median_seconds, report, timed

from lcrag.atlas.encoder import SHIPPED_FOLDER
from lcrag.data.questions import Question
from lcrag.episodes import Generate, Observe, Outcome, Program, Runner
from lcrag.policy import DecoderConfig, HuggingFaceTokenizer, initialise, load_tokenizer, parameter_count
from lcrag.sampling import Sampler, SlotSampler

PROMPT, SAMPLED, OBSERVED, EPISODES = 64, 32, 64, 64
MODEL = DecoderConfig(
    vocabulary_size=4096,
    width=256,
    layers=4,
    heads=4,
    kv_heads=2,
    head_width=64,
    mlp_width=1024,
    max_positions=1024,
    unroll_layers=True,
)


def texts(tokenizer: HuggingFaceTokenizer, count: int, tokens: int, seed: int) -> list[str]:
    """Returns texts of random words that are one token each."""
    words = [tokenizer.decode([number]) for number in range(min(tokenizer.vocabulary_size, 8192))]
    words = [word for word in words if word[:1] == " " and word[1:].isalpha() and len(tokenizer.encode(word * 2)) == 2]
    random = np.random.default_rng(seed)
    return ["".join(random.choice(words, tokens)) for _ in range(count)]


def program(prompt: str, observations: Sequence[str], lengths: Sequence[int]) -> Program:
    yield Observe(prompt)
    for observation, length in zip(observations, lengths, strict=True):
        yield Generate(stop=("</never sampled/>",), max_tokens=length)
        yield Observe(observation)
    return Outcome(answer=None)


def rollouts(
    tokenizer, slots: int, lengths: np.ndarray, model: DecoderConfig = MODEL
) -> tuple[Callable[[], object], SlotSampler]:
    """Returns a function that runs all episodes, each turn of the given length, and its sampler."""
    episodes, turns = lengths.shape
    context = int(PROMPT + lengths.sum(axis=1).max() + turns * OBSERVED + 16)
    settings = Sampler(
        slots=slots,
        context=context,
        block=SAMPLED,
        min_finished_share=1.0 if (lengths == SAMPLED).all() else 0.6,
        windows=tuple(range(96, context, 64)),
        decode_rows=tuple(slots * share // 16 for share in (1, 2, 4, 8, 12)),
        append_rows=(4, 8, 16, slots),
        append_tokens=(PROMPT,),
    )
    # an end that cannot be sampled: lengths are forced
    endless = dataclasses.replace(tokenizer, eos_ids=(MODEL.vocabulary_size,))
    sampler = SlotSampler(model, initialise(model, jax.random.key(0)), endless, settings)
    runner = Runner(sampler=sampler, tokenizer=endless, search=lambda *_: [])
    written = [texts(tokenizer, episodes, PROMPT if turn == 0 else OBSERVED, turn) for turn in range(turns + 1)]

    question = Question(id="", dataset="benchmark", language="en", text="", answers=())

    def run() -> None:
        each = zip(*written[1:], strict=True)
        programs = [
            (dataclasses.replace(question, id=str(index)), program(prompt, own, length.tolist()), index)
            for index, (prompt, own, length) in enumerate(zip(written[0], each, lengths, strict=True))
        ]
        records = runner.run(programs)
        sampled = sum(record.counts["policy_tokens"] for record in records)
        if sampled != lengths.sum():
            raise AssertionError(f"{sampled} tokens sampled, {lengths.sum()} wanted")

    return run, sampler


def peer_model() -> transformers.PreTrainedModel:
    """Returns the same shape in `transformers`; no end is sampled."""
    config = transformers.Qwen2Config(
        vocab_size=MODEL.vocabulary_size,
        hidden_size=MODEL.width,
        num_hidden_layers=MODEL.layers,
        num_attention_heads=MODEL.heads,
        num_key_value_heads=MODEL.kv_heads,
        intermediate_size=MODEL.mlp_width,
        max_position_embeddings=MODEL.max_positions,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    return model


def peer(turns: int, keep_cache: bool) -> Callable[[], object]:
    """Returns a function that runs the same sizes through `transformers`."""
    model = peer_model()
    config, random = model.config, np.random.default_rng(0)
    written = [torch.tensor(random.integers(2, config.vocab_size, (EPISODES, OBSERVED))) for _ in range(turns + 1)]
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": SAMPLED, "pad_token_id": 0}

    @torch.no_grad()
    def run() -> None:
        history = written[0]
        cache = {"past_key_values": transformers.DynamicCache(config=config)} if keep_cache else {}
        for observation in written[1:]:
            mask = torch.ones_like(history)
            history = torch.cat([model.generate(history, attention_mask=mask, **options, **cache), observation], 1)

    return run


def floor_seconds(turns: int) -> float:
    """Returns the least time of the rollouts by the measured rates of this machine."""
    big = jnp.zeros(1 << 25)
    bytes_per_second = 2 * big.nbytes / median_seconds(lambda: jax.block_until_ready(jax.jit(jnp.copy)(big)))
    rows = jnp.ones((EPISODES * 16, MODEL.width)), jnp.ones((MODEL.width, MODEL.mlp_width))
    product = jax.jit(jnp.matmul)
    seconds = median_seconds(lambda: jax.block_until_ready(product(*rows)))
    operations_per_second = 2 * rows[0].size * MODEL.mlp_width / seconds
    parameters = parameter_count(MODEL)
    embedding = MODEL.vocabulary_size * MODEL.width
    position = 2 * MODEL.layers * MODEL.kv_heads * MODEL.head_width * 4  # bytes of keys and values
    total, length = 0.0, PROMPT
    for _ in range(turns):
        for _ in range(SAMPLED):
            read = parameters * 4 + EPISODES * length * position
            total += max(read / bytes_per_second, 2 * EPISODES * parameters / operations_per_second)
            length += 1
        length += OBSERVED
    prefilled = EPISODES * (PROMPT + (turns - 1) * OBSERVED)
    return total + 2 * prefilled * (parameters - embedding) / operations_per_second


def long_tailed(random: np.random.Generator, episodes: int, turns: int) -> np.ndarray:
    """Draws log-normal lengths with a mean of 24 tokens."""
    spread = 1.0
    drawn = random.lognormal(np.log(24) - spread**2 / 2, spread, (episodes, turns))
    return np.clip(drawn.round(), 1, 128).astype(int)


def alternating(sides: dict[str, Callable[[], object]], repeats: int) -> Iterator[tuple[str, float]]:
    """Yields the median seconds of each side; the first round compiles and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats + 1):
        for name, run in sides.items():
            seconds[name].append(timed(run)[1])
    for name, each in seconds.items():
        yield name, statistics.median(each[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--long_tailed", action="store_true", help="96 episodes of drawn lengths on 48 slots")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each side")
    options = parser.parse_args()
    tokenizer = load_tokenizer(SHIPPED_FOLDER)
    if options.long_tailed:
        lengths = long_tailed(np.random.default_rng(0), 96, options.turns)
        run, sampler = rollouts(tokenizer, 48, lengths)
        [(_, seconds)] = alternating({"lcrag": run}, options.repeats)
        occupancy = sampler.statistics.occupancy
        print(f"{lengths.sum() / seconds:,.0f} sampled tokens/s, occupancy {occupancy:.2f}")
        work = "rollouts, long-tailed lengths, 96 episodes on 48 slots"
        report(work, "lcrag", [seconds], int(lengths.sum()), "sampled tokens", occupancy=occupancy)
        return
    lengths = np.full((EPISODES, options.turns), SAMPLED)
    sides = {
        "lcrag, through the runner": rollouts(tokenizer, EPISODES, lengths)[0],
        "transformers, cache kept by hand": peer(options.turns, keep_cache=True),
        "transformers, history prefilled": peer(options.turns, keep_cache=False),
    }
    measured = dict(alternating(sides, options.repeats))
    ours = measured["lcrag, through the runner"]
    for name, seconds in (measured | {"floor": floor_seconds(options.turns)}).items():
        print(f"{name:34}{lengths.sum() / seconds:8,.0f} sampled tokens/s {seconds / ours:8.2f} x lcrag's time")
        side = "lcrag" if seconds == ours else name
        report(f"rollouts, {options.turns} turns", side, [seconds], int(lengths.sum()), "sampled tokens")


if __name__ == "__main__":
    main()

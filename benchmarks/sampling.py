"""Times multi-turn rollouts through the runner, compared with `transformers` on the same sizes.

    python benchmarks/sampling.py [--turns=3] [--long_tailed] [--repeats=3]

64 episodes, each a prompt of 64 tokens and then, in every turn, 32 sampled and 64 observed tokens, on a decoder with
four layers, 256 wide, and a vocabulary of 4,096. Compared are `transformers` with its cache kept by hand across the
turns, and without (Search-R1's way: every turn prefills the history); neither tokenises, unlike the runner. With
`--long_tailed`, 96 episodes on 48 slots have lengths of their own (log-normal, mean 24, at most 128), which
`transformers` has no counterpart for; the share of the computed slot-steps that sampled a token is printed.

All sides alternate. Prints medians of sampled tokens per second, and the floor: the larger, step by step, of the bytes
that a decode step must read over the measured copy rate and of its operations over the measured rate of a matrix
product, plus the operations of prefilling. `real.py` and `gpu.py` time the same rollouts at other sizes.
"""

import argparse
import dataclasses
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import torch
import transformers
from timing import report, timed

from lcrag.atlas.world import SHIPPED_TOKENIZER
from lcrag.commands.benchmark import Machine, measured_machine
from lcrag.data.questions import Question
from lcrag.episodes import Chat, EpisodeRecord, Generate, Observe, Outcome, Program, Runner
from lcrag.policy import DecoderConfig, Tokenizer, initialise, load_tokenizer, make_mesh
from lcrag.policy.hugging_face import config_to_hugging_face
from lcrag.policy.parameters import decode_bytes, forward_flops
from lcrag.sampling import Sampler, SlotSampler

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


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of episodes, and of tokens."""

    prompts: int
    samples: int  # episodes of each prompt
    prompt: int
    sampled: int  # in each turn
    observed: int  # between turns
    turns: int
    observed_last: bool = False  # whether an observation follows the last turn, too

    @property
    def episodes(self) -> int:
        return self.prompts * self.samples

    @property
    def texts(self) -> int:
        """Number of texts that the environment writes in an episode."""
        return self.turns + self.observed_last

    @property
    def starts(self) -> list[int]:
        """Length of the context at the beginning of each turn."""
        return [self.prompt + turn * (self.sampled + self.observed) for turn in range(self.turns)]

    @property
    def length(self) -> int:
        return self.starts[-1] + self.sampled

    @property
    def sampled_tokens(self) -> int:
        return self.episodes * self.turns * self.sampled


SIZES = Sizes(prompts=64, samples=1, prompt=64, sampled=32, observed=64, turns=3, observed_last=True)


def texts(tokenizer: Tokenizer, count: int, tokens: int, seed: int) -> list[str]:
    """Returns texts of random words that are one token each."""
    words = [tokenizer.decode([number]) for number in range(min(tokenizer.vocabulary_size, 8192))]
    words = [word for word in words if word[:1] == " " and word[1:].isalpha() and len(tokenizer.encode(word * 2)) == 2]
    random = np.random.default_rng(seed)
    return ["".join(random.choice(words, tokens)) for _ in range(count)]


def program(written: Sequence[str], lengths: Sequence[int]) -> Program:
    """Samples a turn of each length, each after a text; a further text may follow."""
    for text, length in itertools.zip_longest(written, lengths):
        yield Observe(text)
        if length is not None:
            yield Generate(stop=("</never sampled/>",), max_tokens=length)
    return Outcome(answer=None)


def our_rollouts(
    config: DecoderConfig,
    params,
    tokenizer: Tokenizer,
    sizes: Sizes,
    lengths: np.ndarray | None = None,
    **settings,
) -> tuple[Callable[[], list[EpisodeRecord]], SlotSampler]:
    """Returns a function that runs all episodes through the runner, and its sampler with these settings.

    The tokenizer has no end that can be sampled: lengths are forced, to those of `sizes` or, of each episode and turn,
    to `lengths`.
    """
    lengths = np.full((sizes.episodes, sizes.turns), sizes.sampled) if lengths is None else lengths
    shapes = {
        "slots": sizes.episodes,
        "context": sizes.length + 16,
        "block": sizes.sampled,
        "windows": [start + sizes.sampled + 2 for start in sizes.starts[:-1]],
    }
    sampler = SlotSampler(config, params, tokenizer, Sampler(min_finished_share=1.0, **shapes | settings))
    runner = Runner(
        sampler=sampler, tokenizer=tokenizer, search=lambda *_: [], chat=Chat(template=False), answer_room=1
    )
    prompts = texts(tokenizer, sizes.prompts, sizes.prompt, 0)
    observed = [texts(tokenizer, sizes.episodes, sizes.observed, turn) for turn in range(1, sizes.texts)]
    question = Question(id="", dataset="benchmark", language="en", text="", answers=())

    def run() -> list[EpisodeRecord]:
        programs = []
        for index in range(sizes.episodes):
            written = [prompts[index // sizes.samples], *(own[index] for own in observed)]
            about = dataclasses.replace(question, id=str(index // sizes.samples))
            programs.append((about, program(written, lengths[index].tolist()), index))
        records = runner.run(programs)
        found = sum(record.counts["policy_tokens"] for record in records)
        if found != lengths.sum():
            raise AssertionError(f"{found} tokens sampled, {lengths.sum()} wanted")
        return records

    return run, sampler


def their_rollouts(model: transformers.PreTrainedModel, sizes: Sizes, keep_cache: bool) -> Callable[[], object]:
    """Returns a function that runs the same sizes through `transformers`, whose model has no end."""
    random = np.random.default_rng(0)
    drawn = functools.partial(random.integers, 5, model.config.vocab_size)
    prompts, *observed = (
        torch.tensor(each, device=model.device)
        for each in (
            np.repeat(drawn((sizes.prompts, sizes.prompt)), sizes.samples, axis=0),
            *(drawn((sizes.episodes, sizes.observed)) for _ in range(1, sizes.texts)),
        )
    )
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": sizes.sampled, "pad_token_id": 0}

    @torch.no_grad()
    def run() -> None:
        history = prompts
        cache = {"past_key_values": transformers.DynamicCache(config=model.config)} if keep_cache else {}
        for _, observation in itertools.zip_longest(range(sizes.turns), observed):
            history = model.generate(history, attention_mask=torch.ones_like(history), **options, **cache)
            if observation is not None:
                history = torch.cat([history, observation], 1)
        if history.shape[1] != sizes.length + sizes.observed_last * sizes.observed:
            raise AssertionError(f"{tuple(history.shape)} tokens")

    return run


def rollouts_floor(machine: Machine, config: DecoderConfig, sizes: Sizes) -> float:
    """Returns the least seconds of the rollouts; an observation after the last turn needs no work."""
    attended = (sizes.prompt + 1) / 2
    flops = forward_flops(config, sizes.prompts * sizes.prompt, attended=attended, unembedded=0)
    seconds = 0.0
    for turn, start in enumerate(sizes.starts):
        if turn:
            tokens = sizes.episodes * sizes.observed
            flops += forward_flops(config, tokens, attended=start - sizes.observed / 2, unembedded=0)
        for length in range(start, start + sizes.sampled):
            needed = forward_flops(config, sizes.episodes, attended=length)
            seconds += machine.floor_seconds(needed, decode_bytes(config, sizes.episodes, length))
    return seconds + machine.floor_seconds(flops)


def peer_model(config: DecoderConfig, dtype: torch.dtype, device: str = "cpu") -> transformers.PreTrainedModel:
    """Returns the same shape in `transformers`, with random weights; no end is sampled."""
    settings = config_to_hugging_face(config, "float32")
    with torch.device(device):
        described = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
        model = transformers.AutoModelForCausalLM.from_config(described, dtype=dtype)
    model.generation_config.eos_token_id = None
    return model.eval()


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
    # an end that cannot be sampled
    endless = dataclasses.replace(load_tokenizer(SHIPPED_TOKENIZER), eos_ids=(MODEL.vocabulary_size,))
    rollouts = functools.partial(our_rollouts, MODEL, initialise(MODEL, jax.random.key(0)), endless)
    sizes = dataclasses.replace(SIZES, turns=options.turns)
    if options.long_tailed:
        sizes = dataclasses.replace(sizes, prompts=96)
        lengths = long_tailed(np.random.default_rng(0), sizes.episodes, sizes.turns)
        context = int(sizes.prompt + lengths.sum(axis=1).max() + sizes.turns * sizes.observed + 16)
        shapes = shapes_of(48, context) | {"min_finished_share": 0.6}
        run, sampler = rollouts(sizes, lengths, **shapes)
        [(_, seconds)] = alternating({"lcrag": run}, options.repeats)
        occupancy = sampler.statistics.sampled_tokens / sampler.statistics.slot_steps
        print(f"{lengths.sum() / seconds:,.0f} sampled tokens/s, occupancy {occupancy:.2f}")
        work = "rollouts, long-tailed lengths, 96 episodes on 48 slots"
        report(work, "lcrag", [seconds], int(lengths.sum()), "sampled tokens", occupancy=occupancy)
        return
    model = peer_model(MODEL, torch.float32)
    sides = {
        "lcrag, through the runner": rollouts(sizes, **shapes_of(sizes.episodes, sizes.length + sizes.observed + 16))[
            0
        ],
        "transformers, cache kept by hand": their_rollouts(model, sizes, keep_cache=True),
        "transformers, history prefilled": their_rollouts(model, sizes, keep_cache=False),
    }
    machine = measured_machine(make_mesh(devices=jax.devices()[:1]), MODEL.dtype, repeats=5)
    measured = dict(alternating(sides, options.repeats))
    ours = measured["lcrag, through the runner"]
    for name, seconds in (measured | {"floor": rollouts_floor(machine, MODEL, sizes)}).items():
        rate = sizes.sampled_tokens / seconds
        print(f"{name:34}{rate:8,.0f} sampled tokens/s {seconds / ours:8.2f} x lcrag's time")
        side = "lcrag" if seconds == ours else name
        report(f"rollouts, {options.turns} turns", side, [seconds], sizes.sampled_tokens, "sampled tokens")


def shapes_of(slots: int, context: int) -> dict[str, Any]:
    """Returns the settings of a sampler that shape its compiled programs."""
    return {
        "slots": slots,
        "context": context,
        "windows": tuple(range(96, context, 64)),
        "decode_rows": tuple(slots * share // 16 for share in (1, 2, 4, 8, 12)),
        "append_rows": (4, 8, 16, slots),
        "append_tokens": (SIZES.prompt,),
    }


if __name__ == "__main__":
    main()

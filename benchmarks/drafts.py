"""Counts how many drafted tokens a run's episodes accept, and what that gives on accelerators.

    python benchmarks/drafts.py RUN/episodes/step_60.jsonl [...] [--quote=24] [--drafts=2,3,4,8] [--slots=128]

Drafts depend on tokens alone, and a drafted token is right exactly if it is the one sampled in its place: recorded
episodes therefore show how many would have been accepted, exactly, without a device. With `--quote=N`, each of the
policy's turns after an observation begins with a quotation of N tokens from it, at a random place: a workload that
quotes, made from the same texts.

The gain is the tokens that a step yields, times the time of a step without drafts over that of one with them. Both are
the larger of operations over peak rate and bytes over bandwidth, for Qwen2.5-3B in bfloat16; nothing is measured.
"""

import argparse
import json
import pathlib
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from lcrag.episodes.record import token_arrays
from lcrag.policy import DecoderConfig
from lcrag.policy.accelerators import Accelerator, accelerator_named, roofline_seconds
from lcrag.policy.flops import decode_bytes, forward_flops
from lcrag.sampling.drafts import drafted

QWEN = DecoderConfig(
    family="qwen2",
    vocabulary_size=151_936,
    width=2048,
    layers=36,
    heads=16,
    kv_heads=2,
    head_width=128,
    mlp_width=11_008,
    max_positions=32_768,
    compute_dtype="bfloat16",
)
DEVICES = ("h200", "h100", "v5e", "v5p")


def contexts(paths: Sequence[pathlib.Path], quote: int) -> Iterator[tuple[np.ndarray, list[tuple[int, int]]]]:
    """Yields each episode's tokens and the (first, end) of the policy's turns, with quotations put in."""
    random = np.random.default_rng(0)
    for path in paths:
        for line in path.read_text().splitlines():
            arrays = token_arrays(json.loads(line))
            changes = np.flatnonzero(np.diff(arrays["by_policy"], prepend=False)).tolist()
            parts = np.split(arrays["tokens"], changes)  # of the environment and of the policy in turn
            tokens, turns = parts[0], []
            for number, part in enumerate(parts[1:], start=1):
                first = len(tokens)
                if number % 2 and number > 1 and quote:
                    observed = parts[number - 1]
                    start = random.integers(max(1, len(observed) - quote))
                    tokens = np.concatenate([tokens, observed[start : start + quote]])
                tokens = np.concatenate([tokens, part])
                if number % 2:
                    turns.append((first, len(tokens)))
            yield tokens, turns


def passes(tokens: np.ndarray, turns: Sequence[tuple[int, int]], count: int) -> tuple[int, int]:
    """Returns how many forward passes sample an episode's turns with `count` drafted tokens, and its tokens."""
    context = 1 << int(len(tokens) - 1).bit_length()  # few shapes
    places = np.concatenate([np.arange(*turn) for turn in turns])
    history = np.where(np.arange(context) < places[:, None], np.pad(tokens, (0, context - len(tokens))), -1)
    rows = (
        np.pad(history, ((0, -len(places) % 64), (0, 0)), mode="edge"),
        np.pad(places, (0, -len(places) % 64), mode="edge"),
    )
    guesses = dict(
        zip(places.tolist(), np.asarray(drafted(*(jnp.asarray(each, jnp.int32) for each in rows), count)), strict=False)
    )
    needed = 0
    for first, end in turns:
        while first < end:
            following = tokens[first : min(first + count, end - 1)]
            right = guesses[first][: len(following)] == following
            first += 1 + int(np.cumprod(right).sum())
            needed += 1
    return needed, len(places)


def step_seconds(device: Accelerator, slots: int, window: int, drafts: int) -> float:
    """Returns the least time of a decode step that verifies `drafts` tokens per slot."""
    operations = forward_flops(QWEN, slots * (drafts + 1), attended=window)
    return roofline_seconds(operations, decode_bytes(QWEN, slots, window), device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="episodes of a run")
    parser.add_argument("--quote", type=int, default=0, help="tokens of a quotation at the beginning of a turn")
    parser.add_argument("--drafts", default="2,3,4,8", help="numbers of drafted tokens")
    parser.add_argument("--slots", type=int, default=128, help="slots of the accelerator")
    parser.add_argument("--window", type=int, default=2048, help="mean context length on the accelerator")
    options = parser.parse_args()
    episodes = [each for each in contexts(options.files, options.quote) if each[1]]
    print(
        f"{len(episodes)} episodes; gain of decoding with {options.slots} slots of {options.window} tokens, Qwen2.5-3B"
    )
    print(f"{'drafts':>8}{'accepted':>10}{'tokens a step':>15}" + "".join(f"{device:>8}" for device in DEVICES))
    for count in map(int, options.drafts.split(",")):
        found = np.array([passes(tokens, turns, count) for tokens, turns in episodes]).sum(axis=0)
        per_pass = found[1] / found[0]
        cells = []
        for name in DEVICES:
            device = accelerator_named(name)
            if device is None:
                raise AssertionError(f"{name} has no data sheet")
            ratio = step_seconds(device, options.slots, options.window, 0) / step_seconds(
                device, options.slots, options.window, count
            )
            cells.append(f"{per_pass * ratio:8.2f}")
        print(f"{count:8}{(per_pass - 1) / count:10.2f}{per_pass:15.2f}" + "".join(cells))


if __name__ == "__main__":
    main()

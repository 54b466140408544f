"""Times rollouts and an update with real weights, compared with `transformers` and PyTorch on the same sizes.

    bash launch/real_weights.sh DIR
    python benchmarks/real.py DIR/SmolLM2-135M-Instruct [--only=rollouts] [--repeats=1] [--tiny]

About 20 minutes on two idle cores and 10 GB for each repeat. 32 episodes, 8 of each of 4 prompts, hold a prompt of 210
tokens, and three turns of 48 sampled tokens with an observation of 400 tokens between them. Compared are, for rollouts,
`transformers` with its cache kept by hand across the turns, and without (Search-R1's way: every turn prefills the
history), and for the update PyTorch, padded, at the better of two micro-batches (see `update.py`). Rollouts go through
the runner, which prefills a prompt once for its 8 episodes; the peers do not tokenise. Loss and gradient norm of both
updates are compared on two episodes, which also compiles ours; `warm_up` compiles the sampler, and its time is printed.

All sides alternate. Prints median seconds, rates, ratios and the share of the floor, the least time by the machine's
rates, which the same run measures: the operations that the work needs (no padding, causal pairs, a prompt once for its
episodes in rollouts) over the rate of a matrix product, and for each step of decoding the larger of that and of its
bytes (every parameter and every context once) over the rate at which an array is copied.
"""

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Iterator

import jax
import numpy as np
import torch
import transformers
from sampling import Sizes, our_rollouts, rollouts_floor, their_rollouts
from timing import report, timed
from update import Ours, PyTorch, episode, needed_flops

from lcrag.commands.benchmark import Machine, measured_machine
from lcrag.learning import Layout, Trajectory
from lcrag.policy import load_hugging_face, load_tokenizer, make_mesh

TORCH_ROWS = (1, 2)


SIZES = Sizes(prompts=4, samples=8, prompt=210, sampled=48, observed=400, turns=3)
TINY = dataclasses.replace(SIZES, prompts=2, samples=2, prompt=40, sampled=4, observed=70)


# --- Rollouts ---


def compare_rollouts(folder: str, sizes: Sizes, repeats: int) -> None:
    config, params = load_hugging_face(folder)
    endless = dataclasses.replace(load_tokenizer(folder), eos_ids=(config.vocabulary_size,))
    run, sampler = our_rollouts(config, params, endless, sizes, append_rows=(1, 4), append_tokens=(32, 128, 256))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    shapes, seconds = timed(sampler.warm_up)
    print(f"lcrag compiled {shapes} shapes of the sampler in {seconds:.0f} s")
    sides = {
        "lcrag, through the runner": run,
        "transformers, cache kept by hand": their_rollouts(model, sizes, keep_cache=True),
        "transformers, history prefilled": their_rollouts(model, sizes, keep_cache=False),
    }
    machine, measured = this_machine(), alternating(sides, repeats)
    counts = sampler.statistics
    print(f"lcrag computed {counts.append_positions / counts.appended_tokens:.2f} positions for an appended token")
    about = f"real rollouts, {sizes.episodes} x {sizes.turns} turns"
    compare(about, measured, rollouts_floor(machine, config, sizes), sizes.sampled_tokens, "sampled tokens")


# --- The update ---


def drawn_episodes(sizes: Sizes, vocabulary_size: int) -> list[Trajectory]:
    """Draws episodes of random tokens; episodes of a prompt share it."""
    random, drawn = np.random.default_rng(0), []
    turn = [False] * sizes.observed + [True] * sizes.sampled
    by_policy = np.array([False] * sizes.prompt + [True] * sizes.sampled + turn * (sizes.turns - 1))
    for number in range(sizes.episodes):
        each = episode(random, by_policy, vocabulary_size)
        if number % sizes.samples:
            each.tokens[: sizes.prompt] = drawn[-1].tokens[: sizes.prompt]
        drawn.append(each)
    return drawn


def compare_update(folder: str, sizes: Sizes, repeats: int) -> None:
    config, params = load_hugging_face(folder)
    episodes = drawn_episodes(sizes, config.vocabulary_size)
    shares = (sizes.turns * sizes.sampled / sizes.length, 1.0)
    layout = Layout(
        rows=1, row_lengths=(sizes.length,), policy_shares=shares, min_micro_batches=sizes.episodes, min_episodes=1
    )
    ours = Ours(config, episodes[:2], layout, params)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (ours_result, compiling), theirs = timed(ours), PyTorch(model, episodes[:2], 1)
    np.testing.assert_allclose(ours_result, theirs(), rtol=1e-3, atol=1e-4)
    print(f"lcrag compiled the update and computed two episodes in {compiling:.0f} s")

    def with_rows(rows: int) -> Callable[[], object]:
        def run() -> None:
            theirs.take(episodes, rows)
            theirs()

        return run

    ours.take(episodes, layout)
    sides: dict[str, Callable[[], object]] = {"lcrag": ours}
    sides |= {f"PyTorch, rows {rows}": with_rows(rows) for rows in TORCH_ROWS}
    machine, measured = this_machine(), alternating(sides, repeats)
    fastest = min((name for name in measured if name != "lcrag"), key=lambda name: statistics.median(measured[name]))
    measured = {name: measured[name] for name in ("lcrag", fastest)}
    tokens = sum(len(each.tokens) for each in episodes)
    floor = machine.floor_seconds(needed_flops(config, episodes))
    compare(f"real update, {sizes.episodes} episodes", measured, floor, tokens, "tokens")


# --- Both ---


def this_machine() -> Machine:
    """Measures the rates of copies and of matrix products, in float32."""
    machine = measured_machine(make_mesh(devices=jax.devices()[:1]), np.dtype("float32"), repeats=9)
    rates = machine.bytes_per_second / 1e9, machine.flops_per_second / 1e9
    print(f"this machine copies {rates[0]:.1f} GB/s and reaches {rates[1]:.0f} GFLOP/s")
    return machine


def alternating(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Returns the seconds of each side, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for name, run in _in_turns(sides, repeats):
        seconds[name].append(timed(run)[1])
        print(f"  {name}: {seconds[name][-1]:.1f} s", flush=True)
    return seconds


def _in_turns(sides: dict[str, Callable[[], object]], repeats: int) -> Iterator[tuple[str, Callable[[], object]]]:
    for _ in range(repeats):
        yield from sides.items()


def compare(work: str, measured: dict[str, list[float]], floor: float, amount: int, unit: str) -> None:
    """Prints and reports the sides of some work, ours first."""
    medians = {name: statistics.median(each) for name, each in measured.items()}
    ours = next(iter(medians.values()))
    print(f"\n{work}: {amount:,} {unit}, floor {floor:.1f} s")
    for name, seconds in medians.items():
        share = f"{floor / seconds:5.0%} of the floor"
        print(
            f"{name:34}{seconds:8.1f} s {amount / seconds:8,.1f} {unit}/s {share} {seconds / ours:6.2f} x lcrag's time"
        )
        report(work, "lcrag" if seconds == ours else name, measured[name], amount, unit)
    report(work, "floor", [floor], amount, unit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a Hugging Face folder with weights and a tokenizer")
    parser.add_argument("--only", choices=("rollouts", "update"))
    parser.add_argument("--repeats", type=int, default=1, help="timed runs of each side")
    parser.add_argument("--tiny", action="store_true", help="few short episodes: a smoke run")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    sizes = TINY if options.tiny else SIZES
    if options.only != "update":
        compare_rollouts(options.folder, sizes, options.repeats)
    if options.only != "rollouts":
        compare_update(options.folder, sizes, options.repeats)


if __name__ == "__main__":
    main()

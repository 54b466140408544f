"""Times a GRPO update on packed rows, compared with one episode per row.

    python benchmarks/update.py [--episodes=64] [--rows=8] [--repeats=5] [--tiny]

Both sides run the same jitted function on the same multi-turn episodes (1 to 4 searches, so the longest has about four
times the tokens of the shortest), alternating, after a warm-up that checks that loss and gradient norm agree. Prints
the median seconds, the tokens of episodes per second, the filled share of the rows, and the ratio of the times.
"""

import argparse
import dataclasses
import functools
import statistics
import time

import jax
import numpy as np

from lcrag.learning import Layout, PolicyGradient, Trajectory, adamw, initial_state, make_score, make_update, pack
from lcrag.policy import DecoderConfig, hidden_states, initialise, unembed_log_probabilities
from lcrag.testing import tiny_config

# The model of the figures that the rollout and update were first compared with: 4 layers, 256 wide.
MODEL = DecoderConfig(
    vocabulary_size=4096, width=256, layers=4, heads=8, kv_heads=4, head_width=32, mlp_width=768, max_positions=1024
)
ROW_LENGTH, PROMPT, SAMPLED, RETRIEVED, SEARCHES = 512, 48, (12, 40), (60, 76), (1, 5)


def episode(random: np.random.Generator, vocabulary_size: int, scale: float) -> Trajectory:
    """Returns a prompt, alternating sampled and retrieved text, and a sampled answer, without log-probabilities."""
    by_policy = [np.zeros(int(PROMPT * scale), bool)]
    for _ in range(random.integers(*SEARCHES)):
        by_policy += [np.ones(int(random.integers(*SAMPLED) * scale), bool)]
        by_policy += [np.zeros(int(random.integers(*RETRIEVED) * scale), bool)]
    mask = np.concatenate([*by_policy, np.ones(int(SAMPLED[0] * scale), bool)])
    tokens = random.integers(0, vocabulary_size, len(mask)).astype(np.int32)
    return Trajectory(tokens, mask, np.zeros(len(mask), np.float32), float(random.normal()))


def filled_up(trajectory: Trajectory, length: int) -> Trajectory:
    """Returns the episode padded with environment tokens to a full row."""
    missing = length - len(trajectory.tokens)
    return dataclasses.replace(
        trajectory,
        tokens=np.pad(trajectory.tokens, (0, missing)),
        by_policy=np.pad(trajectory.by_policy, (0, missing)),
        log_probabilities=np.pad(trajectory.log_probabilities, (0, missing)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64, help="episodes of the update")
    parser.add_argument("--rows", type=int, default=8, help="rows of a micro-batch")
    parser.add_argument("--repeats", type=int, default=5, help="timed updates of each side")
    parser.add_argument("--tiny", action="store_true", help="the tests' model and short episodes: a smoke run")
    arguments = parser.parse_args()

    config, scale = (tiny_config(), 0.25) if arguments.tiny else (MODEL, 1.0)
    length = int(ROW_LENGTH * scale)
    random = np.random.default_rng(0)
    episodes = [episode(random, config.vocabulary_size, scale) for _ in range(arguments.episodes)]
    layout = Layout(rows=arguments.rows, row_lengths=(length,))
    batches = {"padded": pack([filled_up(e, length) for e in episodes], layout), "packed": pack(episodes, layout)}

    hidden = functools.partial(hidden_states, config)
    unembed = functools.partial(unembed_log_probabilities, config)
    optimizer = adamw(learning_rate=1e-6, steps=100)
    score, update = make_score(hidden, unembed), make_update(hidden, unembed, PolicyGradient(), optimizer)
    states = {name: initial_state(initialise(config, jax.random.key(0)), optimizer) for name in batches}
    times: dict[str, list[float]] = {name: [] for name in batches}
    first = {}
    for repeat in range(arguments.repeats + 1):
        for name, batch in batches.items():
            if repeat == 0:
                recorded = score(states[name].params, batch)
                batches[name] = batch = batch.replace(sampling_log_probabilities=np.asarray(recorded))
            begin = time.perf_counter()
            states[name], metrics = jax.block_until_ready(update(states[name], batch))
            if repeat:
                times[name].append(time.perf_counter() - begin)
            else:
                first[name] = metrics
    for name in ("loss/policy", "gradient_norm", "entropy"):
        np.testing.assert_allclose(first["packed"][name], first["padded"][name], rtol=1e-3, atol=1e-5)

    tokens = sum(len(e.tokens) for e in episodes)
    medians = {name: statistics.median(values) for name, values in times.items()}
    rows = {name: int((batch.segments > 0).any(-1).sum()) for name, batch in batches.items()}
    print(f"{len(episodes)} episodes, {tokens} tokens, {sum(int(e.by_policy.sum()) for e in episodes)} of the policy")
    for name, seconds in medians.items():
        share = tokens / (rows[name] * length)
        print(f"{name}: {seconds:8.3f} s {tokens / seconds:9.0f} tokens/s {rows[name]:4} rows {share:6.0%} filled")
    print(f"padded / packed: {medians['padded'] / medians['packed']:.2f}")


if __name__ == "__main__":
    main()

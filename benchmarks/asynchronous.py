"""Times training steps at staleness 0, 1 and 2 with a slow retriever and long-tailed lengths.

    python benchmarks/asynchronous.py [--staleness 0 1 2] [--steps=12] [--latency=0.2] [--output=FILE.json]

Runs the training command itself, with a random policy, on made-up questions. An episode generates two or three times
and searches in between; the length of each generation is drawn from a log-normal distribution, the same for every
staleness, and every batch of searches takes `--latency` seconds. Above staleness 1 the sampler does not wait for
searches (`Runner.wait_for_searches = False`). Prints, for each staleness, the median seconds of a step without the
first steps (which compile), the idle shares of the sampler and the trainer, and the mean staleness; `--output` also
receives the lengths and latencies that `benchmarks/asynchronous_hosts.py` reads.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import gin
import jax
import numpy as np
from support.pretended_collections import PretendedCollections

from lcrag.composition.commands import configure, read_configuration
from lcrag.data.questions import Question
from lcrag.episodes import Generate, Observe, Outcome, Program, Retrieve
from lcrag.learning import Layout, PolicyGradient, adamw
from lcrag.policy import DecoderConfig, Policy, initialise, load_tokenizer, make_mesh
from lcrag.runs import read_metrics
from lcrag.train.method import Method
from lcrag.train.rl import train

WEIGHTS = Path(__file__).parents[1] / "lcrag" / "atlas" / "weights" / "tokenizer"
SKIPPED, CONTEXT = 3, 320  # steps that compile and fill the pipeline; tokens
SETTINGS = (
    f"Sampler.context = {CONTEXT}",
    "Sampler.block = 16",
    "Sampler.append_tokens = (32,)",
    "Sampler.windows = (128,)",
    "Trackers.names = ()",
)


class SlowCollections(PretendedCollections):
    """Finds something, after a while."""

    def __init__(self, seconds: float):
        super().__init__(["en"])
        self._seconds = seconds

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int):
        time.sleep(self._seconds)
        return super().search(queries, languages, k)


def lengths(question: Question) -> list[int]:
    """Returns the tokens of each generation of a question's episodes: median 16, one in twenty above 60."""
    random = np.random.default_rng(int(question.id))
    drawn = random.lognormal(np.log(16), 0.8, size=random.integers(2, 4))
    return np.clip(drawn, 2, 88).astype(int).tolist()


def program(question: Question, languages: Sequence[str]) -> Program:
    """Searches after every generation except the last."""
    yield Observe(question.text)
    *searching, last = lengths(question)
    for tokens in searching:
        yield Generate(stop=(), max_tokens=tokens)
        yield Retrieve((question.text,), languages, 1)
        yield Observe("\nfound: a passage\n")
    return Outcome(answer=(yield Generate(stop=(), max_tokens=last)))


def reward(episodes) -> dict[str, np.ndarray]:
    """Any reward that differs within a group."""
    return {"total": np.array([len(answer or "") % 7 for answer in episodes.answers], np.float32)}


def made_policy(tiny: bool) -> Policy:
    """Returns a random policy, by default of 5.0M parameters, which seldom ends a generation by itself."""
    tokenizer = load_tokenizer(WEIGHTS)
    sizes = dict(width=64, layers=1, mlp_width=128) if tiny else dict(width=256, layers=4, mlp_width=768)
    config = DecoderConfig(
        **sizes, vocabulary_size=tokenizer.vocabulary_size, heads=4, kv_heads=2, head_width=32, max_positions=1024
    )
    mesh = make_mesh(devices=jax.devices()[:1])
    return Policy("random", config, initialise(config, jax.random.key(0)), tokenizer, mesh, None)


def run(staleness: int, arguments: argparse.Namespace, folder: Path) -> list[dict]:
    """Trains, and returns the metrics of every step."""
    groups = arguments.episodes // 4
    asked = [
        Question(id=str(number), dataset="made", language="en", text=f"Question {number}?", answers=("?",))
        for number in range(groups * (arguments.steps + 1))
    ]
    gin.clear_config()
    waits = f"Runner.wait_for_searches = {staleness < 2}"
    configure(read_configuration([], [*SETTINGS, f"Sampler.slots = {arguments.slots}", waits]))
    train(
        folder / f"staleness_{staleness}",
        seed=0,
        steps=arguments.steps,
        couplings=groups,
        policy=made_policy(arguments.tiny),
        questions=asked,
        collections=SlowCollections(arguments.latency),
        method=Method(name="made", program=program, reward=reward, coupling="independent", samples=4),
        objective=PolicyGradient(importance_cap=2.0),
        optimizer=adamw(learning_rate=1e-5, steps=arguments.steps),
        layout=Layout(rows=4, row_lengths=(CONTEXT,)),
        staleness=staleness,
        checkpoint_every=arguments.steps,
    )
    return read_metrics(folder / f"staleness_{staleness}")


def summary(records: Sequence[dict]) -> dict[str, float]:
    """Returns what is printed of a run."""
    steady = records[SKIPPED : -1 - SKIPPED] or records[-1:]  # at the end there is nothing more to sample
    names = ("idle/sampler", "idle/trainer", "staleness/mean", "seconds/update")
    means = {name: statistics.mean(record.get(name, float("nan")) for record in steady) for name in names}
    return {"seconds/step": statistics.median(record["seconds/step"] for record in steady), **means}


def distributions(records: Sequence[dict], arguments: argparse.Namespace) -> dict[str, object]:
    """Returns what `benchmarks/asynchronous_hosts.py` reads: what a run's episodes are drawn from, and its speeds."""
    steady = records[SKIPPED:]
    tokens = [each["tokens_per_second/sampled"] * each["seconds/rollout"] / each["slots/occupancy"] for each in steady]
    decoding = sum(each["seconds/decode"] for each in steady)
    asked = (Question(id=str(n), dataset="made", language="en", text="?", answers=("?",)) for n in range(1000))
    return {
        "generations": [lengths(question) for question in asked],
        "latencies": [arguments.latency],
        "seconds_per_token": decoding * arguments.slots / sum(tokens),
        "seconds_per_update": statistics.median(each["seconds/update"] for each in steady),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--episodes", type=int, default=64, help="episodes of a step, in groups of 4")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of a batch of searches")
    parser.add_argument("--tiny", action="store_true", help="a smaller policy: a smoke run")
    parser.add_argument("--output", type=Path, help="a file for the results as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        records = {each: run(each, arguments, Path(folder)) for each in arguments.staleness}
    results = {each: summary(own) for each, own in records.items()}
    print(f"\n{'staleness':>9} {'s/step':>8} {'update s':>9} {'sampler idle':>13} {'trainer idle':>13} {'mean age':>9}")
    for staleness, found in results.items():
        print(
            f"{staleness:9} {found['seconds/step']:8.2f} {found['seconds/update']:9.2f} {found['idle/sampler']:13.0%}"
            f" {found['idle/trainer']:13.0%} {found['staleness/mean']:9.2f}"
        )
    if arguments.output:
        content = {
            "settings": {**vars(arguments), "output": None},
            "results": results,
            **distributions(records[arguments.staleness[0]], arguments),
        }
        arguments.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

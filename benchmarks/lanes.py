"""Times rollouts that lanes share: over processes, on one device, and the exchange of finished episodes.

    python benchmarks/lanes.py scaling [--processes 1 2 4]   # a lane in each process, pinned to a core of its own
    python benchmarks/lanes.py overlap [--lanes 1 2] [--latency=0.05]   # lanes that share the devices of one process
    python benchmarks/lanes.py stealing [--slow=1.0]   # groups of unequal length: dealt to two processes, or taken
    python benchmarks/lanes.py exchange   # 1,536 episodes of 4,096 tokens between two processes

`scaling` keeps the work of a lane: efficiency is the sampled tokens a second of all lanes, divided by those of one lane
times their number. `overlap` runs alternately, in one process, the same episodes on one lane and on several with the
same slots together; on a GPU or TPU the same command shows how much host work and waiting the other lane's decoding
hides. `stealing` alternates, in two processes with a lane each, rollouts whose groups are dealt to the lanes and
rollouts with `Lanes.stealing`; searches of the second process take `--slow` seconds more. `exchange` times what every
process does after a rollout. Processes are real and use gloo on loopback.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

CORES = sorted(os.sched_getaffinity(0))
WORKER = os.environ.get("LANES_WORKER")  # "process processes port"
if WORKER and len(CORES) > 1:  # before JAX counts the cores
    os.sched_setaffinity(0, {CORES[int(WORKER.split()[0]) % len(CORES)]})

import gin  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
from support import tiny_config, tiny_tokenizer  # noqa: E402
from support.pretended_collections import PretendedCollections  # noqa: E402
from timing import report, timed  # noqa: E402

from lcrag.data.questions import Question  # noqa: E402
from lcrag.episodes import EpisodeRecord, Generate, Observe, Outcome, Program, Retrieve  # noqa: E402
from lcrag.episodes.agreement import exchanged  # noqa: E402
from lcrag.episodes.exchange import packed, unpacked  # noqa: E402
from lcrag.episodes.record import Turn  # noqa: E402
from lcrag.policy import Policy, initialise, make_mesh  # noqa: E402
from lcrag.train.lanes import Lanes  # noqa: E402
from lcrag.train.method import Method  # noqa: E402

SIZES = {"width": 256, "heads": 8, "head_width": 32, "mlp_width": 1024, "layers": 4, "max_positions": 512}
SLOTS, GENERATED, TURNS, CONTEXT = 32, 32, 3, 256  # slots of a lane, tokens of a generation
PIECES = ((-1, 496), (0, 300), (1, 900), (2, 300), (3, 900), (4, 300), (5, 900))  # (turn, tokens) of an episode


class SlowCollections(PretendedCollections):
    """Finds something, after a while."""

    def __init__(self, seconds: float):
        super().__init__(["en"])
        self._seconds = seconds

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int):
        time.sleep(self._seconds)
        return super().search(queries, languages, k)


def searching(asked: Question, languages: Sequence[str]) -> Program:
    """Generates three times and searches in between."""
    yield Observe(asked.text)
    for _ in range(TURNS - 1):
        query = yield Generate(stop=(), max_tokens=GENERATED)
        yield Retrieve((query[:20],), ("en",), 1)
        yield Observe(" a passage that was found")
    return Outcome(answer=(yield Generate(stop=(), max_tokens=GENERATED)))


def unequal(asked: Question, languages: Sequence[str]) -> Program:
    """Does what `searching` does in one, two or, for every fifth question, five turns."""
    yield Observe(asked.text)
    for _ in range((0, 0, 0, 1, 4)[int(asked.id) % 5]):
        query = yield Generate(stop=(), max_tokens=GENERATED)
        yield Retrieve((query[:20],), ("en",), 1)
        yield Observe(" a passage")
    return Outcome(answer=(yield Generate(stop=(), max_tokens=GENERATED)))


def make_lanes(count: int, slots: int, latency: float, tiny: bool, program=searching, stealing: bool = False) -> Lanes:
    """Lanes of a random policy over all devices."""
    gin.clear_config()
    gin.parse_config(f"Lanes.stealing = {stealing}")
    settings = {"slots": slots, "context": CONTEXT, "block": 16, "append_tokens": (32,), "append_rows": (slots,)}
    gin.parse_config([f"Lanes.count = {count}", *(f"Sampler.{name} = {value}" for name, value in settings.items())])
    config, mesh = tiny_config(**({} if tiny else SIZES)), make_mesh()
    policy = Policy("random", config, initialise(config, jax.random.key(0), mesh), tiny_tokenizer(), mesh)
    method = Method(name="m", program=program, reward=lambda e: {"total": np.zeros(len(e.answers))}, samples=8)
    return Lanes(policy, SlowCollections(latency), method, seed=0)


def questions(episodes: int) -> list[tuple[Question]]:
    asked = (
        Question(id=str(n), dataset="d", language="en", text=f"Who is {n}?", answers=("x",))
        for n in range(episodes // 8)
    )
    return [(each,) for each in asked]


def rolled_out(lanes: Lanes, groups: Sequence[tuple[Question]]) -> tuple[int, float]:
    """Sampled tokens and seconds of one rollout, the exchange included."""
    before = lanes.statistics.sampled_tokens
    _, seconds = timed(lambda: lanes.roll_out(groups, 0, policy_version=0, step=0))
    return lanes.statistics.sampled_tokens - before, seconds


def scaling_worker(processes: int, options: argparse.Namespace) -> dict[str, Any]:
    lanes, groups = make_lanes(processes, SLOTS * processes, options.latency, options.tiny), questions(64 * processes)
    rolled_out(lanes, groups)  # compiles
    runs = [rolled_out(lanes, groups) for _ in range(options.repeats)]
    return {"tokens": runs[0][0], "seconds": [seconds for _, seconds in runs]}


def scaling(options: argparse.Namespace) -> None:
    rates: dict[int, float] = {}
    for processes in options.processes:
        if processes > len(CORES):
            print(f"{processes} lanes: left out, {len(CORES)} cores are here")
            continue
        found = workers("scaling", processes, options)
        rates[processes] = found["tokens"] / statistics.median(found["seconds"])
        efficiency = rates[processes] / (rates[min(rates)] / min(rates) * processes)
        report("lanes, weak scaling", f"{processes} lanes", found["seconds"], found["tokens"], "sampled tokens")
        print(
            f"{processes} lanes on as many processes: {rates[processes]:,.0f} sampled tokens/s,"
            f" efficiency {efficiency:.2f}"
        )


def overlap(options: argparse.Namespace) -> None:
    slots = SLOTS * 2
    sides = {count: make_lanes(count, slots, options.latency, options.tiny) for count in options.lanes}
    groups, seconds = questions(slots if options.tiny else 4 * slots), {count: [] for count in sides}
    for repeat in range(options.repeats + 1):  # the first compiles
        for count, lanes in sides.items():
            tokens, taken = rolled_out(lanes, groups)
            seconds[count] += [taken] if repeat else []
    first = seconds[options.lanes[0]]
    for count, own in seconds.items():
        ratio = statistics.median(b / a for a, b in zip(first, own, strict=True))
        report("lanes that share devices", f"{count} lanes", own, tokens, "sampled tokens")
        print(
            f"{count} lanes, {jax.device_count()} devices, searches of {options.latency} s:"
            f" {tokens / statistics.median(own):,.0f} sampled tokens/s, {ratio:.2f} of the time of {options.lanes[0]}"
        )


def stealing_worker(processes: int, options: argparse.Namespace) -> dict[str, Any]:
    latency = options.latency + options.slow * (jax.process_index() == 1)
    sizes = processes, SLOTS * processes, latency, options.tiny
    sides = {name: make_lanes(*sizes, unequal, name == "taken") for name in ("dealt", "taken")}
    groups, seconds = questions(8 * SLOTS * processes), {name: [] for name in sides}
    for repeat in range(options.repeats + 1):  # the first compiles
        for name, lanes in sides.items():
            tokens, took = rolled_out(lanes, groups)
            seconds[name] += [took] if repeat else []
    return {"tokens": tokens, "seconds": seconds}


def stealing(options: argparse.Namespace) -> None:
    found = workers("stealing", 2, options)
    for name, seconds in found["seconds"].items():
        report("groups of unequal length", name, seconds, found["tokens"], "sampled tokens")
    ratio = statistics.median(b / a for a, b in zip(*found["seconds"].values(), strict=True))
    print(f"2 lanes on as many processes, groups of unequal length: {ratio:.2f} of the time with Lanes.stealing")


def episode(number: int, asked: Question) -> EpisodeRecord:
    """An episode of 4,096 tokens with its texts."""
    random = np.random.default_rng(number)
    turn = np.repeat([each for each, _ in PIECES], [tokens for _, tokens in PIECES]).astype(np.int32)
    by_policy = np.isin(turn, (0, 2, 4))
    texts = [("policy" if each % 2 == 0 else "environment", "слово " * (tokens // 2)) for each, tokens in PIECES[1:]]
    return EpisodeRecord(
        question=asked,
        prompt="p" * 2000,
        turns=tuple(Turn(*each) for each in texts),
        tokens=random.integers(0, 150_000, len(turn)).astype(np.int32),
        by_policy=by_policy,
        log_probabilities=np.where(by_policy, random.standard_normal(len(turn)), 0).astype(np.float32),
        turn=turn,
        policy_version=0,
        outcome=Outcome(answer="x"),
        counts={"searches": 2},
        finished=True,
        episode=number,
    )


def exchange_worker(processes: int, options: argparse.Namespace) -> dict[str, Any]:
    ((asked,),) = questions(8)
    numbers = range(jax.process_index(), options.episodes, processes)
    own, by_number = [episode(number, asked) for number in numbers], dict.fromkeys(range(options.episodes), asked)

    def everything() -> int:
        contents = exchanged("the rollout", packed(own, None))
        others = [each for process, each in enumerate(contents) if process != jax.process_index()]
        records = [record for each in others for record in unpacked(each, by_number)[0]]
        assert len(records) + len(own) == options.episodes
        return sum(map(len, contents))

    everything()
    runs = [timed(everything) for _ in range(options.repeats)]
    return {"bytes": runs[0][0], "seconds": [seconds for _, seconds in runs]}


def exchange(options: argparse.Namespace) -> None:
    found = workers("exchange", 2, options)
    seconds = statistics.median(found["seconds"])
    report("exchange of episodes", "2 processes", found["seconds"], found["bytes"], "bytes")
    print(
        f"{options.episodes} episodes of 4,096 tokens, {found['bytes'] / 1e6:.0f} MB, between 2 processes:"
        f" {seconds:.2f} s, less than 1 % of a step that takes {100 * seconds:.0f} s or more"
    )


def workers(what: str, processes: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a worker in each of several processes; returns what the first one measured."""
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        port = opened.getsockname()[1]
    running = []
    for process in range(processes):
        environment = os.environ | {"LANES_WORKER": f"{process} {processes} {port}", "XLA_FLAGS": ""}
        line = [sys.executable, *sys.argv]
        running.append(subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        answers = [each.communicate()[0] for each in running]
    finally:
        for each in running:
            each.kill()
    if any(each.returncode for each in running):
        raise SystemExit(f"a process of {what} failed")
    return json.loads(answers[0].splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scaling", "overlap", "stealing", "exchange"))
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--latency", type=float, default=0.02, help="seconds of every batch of searches")
    parser.add_argument("--slow", type=float, default=0.0, help="further seconds in the second process of stealing")
    parser.add_argument("--episodes", type=int, default=1536, help="of the exchange")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a smaller policy, to try it")
    options = parser.parse_args()
    if WORKER is None:
        {"scaling": scaling, "overlap": overlap, "stealing": stealing, "exchange": exchange}[options.what](options)
        return
    process, processes, port = map(int, WORKER.split())
    jax.distributed.initialize(f"localhost:{port}", num_processes=processes, process_id=process)
    work: dict[str, Callable[..., dict[str, Any]]] = {
        "scaling": scaling_worker,
        "stealing": stealing_worker,
        "exchange": exchange_worker,
    }
    print(json.dumps(work[options.what](processes, options)))


if __name__ == "__main__":
    main()

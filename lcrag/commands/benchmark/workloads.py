"""The phases of a training step with random parameters and tokens: appending, decoding, learning."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import tokenizers
from tokenizers import models

from lcrag.commands.benchmark.machine import Machine
from lcrag.commands.compile.lowering import CompilePlan
from lcrag.learning import Trajectory
from lcrag.learning.learners import Learner, needs_reference
from lcrag.policy import HuggingFaceTokenizer, Policy, initialise
from lcrag.policy.flops import cache_bytes, causal_mean, decode_bytes, forward_flops, update_flops
from lcrag.sampling import Sampler, SamplingParameters

Progress = Callable[[str], None]
POLICY_SHARE = 0.5  # share of policy tokens in a training episode
PIECE = 16  # tokens of each turn in such an episode
SHORTEST = 0.25  # length of the shortest episode, as a share of the longest training row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """The times of one phase.

    Attributes:
      work: The phase and its shape.
      tokens: Tokens that it processes.
      seconds: Seconds of each repeat.
      flops: Operations that it needs, by formula; padding and recomputation are not counted.
      moved_bytes: Bytes that it must at least read and write; 0 where operations dominate.
    """

    work: str
    tokens: float
    seconds: Sequence[float]
    flops: float
    moved_bytes: float = 0.0

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)

    def share_of_floor(self, machine: Machine) -> float:
        """Returns the roofline bound by the machine's rates divided by the median time; at most about 1."""
        return machine.floor_seconds(self.flops, self.moved_bytes) / self.median


def endless_tokenizer(vocabulary_size: int) -> HuggingFaceTokenizer:
    """Returns a tokenizer whose end-of-sequence token is never sampled, so all generations have full length."""
    words = models.WordLevel({str(number): number for number in range(vocabulary_size)}, unk_token="0")
    return HuggingFaceTokenizer(backend=tokenizers.Tokenizer(words), eos_ids=(vocabulary_size,), pad_id=0)


def timings(plan: CompilePlan, repeats: int, progress: Progress) -> Iterator[Timing]:
    """Yields the timings of every phase, in the order of a step.

    Args:
      plan: The configuration, on a mesh of devices that are present.
      repeats: Timed calls of each phase, after one that compiles it.
      progress: Called with the name of each phase before it runs.
    """
    tokenizer = endless_tokenizer(plan.config.vocabulary_size)
    params = initialise(plan.config, jax.random.key(0), plan.device_mesh)
    sampler = Sampler(plan.config, params, tokenizer, plan.sampler, plan.device_mesh)
    yield from _sampling(plan, sampler, repeats, progress)
    del sampler  # its cache and parameters free their memory
    progress("update")
    yield _learning(plan, params, tokenizer, repeats)


def _sampling(plan: CompilePlan, sampler: Sampler, repeats: int, progress: Progress) -> Iterator[Timing]:
    rows, chunk = plan.sampler.largest_append
    block, context = plan.sampler.block, plan.sampler.context
    chunk = min(chunk, context)
    progress(f"append {rows} x {chunk}")
    texts = {slot: np.full(chunk, slot % plan.config.vocabulary_size, np.int32) for slot in range(rows)}

    def append() -> None:
        sampler.free(range(sampler.slots))
        sampler.append(texts)
        sampler.wait()

    flops = forward_flops(plan.config, rows * chunk, attended=causal_mean(chunk), unembedded=0)
    yield Timing(work=f"append {rows} x {chunk}", tokens=rows * chunk, seconds=timed(append, repeats), flops=flops)
    for window in sorted({*(each for each in plan.sampler.windows if block < each < context), context}):
        progress(f"decode at {window}")
        yield decoding(plan, sampler, window, repeats)


def decoding(plan: CompilePlan, sampler: Sampler, window: int, repeats: int) -> Timing:
    """Times a block of tokens in every slot whose contexts then fill the window."""
    slots, block = plan.sampler.slots, min(plan.sampler.block, window - 1)
    request = SamplingParameters(max_tokens=block)

    def prepare() -> None:
        sampler.free(range(slots))
        sampler.append({0: np.zeros(window - block, np.int32)})
        sampler.fork(0, range(1, slots))
        sampler.begin({slot: dataclasses.replace(request, episode=slot) for slot in range(slots)})
        sampler.wait()

    def decode() -> None:
        while sampler.running:
            sampler.decode()

    read = window - block / 2
    return Timing(
        work=f"decode {slots} slots at {window}",
        tokens=slots * block,
        seconds=timed(decode, repeats, prepare),
        flops=block * forward_flops(plan.config, slots, attended=read),
        moved_bytes=block * _read_bytes(plan, slots, read),
    )


def _read_bytes(plan: CompilePlan, slots: int, positions: float) -> float:
    """Returns the bytes that all devices together move in a decode step; each share reads its own parameters."""
    cached = cache_bytes(plan.config, slots, positions + 1)
    copies = plan.mesh.size / plan.mesh.shape["tensor"]
    return (decode_bytes(plan.config, slots, positions) - cached) * copies + cached


def _learning(plan: CompilePlan, params: Any, tokenizer: HuggingFaceTokenizer, repeats: int) -> Timing:
    """Times an update, with the scores that it needs, on as many drawn episodes as the sampler has slots."""
    policy = Policy("random", plan.config, params, tokenizer, plan.device_mesh)
    learner = Learner(policy, plan.objective, plan.optimizer, plan.layout, 1.0, plan.critic)
    episodes = drawn_episodes(plan.sampler.slots, max(plan.layout.row_lengths), plan.config.vocabulary_size)
    return Timing(
        work=f"update on {len(episodes)} episodes",
        tokens=sum(len(each.tokens) for each in episodes),
        seconds=timed(lambda: learner.learn(episodes), repeats),
        flops=sum(_learning_flops(plan, each) for each in episodes),
    )


def _learning_flops(plan: CompilePlan, episode: Trajectory) -> float:
    """Operations of the policy's update and its reference's scores, and of the critic's values and update."""
    length, written = len(episode.tokens), int(episode.by_policy.sum())
    sizes = {"tokens": length, "attended": causal_mean(length)}
    flops = update_flops(plan.config, **sizes, unembedded=written)
    if needs_reference(plan.objective, plan.critic):
        flops += forward_flops(plan.config, **sizes, unembedded=written)
    if plan.critic is not None:
        flops += forward_flops(plan.config, **sizes, unembedded=0) + update_flops(plan.config, **sizes, unembedded=0)
    return flops


def drawn_episodes(count: int, longest: int, vocabulary_size: int) -> list[Trajectory]:
    """Draws multi-turn episodes with lengths uniform from `SHORTEST` of the longest row to the whole row."""
    random = np.random.default_rng(0)
    episodes = []
    for length in random.integers(max(2, int(SHORTEST * longest)), longest + 1, count):
        by_policy = np.arange(length) // PIECE % round(1 / POLICY_SHARE) == 1
        by_policy[-1] = True
        written = np.where(by_policy, -np.log(vocabulary_size), 0).astype(np.float32)
        tokens = random.integers(0, vocabulary_size, length).astype(np.int32)
        episodes.append(Trajectory(tokens, by_policy, written, advantage=float(random.normal())))
    return episodes


def timed(work: Callable[[], object], repeats: int, prepare: Callable[[], None] = lambda: None) -> list[float]:
    """Returns the seconds of each repeat, after one call that compiles; `prepare` runs before each and is not timed."""
    taken = []
    for _ in range(repeats + 1):
        prepare()
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return taken[1:]

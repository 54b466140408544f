"""`lcrag benchmark`: times the phases of a configuration's training step and compares them with the machine's floor.

The policy has the configuration's shape and random parameters. A floor is a lower bound of a time: the operations and
bytes that the work needs by formula, without padding, over the rates at which the same devices, in the same run, copy
an array and multiply matrices.
"""

import dataclasses
import datetime
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from jax.sharding import Mesh
from tokenizers import models

from lcrag.errors import UserError, typed
from lcrag.evaluation.tables import Cell, Table, to_markdown, to_rich
from lcrag.learning import Trajectory
from lcrag.learning.learners import Learner, needs_reference
from lcrag.learning.update import batch_shares
from lcrag.policy import DecoderConfig, Policy, Tokenizer, initialise, parameter_count
from lcrag.policy.parameters import cache_bytes, causal_mean, decode_bytes, forward_flops, update_flops
from lcrag.runs import check_used, mark_used, write_json, write_text
from lcrag.runs.display import make_console
from lcrag.sampling import Sampler, SamplingParameters, SlotSampler

RESULT = "benchmark.json"
HEADER = ("work", "tokens", "seconds", "tokens/s", "floor", "share of the floor", "bound by")
COPIED_BYTES = {"cpu": 1 << 27, "gpu": 1 << 31, "tpu": 1 << 30}
MATRIX_WIDTH = {"cpu": 1024, "gpu": 8192, "tpu": 8192}
POLICY_SHARE = 0.5  # share of policy tokens in a training episode
PIECE = 16  # tokens of each turn in such an episode
SHORTEST = 0.25  # length of the shortest episode, as a share of the longest training row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Measured rates of all devices of a mesh together: of an array's copy, and of products in the compute dtype."""

    name: str  # the devices, as in "1 x cpu"
    bytes_per_second: float  # read and written
    flops_per_second: float

    def floor_seconds(self, flops: float, moved_bytes: float = 0.0) -> float:
        """Returns the larger of the times to compute some work and to move its bytes."""
        return max(flops / self.flops_per_second, moved_bytes / self.bytes_per_second)

    def row(self, work: str, tokens: int, seconds: Sequence[float], flops: float, moved: float = 0.0) -> dict[str, Any]:
        """Returns the row of a phase in `benchmark.json`, with the seconds of each repeat.

        It needs `flops` operations, without padding and recomputation, and must read and write `moved` bytes; 0 where
        operations dominate.
        """
        median, floor = statistics.median(seconds), self.floor_seconds(flops, moved)
        return {
            "work": work,
            "tokens": tokens,
            "seconds": list(seconds),
            "median_seconds": median,
            "tokens_per_second": tokens / median,
            "floor_seconds": floor,
            "share_of_floor": floor / median,
            "bound_by": "operations" if floor == self.floor_seconds(flops) else "memory",
        }


def measured_machine(mesh: Mesh, dtype: jnp.dtype, repeats: int) -> Machine:
    """Measures the first device of a mesh by the median of `repeats` calls; the others are assumed to be equal."""
    device = mesh.devices.flat[0]
    with jax.default_device(device):
        copied = jnp.zeros(COPIED_BYTES[device.platform] // 4)
        width = MATRIX_WIDTH[device.platform]
        # Drawn, because GPUs multiply constants faster: they draw less power.
        square = jax.random.normal(jax.random.key(0), (width, width), dtype)
        copy, product = jax.jit(jnp.copy), jax.jit(jnp.matmul)
        copying = statistics.median(timed(lambda: jax.block_until_ready(copy(copied)), repeats))
        multiplying = statistics.median(timed(lambda: jax.block_until_ready(product(square, square)), repeats))
    return Machine(
        name=f"{mesh.size} x {device.device_kind}",
        bytes_per_second=2 * copied.nbytes / copying * mesh.size,
        flops_per_second=2 * width**3 / multiplying * mesh.size,
    )


def timed(work: Callable[[], object], repeats: int, prepare: Callable[[], None] = lambda: None) -> list[float]:
    """Returns the seconds of each repeat, after one call that compiles; `prepare` runs before each and is not timed."""
    taken = []
    for _ in range(repeats + 1):
        prepare()
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return taken[1:]


def sampling_rows(
    machine: Machine, config: DecoderConfig, params: Any, settings: Sampler, mesh: Mesh, repeats: int
) -> Iterator[dict[str, Any]]:
    """Yields the rows of the times to append the longest chunk, and to decode a block in every slot at every window."""
    # No token ends a sequence, so all generations have full length.
    words = models.WordLevel({str(number): number for number in range(config.vocabulary_size)}, unk_token="0")
    tokenizer = Tokenizer(tokenizers.Tokenizer(words), eos_ids=(config.vocabulary_size,), pad_id=0)
    sampler = SlotSampler(config, params, tokenizer, settings, mesh)
    block, context, slots = settings.block, settings.context, settings.slots
    rows, chunk = settings.largest_append
    chunk = min(chunk, context)
    texts = {slot: np.full(chunk, slot % config.vocabulary_size, np.int32) for slot in range(rows)}

    def append() -> None:
        sampler.free(range(slots))
        sampler.append(texts)
        sampler.wait()

    flops = forward_flops(config, rows * chunk, attended=causal_mean(chunk), unembedded=0)
    seconds = timed(append, repeats)
    yield machine.row(f"append {rows} x {chunk}", rows * chunk, seconds, flops)

    def decode() -> None:
        while sampler.running:
            sampler.decode()

    for window in sorted({*(window for window in settings.windows if block < window < context), context}):
        new = min(block, window - 1)
        request = SamplingParameters(max_tokens=new)

        def fill(window: int = window, new: int = new, request: SamplingParameters = request) -> None:
            sampler.free(range(slots))
            sampler.append({0: np.zeros(window - new, np.int32)})
            sampler.fork(0, range(1, slots))
            sampler.begin({slot: dataclasses.replace(request, episode=slot) for slot in range(slots)})
            sampler.wait()

        read = window - new / 2  # positions, on average over the block
        cached = cache_bytes(config, slots, read + 1)
        copies = mesh.size / mesh.shape["tensor"]  # each share of the slots reads its own parameters
        yield machine.row(
            f"decode {slots} slots at {window}",
            slots * new,
            timed(decode, repeats, fill),
            flops=new * forward_flops(config, slots, attended=read),
            moved=new * ((decode_bytes(config, slots, read) - cached) * copies + cached),
        )


def update_row(
    machine: Machine, policy: Policy, given: Mapping[str, Any], *, count: int, repeats: int
) -> dict[str, Any]:
    """Returns the row of the time of an update on `count` drawn episodes, with the scores that it needs."""
    config, layout, objective, critic = policy.config, given["layout"], given["objective"], given["critic"]
    learner = Learner(policy, objective, given["optimizer"], layout, 1.0, critic)
    episodes, flops = drawn_episodes(count, max(layout.row_lengths), config.vocabulary_size), 0.0
    for episode in episodes:
        written = int(episode.by_policy.sum())
        sizes = {"tokens": len(episode.tokens), "attended": causal_mean(len(episode.tokens))}
        flops += update_flops(config, **sizes, unembedded=written)
        if needs_reference(objective, critic):
            flops += forward_flops(config, **sizes, unembedded=written)
        if critic is not None:  # its values and its update
            flops += forward_flops(config, **sizes, unembedded=0) + update_flops(config, **sizes, unembedded=0)
    tokens = sum(len(episode.tokens) for episode in episodes)
    return machine.row(f"update on {count} episodes", tokens, timed(lambda: learner.learn(episodes), repeats), flops)


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


@gin.configurable
@typed
def benchmark(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    repeats: int = 5,
) -> None:
    """Times appending, decoding at every window, and learning; takes the arguments of `compile`.

    Args:
      output_dir: Folder for `benchmark.json` and `benchmark.md`; None: nothing is written.
      repeats: Timed calls of each phase, of which the median is reported.
    """
    if words:
        raise UserError(f"lcrag benchmark takes no word {words[0]}; options begin with --")
    if repeats < 1:
        raise UserError(f"benchmark.repeats is {repeats}: it must be 1 or more")
    given = {"critic": None, "topology": "", **gin.get_bindings("compile")}
    mark_used("compile")
    if "decoder" not in given:
        raise UserError(
            "compile.decoder is not set: add a file of gin/model, or --gin.compile.decoder=@shape_of() with"
            " --gin.shape_of.folder='\"FOLDER\"' for the shape of a model folder"
        )
    if topology := given["topology"]:
        raise UserError(f"lcrag benchmark runs on the devices present, not on {topology}: leave compile.topology out")
    settings, mesh, layout = given["lanes"].sampler, given["mesh"](), given["layout"]
    config = given["computation"].of(given["decoder"])
    layout.check_shares(batch_shares(mesh))
    check_used()
    console = make_console()
    with console.status("timing"):
        machine = measured_machine(mesh, config.dtype, repeats)
        params = initialise(config, jax.random.key(0), mesh)
        rows = list(sampling_rows(machine, config, params, settings, mesh, repeats))
        tokenizer = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"0": 0}, unk_token="0")), (), 0)
        policy = Policy("random", config, params, tokenizer, mesh)
        rows.append(update_row(machine, policy, given, count=settings.slots, repeats=repeats))
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": dataclasses.asdict(machine),
        "model": f"{config.family} of {config.layers} layers, width {config.width}, {parameter_count(config):,}"
        f" parameters, {config.compute_dtype}",
        "mesh": dict(mesh.shape),
        "rows": rows,
    }
    table = table_of(result)
    console.print(to_rich(table))
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / RESULT, result)
        write_text(output_dir / "benchmark.md", to_markdown(table))


def table_of(result: Mapping[str, Any]) -> Table:
    """Returns the table of a benchmark."""
    machine, formats = result["machine"], ("", ",.0f", ".4g", ",.0f", ".4g", ".0%", "")
    names = ("work", "tokens", "median_seconds", "tokens_per_second", "floor_seconds", "share_of_floor", "bound_by")
    rates = f"{machine['bytes_per_second'] / 1e9:,.0f} GB/s copied, {machine['flops_per_second'] / 1e9:,.0f} GFLOP/s"
    rows = [tuple(Cell(format(row[n], f)) for n, f in zip(names, formats, strict=True)) for row in result["rows"]]
    return Table(
        title=f"{result['model']}, on {machine['name']}, {result['date']}",
        header=HEADER,
        sections=(tuple(rows),),
        note=f"Floor: operations and bytes by formula, without padding, over the measured rates ({rates}).",
    )

"""`lcrag benchmark --growth`: how times grow with sizes, and the exponents that fit them."""

import dataclasses
import json
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import matplotlib.ticker
import numpy as np

from lcrag.commands.benchmark.workloads import decoding, endless_tokenizer, timed
from lcrag.commands.compile.lowering import CompilePlan
from lcrag.errors import UserError
from lcrag.evaluation.plots import COLOURS, MUTED, make_panels, save_figure
from lcrag.policy import initialise
from lcrag.retrieval.index import VECTORS, read_index, write_index
from lcrag.runs import write_json
from lcrag.sampling import Sampler, SamplingParameters

SIZES: dict[str, tuple[int, ...]] = {
    "slots": (16, 32, 64, 128, 256, 512),
    "context": (256, 512, 1024, 2048, 4096),
    "turns": (1, 2, 3, 4, 5, 6),
    "vocabulary": (4096, 16384, 65536, 151936),
    "collection": (1_000, 10_000, 100_000, 1_000_000),
}
UNITS = {
    "slots": "a decode step",
    "context": "a decode step",
    "turns": "a rollout",
    "vocabulary": "a decode step",
    "collection": "a query",
}
PROMPT, SAMPLED, OBSERVED = 64, 32, 64  # tokens of the rollouts
VECTOR_WIDTH, QUERIES, NEIGHBOURS = 256, 256, 10

Points = dict[str, dict[str, dict[str, float]]]
"""Series -> size, as text for JSON -> {"seconds": median, "took": seconds to measure it}."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """A power law seconds = factor * size ** exponent, fitted by least squares of the logarithms."""

    exponent: float
    factor: float

    def at(self, size: float) -> float:
        """Returns the seconds that it predicts."""
        return self.factor * size**self.exponent


def fitted(points: Mapping[str, Mapping[str, float]]) -> Fit | None:
    """Fits a power law to the points of a series; None for fewer than three."""
    if len(points) < 3:
        return None
    sizes = np.array([int(size) for size in points], float)
    seconds = np.array([point["seconds"] for point in points.values()])
    exponent, factor = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return Fit(float(exponent), float(np.exp(factor)))


def growth(
    plan: CompilePlan,
    machine: str,
    folder: pathlib.Path,
    repeats: int,
    most_seconds: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Times every series and writes JSON after each point, and a figure; points of an earlier call are kept.

    A series ends before the first size whose measurement, predicted from the one before as proportional to the size,
    takes more than `most_seconds`.

    Returns:
      The content of the JSON file: {"machine", "model", "points", "exponents"}.

    Raises:
      UserError: The folder holds points of another model or machine.
    """
    model = f"{plan.config.family}, {plan.config.layers} layers, width {plan.config.width}, {plan.config.compute_dtype}"
    path = folder / f"growth-{machine.replace(' ', '_')}.json"
    about = {"machine": machine, "model": model}
    result: dict[str, Any] = {**about, "points": {}, "exponents": {}}
    if path.exists():
        result = json.loads(path.read_text(encoding="utf-8"))
    if {name: result.get(name) for name in about} != about:
        raise UserError(f"{path} holds points of {result.get('model')}: name another --output_dir")
    points: Points = result["points"]
    for series, sizes in SIZES.items():
        own = points.setdefault(series, {})
        for before, size in zip((None, *sizes), sizes, strict=False):
            if str(size) in own:
                continue
            if before and own[str(before)]["took"] * size / before > most_seconds:
                break
            progress(f"{series} {size:,}")
            started = time.monotonic()
            seconds = MEASURES[series](plan, size, repeats)
            own[str(size)] = {"seconds": seconds, "took": time.monotonic() - started}
            fit = fitted(own)
            result["exponents"][series] = fit and round(fit.exponent, 3)
            write_json(path, result)
    draw_growth(points, folder / f"{path.stem}.png", f"{model}, {machine}")
    return result


def _shaped(plan: CompilePlan, slots: int, context: int, vocabulary: int | None = None) -> tuple[CompilePlan, Sampler]:
    """Returns the plan with one compiled shape of these sizes, and its sampler with random parameters."""
    vocabulary = vocabulary or plan.config.vocabulary_size
    settings = dataclasses.replace(
        plan.sampler,
        slots=slots,
        context=context,
        windows=(),
        decode_rows=(),
        append_rows=(),
        append_tokens=(OBSERVED,),
    )
    positions = max(context, plan.config.max_positions)
    config = dataclasses.replace(plan.config, vocabulary_size=vocabulary, max_positions=positions)
    shaped = dataclasses.replace(plan, config=config, sampler=settings)
    params = initialise(config, jax.random.key(0), plan.device_mesh)
    return shaped, Sampler(config, params, endless_tokenizer(vocabulary), settings, plan.device_mesh)


def _decode_seconds(plan: CompilePlan, slots: int, context: int, repeats: int, vocabulary: int | None = None) -> float:
    shaped, sampler = _shaped(plan, slots, context, vocabulary)
    timing = decoding(shaped, sampler, context, repeats)
    return timing.median * slots / timing.tokens


def _rollout_seconds(plan: CompilePlan, turns: int, repeats: int) -> float:
    slots = plan.sampler.slots
    _, sampler = _shaped(plan, slots, PROMPT + turns * (SAMPLED + OBSERVED))
    texts = {slot: np.full(OBSERVED, slot % plan.config.vocabulary_size, np.int32) for slot in range(slots)}

    def roll_out() -> None:
        sampler.free(range(slots))
        for _ in range(turns):
            sampler.append(texts)
            sampler.begin({slot: SamplingParameters(max_tokens=SAMPLED, episode=slot) for slot in texts})
            while sampler.running:
                sampler.decode()

    return statistics.median(timed(roll_out, repeats))


def _query_seconds(plan: CompilePlan, size: int, repeats: int) -> float:
    """Times the search of unit vectors in clusters, indexed as `lcrag index` does."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((max(10, size // 100), VECTOR_WIDTH), np.float32)

    def drawn(count: int) -> np.ndarray:
        vectors = centres[random.integers(0, len(centres), count)]
        vectors += 0.7 * random.standard_normal(vectors.shape, np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    with tempfile.TemporaryDirectory() as name:
        folder, queries = pathlib.Path(name), drawn(QUERIES)
        np.save(folder / VECTORS, drawn(size))
        index = read_index(folder, write_index(folder))
        return statistics.median(timed(lambda: index.search(queries, NEIGHBOURS), repeats)) / QUERIES


MEASURES: dict[str, Callable[[CompilePlan, int, int], float]] = {
    "slots": lambda plan, size, repeats: _decode_seconds(plan, size, plan.sampler.context, repeats),
    "context": lambda plan, size, repeats: _decode_seconds(plan, plan.sampler.slots, size, repeats),
    "turns": _rollout_seconds,
    "vocabulary": lambda plan, size, repeats: _decode_seconds(
        plan, plan.sampler.slots, plan.sampler.context, repeats, size
    ),
    "collection": _query_seconds,
}


def draw_growth(points: Points, path: pathlib.Path, title: str) -> None:
    """Draws every series on logarithmic axes with its fit and exponent, into a PNG."""
    shown = {series: own for series, own in points.items() if own}
    figure, row = make_panels(len(shown), height=3.6)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    for axes, (series, own), colour in zip(row, shown.items(), COLOURS, strict=False):
        sizes = [int(size) for size in own]
        axes.loglog(sizes, [point["seconds"] for point in own.values()], "o", color=colour)
        axes.set_title(f"{series}: seconds of {UNITS[series]}")
        if fit := fitted(own):
            axes.loglog(sizes, [fit.at(size) for size in sizes], color=colour, label=f"exponent {fit.exponent:.2f}")
            axes.legend(frameon=False, labelcolor=MUTED)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    save_figure(figure, path)


def exponents_text(result: Mapping[str, Any]) -> Sequence[str]:
    """Returns one line per series, with its number of points and its exponent."""
    exponents = {name: "unknown" if each is None else each for name, each in result["exponents"].items()}
    return [
        f"{series}: {len(result['points'][series])} of {len(SIZES[series])} sizes, exponent {exponent}"
        for series, exponent in exponents.items()
    ]

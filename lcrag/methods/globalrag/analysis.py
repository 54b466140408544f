"""GlobalRAG's analyses: time by phase (tables 6, 7), plan diversity (appendix G), costs (figures 6, 8 to 12)."""

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lcrag import rewards
from lcrag.evaluation.metrics import EFFICIENCY, EFFICIENCY_INPUTS, Answered, Row
from lcrag.evaluation.scoreboard import Part, Scoreboard, System
from lcrag.evaluation.tables import Cell, Curve, Table

PHASES = ("rollout", "rewards", "update")
DIVERSITY = "plan_diversity"
_RATE = "tokens_per_second/sampled"


def phase_table(
    logs: Mapping[str, Sequence[Mapping[str, Curve]]], title: str = "Time of a training step"
) -> Table | None:
    """Tabulates each phase's seconds, share and milliseconds per token, a line per method; None without rollouts.

    `logs` has for each method the training log of each of its runs, over which a line is the mean.
    """
    lines = []
    for method, method_logs in logs.items():
        runs = []  # (seconds of each phase, tokens sampled) per step of a run, means over its steps
        for log in method_logs:
            names = [*(f"seconds/{phase}" for phase in PHASES), _RATE]
            if any(name not in log or not len(log[name][0]) for name in names):
                continue  # SFT has no rollouts
            seconds = {phase: float(log[f"seconds/{phase}"][1].mean()) for phase in PHASES}
            steps = np.intersect1d(log["seconds/rollout"][0], log[_RATE][0])
            rollout, rate = (y[np.isin(x, steps)] for x, y in (log["seconds/rollout"], log[_RATE]))
            tokens = float((rollout * rate).mean())
            if tokens > 0 and sum(seconds.values()) > 0:
                runs.append((seconds, tokens))
        if not runs:
            continue
        numbers = [np.mean([sum(seconds.values()) for seconds, _ in runs])]
        for phase in PHASES:
            numbers.append(np.mean([seconds[phase] for seconds, _ in runs]))
            numbers.append(100 * np.mean([seconds[phase] / sum(seconds.values()) for seconds, _ in runs]))
            numbers.append(np.mean([1000 * seconds[phase] / tokens for seconds, tokens in runs]))
        lines.append((Cell(method), *(Cell(f"{number:.2f}") for number in numbers)))
    if not lines:
        return None
    columns = [f"{phase} {unit}" for phase in PHASES for unit in ("s", "%", "ms/token")]
    note = (
        "Means over the steps; shares are of the three phases together. A rollout includes its searches; a token is one"
        " that was sampled in the step."
    )
    return Table(title=title, header=("", "step s", *columns), sections=(tuple(lines),), note=note)


class PlanDiversity(NamedTuple):
    """Number of samples with a plan and a correct answer; of their plans, equal ones of a question counted once."""

    correct: int
    distinct: int

    @property
    def share(self) -> float:
        """Distinct plans per correct sample; NaN without any. In the paper 144 of 254, 0.57."""
        return self.distinct / self.correct if self.correct else math.nan


def plan_diversity(answered: Sequence[Answered]) -> PlanDiversity:
    """Counts the plans of correct samples, given all samples; correct means SQuAD's exact match."""
    planned = [sample for sample in answered if sample.plan is not None]
    scores = rewards.squad_exact_match([sample.answer for sample in planned], [sample.golds for sample in planned])
    correct = [(s.cluster, s.language, s.plan) for s, score in zip(planned, scores, strict=True) if score]
    return PlanDiversity(correct=len(correct), distinct=len(set(correct)))


def diversity_rows(
    answered: Sequence[Answered], *, method: str, model: str, split: str, seed: int | str
) -> Iterator[Row]:
    """Yields a row for each data set with a correct, planned answer; `count` is the number of correct samples."""
    about: dict[str, Any] = {"method": method, "model": model, "split": split, "language": "all", "seed": seed}
    for dataset in dict.fromkeys(sample.dataset for sample in answered):
        plans = plan_diversity([sample for sample in answered if sample.dataset == dataset])
        if plans.correct:
            yield Row(dataset=dataset, metric=DIVERSITY, value=plans.share, count=plans.correct, **about)


def diversity_table(plans_of_runs: Mapping[str, Sequence[PlanDiversity]], title: str) -> Table | None:
    """Tabulates correct samples, their distinct plans and the share, a line per policy or method; None without any.

    Plans of different runs count as different.
    """
    lines = []
    for name, runs in plans_of_runs.items():
        whole = PlanDiversity(sum(plans.correct for plans in runs), sum(plans.distinct for plans in runs))
        if whole.correct:
            numbers = (f"{whole.correct:,}", f"{whole.distinct:,}", f"{whole.share:.3f}")
            lines.append((Cell(name), *map(Cell, numbers)))
    if not lines:
        return None
    return Table(
        title=title,
        header=("", "correct samples", "distinct plans", "share"),
        sections=(tuple(lines),),
        note="Samples whose answer is right (EM, SQuAD); equal plans of one question are counted once.",
    )


# --- Figures of costs ---

WHOLE: Part = ("", "all")
_LARGEST_BUBBLE = 900.0  # points²


def mean_of(board: Scoreboard, system: System, metric: str) -> float:
    """Returns a system's mean over all languages, NaN without one."""
    standing = board.score(system, metric, WHOLE) if system in board.systems else None
    return np.nan if standing is None else standing.value


def has_searches(boards: Sequence[Scoreboard]) -> bool:
    """Whether some system made searches."""
    return any(mean_of(board, system, "searches") > 0 for board in boards for system in board.systems)


def has_costs(boards: Sequence[Scoreboard]) -> bool:
    """Whether the number of tokens is known for some system."""
    return any(mean_of(board, system, EFFICIENCY) > 0 for board in boards for system in board.systems)


def draw_searches(boards: Sequence[Scoreboard], path: str | pathlib.Path) -> None:
    """Plots the searches of every system on every data set, with 95 % intervals, into a PNG (GlobalRAG, figure 6)."""
    import matplotlib.figure  # here, since it takes a second, and training imports this module

    from lcrag.evaluation.plots import INK, STYLE, add_legend, finish, save_figure, series_style

    systems = _systems(boards)
    width = 0.8 / len(systems)
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(2.2 + 1.6 * len(boards), 3.8), dpi=150, layout="constrained")
        axes = figure.subplots()
        for number, system in enumerate(systems):
            scores = [board.score(system, "searches", WHOLE) if system in board.systems else None for board in boards]
            heights, halves = ([getattr(each, name, 0.0) for each in scores] for name in ("value", "half"))
            places = np.arange(len(boards)) + (number - (len(systems) - 1) / 2) * width
            axes.bar(places, heights, width, label=_label(system, systems), **series_style(number, "hatch"))
            axes.errorbar(places, heights, np.nan_to_num(halves), fmt="none", ecolor=INK, capsize=2, linewidth=1)
        finish(axes, "Searches per question", "")
        axes.set_xticks(range(len(boards)), [board.dataset for board in boards])
        add_legend(figure, [axes])
        save_figure(figure, path)


def draw_costs(boards: Sequence[Scoreboard], path: str | pathlib.Path) -> None:
    """Plots performance against all tokens of a question into a PNG, a panel per data set (GlobalRAG, figures 8 to 12).

    A bubble's area is the score per log token, scaled so that the largest of all panels has a fixed size.
    """
    import matplotlib.collections
    import matplotlib.ticker

    from lcrag.evaluation.plots import STYLE, add_legend, finish, make_panels, save_figure, series_style

    systems = _systems(boards)
    largest = np.nanmax([mean_of(board, system, EFFICIENCY) for board in boards for system in board.systems])
    with matplotlib.rc_context(STYLE):
        figure, row = make_panels(len(boards))
        for board, axes in zip(boards, row, strict=True):
            for number, system in enumerate(systems):
                exact, f1, tokens = (mean_of(board, system, metric) for metric in EFFICIENCY_INPUTS)
                area = _LARGEST_BUBBLE * mean_of(board, system, EFFICIENCY) / largest
                score, label = 50 * (exact + f1), _label(system, systems)
                axes.scatter(
                    tokens, score, s=np.nan_to_num(area), alpha=0.75, label=label, **series_style(number, "marker")
                )
            finish(axes, board.dataset, "tokens a question, retrieved ones included", "mean of EM and F1 (%)")
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:g}"))
            axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
            axes.margins(0.25)
        legend = add_legend(figure, row)
        for handle in legend.legend_handles if legend else ():
            if isinstance(handle, matplotlib.collections.PathCollection):  # else bubbles as large as in some panel
                handle.set_sizes([60.0])
        save_figure(figure, path)


def _systems(boards: Sequence[Scoreboard]) -> list[System]:
    return list(dict.fromkeys(system for board in boards for system in board.systems))


def _label(system: System, systems: Sequence[System]) -> str:
    return system[1] if len({model for model, _ in systems}) == 1 else f"{system[1]}, {system[0]}"

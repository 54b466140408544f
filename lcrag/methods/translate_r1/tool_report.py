"""Tables and figures of tool use: reward and rate by domain and tier, Pareto shares, selectivity, rates over training.

Translate-R1, tables 3 to 5 and figures 1, 6 and 7.
"""

import collections
import itertools
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lcrag.data.questions import ALL_TIERS, DOMAINS
from lcrag.evaluation import plots
from lcrag.evaluation.scoreboard import INTERVAL, Scoreboard, System, with_interval
from lcrag.evaluation.tables import Cell, Curve, Rank, Table, row_of

Point = tuple[float, float]  # (reward, cost), both in [0, 1]
Logs = Mapping[str, Sequence[Mapping[str, Curve]]]  # method -> the training log of each of its runs

REWARD, TOOL_RATE = "reward", "tool_rate"
WHOLE = ""  # the subset of all questions
PANELS_IN_ROW = 5
MIN_SHARE = 0.05  # smaller Pareto shares are not written into the figure


def has_tool_use(board: Scoreboard) -> bool:
    """Returns whether any system has both rewards and tool calls."""
    return bool(points_of(board, WHOLE))


def asked_repeatedly(board: Scoreboard) -> bool:
    """Returns whether any run sampled its questions several times."""
    return max(collections.Counter((trial.system, trial.run) for trial in board.trials).values()) > 1


def in_order(names: Iterable[str], order: Iterable[str]) -> list[str]:
    """Returns domains or tiers without repeats: the paper's in its `order`, tiers from high to low, then others."""
    given = dict.fromkeys(filter(None, names))
    return [*(name for name in order if name in given), *(name for name in given if name not in order)]


def points_of(board: Scoreboard, subset: str) -> dict[str, Point]:
    """Returns system -> (reward, tool rate) on a subset of the questions, for systems that have both."""
    points = {}
    for system in board.systems:
        reward, rate = (board.score(system, metric, (subset, "all")) for metric in (REWARD, TOOL_RATE))
        if reward is not None and rate is not None:
            points[board.name(system)] = (reward.value, rate.value)
    return points


def question_rates(board: Scoreboard, system: System, domain: str = "") -> list[tuple[float, float]]:
    """Returns (tool rate, weight) of each question of each of a system's runs, in one domain or all (figure 7).

    A question's rate is the share of its samples (the inference runs of one run) with a tool call. The weights sum to 1
    in total, and to the same value for each tier.
    """
    called: dict[tuple[str, ...], list[float]] = collections.defaultdict(list)
    asked = board.questions
    for trial in board.trials:
        if trial.system == system and TOOL_RATE in trial.scores:
            rows = zip(asked.domains, asked.tiers, asked.clusters, asked.languages, strict=True)
            for (asked_domain, *question), rate in zip(rows, trial.scores[TOOL_RATE], strict=True):
                if domain in ("", asked_domain) and not np.isnan(rate):
                    called[*question, trial.run].append(float(rate))
    sizes = collections.Counter(tier for tier, *_ in called)
    return [(sum(rates) / len(rates), 1 / (len(sizes) * sizes[tier])) for (tier, *_), rates in called.items()]


def _tier_parts(board: Scoreboard) -> dict[str, str]:
    """Title -> subset of the questions, for each tier and for all questions."""
    tiers = in_order(board.questions.tiers, ALL_TIERS)
    return {**{tier.replace("_", " "): tier for tier in tiers}, "all": WHOLE}


def tool_tables(board: Scoreboard, where: str) -> list[Table]:
    """Returns every table of tool use for which a scoreboard has data; `where` is appended to the titles."""
    if not has_tool_use(board):
        return []
    names = {system: board.name(system) for system in board.systems}
    tiers = _tier_parts(board)

    # Rewards and tool rates in percent: by domain and tier, by tier, and over all questions.
    groups = [
        {f"{domain}, {title}".replace("_", " "): f"{domain}/{tier}" for title, tier in tiers.items() if tier != WHOLE}
        for domain in in_order(board.questions.domains, DOMAINS)
    ]
    sections = []
    for parts in (*groups, tiers):
        lines = []
        for title, subset in parts.items():
            if subset not in (WHOLE, *board.subsets):
                continue
            pairs = itertools.product(board.systems, (REWARD, TOOL_RATE))
            scores = (with_interval(board.score(*pair, (subset, "all")), pair[1]) for pair in pairs)
            lines.append(row_of(title, *scores))
        sections.append(tuple(lines))
    rewards_and_rates = Table(
        title=f"Reward and tool rate by domain and tier, {where}",
        header=("", *(f"{name} {unit}" for name in names.values() for unit in ("R %", "C %"))),
        sections=tuple(filter(None, sections)),
        note=(
            f"R: mean reward; C: the share of answers with a call of the tool. {INTERVAL} Of one run: over questions"
            " only. Means are over questions, those of all over languages."
        ),
    )

    # The share of cost sensitivities at which each system is best.
    shares = {title: pareto_shares(points_of(board, subset)) for title, subset in tiers.items()}
    lines = []
    for name in names.values():
        cells = [Cell(name)]
        for of_tier in shares.values():
            best: Rank = "best" if name in of_tier and of_tier[name] == max(of_tier.values()) else ""
            cells.append(Cell(f"{100 * of_tier[name]:.0f}", rank=best) if name in of_tier else Cell("–"))
        lines.append(tuple(cells))
    pareto = Table(
        title=f"Pareto share by tier, {where}",
        header=("", *shares),
        sections=(tuple(lines),),
        note="The share, in percent, of alpha in [0, 1] for which R - alpha C is the highest; equals divide it.",
    )
    if not asked_repeatedly(board):
        return [rewards_and_rates, pareto]

    # The share of questions for which each system calls the tool never, sometimes or always.
    lines = []
    for system, name in names.items():
        rates = question_rates(board, system)
        of_kind = [0.0, 0.0, 0.0]
        for rate, weight in rates:
            of_kind[0 if rate == 0 else 2 if rate == 1 else 1] += weight
        lines.append(row_of(name, *(f"{100 * share:.1f}" if rates else "–" for share in of_kind)))
    selectivity = Table(
        title=f"Questions by tool rate, {where}",
        header=("", "never", "sometimes", "always"),
        sections=(tuple(lines),),
        note="Questions, in percent, by the share of their samples with a call of the tool; all tiers weigh the same.",
    )
    return [rewards_and_rates, pareto, selectivity]


def pareto_shares(points: Mapping[str, Point]) -> dict[str, float]:
    """Returns the share of cost sensitivities alpha in [0, 1] at which each policy's utility R - alpha C is highest.

    Translate-R1, section 6.3 and figure 1. The result is exact: every utility is a line in alpha, and the upper
    envelope changes only where two lines cross. Policies with equal utility divide their share; the shares sum to 1.
    """
    pairs = itertools.combinations(points.values(), 2)
    crossings = {(one[0] - other[0]) / (one[1] - other[1]) for one, other in pairs if one[1] != other[1]}
    cuts = sorted({0.0, 1.0, *(alpha for alpha in crossings if 0 < alpha < 1)})
    shares = dict.fromkeys(points, 0.0)
    for start, end in itertools.pairwise(cuts):
        middle = (start + end) / 2
        utilities = {name: reward - middle * cost for name, (reward, cost) in points.items()}
        best = max(utilities.values(), default=0.0)
        winners = [name for name, utility in utilities.items() if utility >= best - 1e-12]
        for name in winners:
            shares[name] += (end - start) / len(winners)
    return shares


def draw_pareto(board: Scoreboard, path: str | pathlib.Path) -> None:
    """Plots every system's reward against its tool rate into a PNG, one panel per tier, with its Pareto share.

    Thin lines are 95 % intervals. A line joins the systems with a positive share, see `pareto_shares`; shares of
    at least `MIN_SHARE` are listed in the corner, in the order of the tool rate.
    """
    parts = _tier_parts(board)
    names = {board.name(system): system for system in board.systems}
    styles = plots.method_styles(names, "marker")
    common_seeds, labels = plots.name_with_seeds({name: board.seeds(system) for name, system in names.items()})
    with plots.drawing(path, len(parts), (board.dataset, board.decoding, common_seeds), a_row=2) as panels:
        for (title, subset), axes in zip(parts.items(), panels, strict=True):
            points = points_of(board, subset)
            shares = pareto_shares(points)
            best = sorted(points[name][::-1] for name, share in shares.items() if share > 0)  # (rate, reward)
            line = 100 * np.array(best).reshape(-1, 2)
            axes.plot(line[:, 0], line[:, 1], color=plots.MUTED, linewidth=1, zorder=1)
            for name, system in names.items():
                if name in points:
                    reward, rate = points[name]
                    place, style = (100 * rate, 100 * reward), styles[name]
                    axes.scatter(*place, s=60, label=labels[name], zorder=2, **style)
                    scores = (board.score(system, metric, (subset, "all")) for metric in (TOOL_RATE, REWARD))
                    across, up = (100 * float(np.nan_to_num(score.half)) for score in scores if score is not None)
                    axes.errorbar(
                        *place, up, across, fmt="none", ecolor=style["color"], linewidth=1, alpha=0.6, zorder=1
                    )
            ranked = sorted((points[name][1], name) for name, share in shares.items() if share >= MIN_SHARE)
            for number, (_, name) in enumerate(reversed(ranked)):
                share = {"fontsize": 8.5, "color": styles[name]["color"]}
                text = f"{100 * shares[name]:.0f} %  {name}"
                axes.text(0.98, 0.02 + 0.07 * number, text, transform=axes.transAxes, ha="right", **share)
            plots.finish(axes, f"{title}, n = {board.size((subset, 'all')):,}", "tool rate (%)", "reward (%)")
            axes.margins(0.08)


def draw_selectivity(board: Scoreboard, path: str | pathlib.Path) -> None:
    """Plots the distribution of the tool rates of single questions into a PNG, one panel per domain (figure 7).

    A rate is over the samples of one question; tiers have equal weights.
    """
    domains = in_order(board.questions.domains, DOMAINS) or [WHOLE]
    systems = {board.name(system): system for system in board.systems}
    lines, markers = (plots.method_styles(systems, kind) for kind in ("linestyle", "marker"))
    common_seeds, labels = plots.name_with_seeds({name: board.seeds(system) for name, system in systems.items()})
    about = board.dataset, board.decoding, common_seeds
    with plots.drawing(path, len(domains), about, a_row=PANELS_IN_ROW) as panels:
        for domain, axes in zip(domains, panels, strict=True):
            of_systems = {name: question_rates(board, system, domain) for name, system in systems.items()}
            places = np.unique([rate for rates in of_systems.values() for rate, _ in rates])
            for name, rates in of_systems.items():
                if rates:
                    bins = np.searchsorted(places, [rate for rate, _ in rates])
                    shares = 100 * np.bincount(bins, [weight for _, weight in rates], len(places))
                    style = lines[name] | markers[name]
                    axes.plot(100 * places, shares, markersize=4, linewidth=2, label=labels[name], **style)
            size = board.size((domain, "all"))
            title = (domain.replace("_", " ") or "all questions") + (f", n = {size:,}" if size else "")
            plots.finish(axes, title, "tool rate of a question (%)", "questions (%)")


def tiers_in(logs: Logs) -> list[str]:
    """Returns the tiers with logged tool rates: the paper's from high to low, then others by name."""
    names = sorted({name for method_logs in logs.values() for log in method_logs for name in log})
    return in_order([match[1] for name in names if (match := re.fullmatch("tools/([^/]+)/rate", name))], ALL_TIERS)


def draw_tool_rates(logs: Logs, step: str, path: str | pathlib.Path) -> None:
    """Plots tool rates over the training steps into a PNG, one panel per tier (figure 6); see `draw_curves`."""
    panels = {f"tools/{tier}/rate": tier.replace("_", " ") for tier in tiers_in(logs)}
    plots.draw_curves(logs, step, path, panels, up="tool rate (%)", percent=True, a_row=PANELS_IN_ROW)

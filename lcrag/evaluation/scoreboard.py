"""Several systems, each with several runs, on the same questions: means, 95 % intervals, paired tests, and the tables.

A trial is one inference run of a system on one split of a data set; trials of a system differ in random numbers only.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from lcrag.errors import UserError
from lcrag.evaluation.metrics import (
    COUNTED,
    EFFICIENCY,
    EFFICIENCY_INPUTS,
    METRIC_NAMES,
    NOT_SHARES,
    UNRANKED,
    Answered,
    question_metrics,
    score_per_log_token,
)
from lcrag.evaluation.significance import Estimate, RunMeans, crossed_estimate, holm, run_means
from lcrag.evaluation.tables import Cell, Rank, Table, Tone, judged_note

System = tuple[str, str]  # (model, name)
Part = tuple[str, str]  # (subset or "", language or one of "all", "seen", "zero_shot")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """The questions of one split of a data set, one entry per language version, sorted by (cluster, language)."""

    clusters: tuple[str, ...]  # identifies the question across languages
    languages: tuple[str, ...]
    subsets: tuple[tuple[str, ...], ...]  # reported parts of the data set with the question
    domains: tuple[str, ...]  # empty for data sets with one way of answering
    tiers: tuple[str, ...]  # empty for data sets without tiers
    order: tuple[str, ...]  # every language once, as tables show them

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """A key that is equal for the same questions in the same languages."""
        return self.clusters, self.languages


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One inference run of one system."""

    method: str  # e.g. "LcRL"
    model: str  # the policy that it started from
    dataset: str
    split: str
    decoding: str  # how answers were decoded, e.g. "sampled"
    run: str  # name of the training run or evaluation that it belongs to, shared by its inference runs
    seen_languages: tuple[str, ...]  # languages it was trained on
    questions: Questions
    scores: Mapping[str, Float[np.ndarray, " questions"]]  # metric -> score of every question; NaN without one
    answered: tuple[Answered, ...] = ()  # in the order of the questions; empty if only the scores are known
    point: float | str | None = None  # its position on the axis of a study; None: no study
    seed: int | str | None = None  # of the training run or evaluation; None: unknown

    @classmethod
    def of(cls, answered: Sequence[Answered], languages: Collection[str] = (), **labels: Any) -> "Trial":
        """Returns the trial of answers, scored by every metric.

        Args:
          answered: The answers, in any order.
          languages: All languages of the run, from which the language of an answer is identified.
          **labels: The other fields.
        """
        ordered = sorted(answered, key=lambda question: (question.cluster, question.language))
        scores = question_metrics(ordered, languages)
        questions = Questions(
            clusters=tuple(question.cluster for question in ordered),
            languages=tuple(question.language for question in ordered),
            subsets=tuple(question.subsets for question in ordered),
            domains=tuple(question.domain for question in ordered),
            tiers=tuple(question.tier for question in ordered),
            order=tuple(dict.fromkeys(question.language for question in answered)),
        )
        return cls(questions=questions, scores=scores, answered=tuple(ordered), **labels)

    @property
    def system(self) -> System:
        """The key of trials that are averaged, which differ only in random numbers."""
        return self.model, self.method if self.point is None else f"{self.method} [{point_name(self.point)}]"


def point_name(point: float | str) -> str:
    """Returns the displayed name of a point of a study's axis."""
    return point if isinstance(point, str) else f"{point:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemScore:
    """The score of a system with its 95 % interval over questions and, if there are several, training runs."""

    value: float  # mean over its training runs, the inference runs of each averaged question by question
    half: float  # of the interval's width; NaN if nothing varies
    runs: int  # number of training runs, or evaluations
    trials: int  # number of inference runs
    count: int  # number of answers scored in all of them


class Scoreboard:
    """The scores of all trials on one split of a data set with one decoding.

    The mean over a group of languages is the mean of the languages' means; one over a subset is over its questions.

    Args:
      paired_seeds: Whether differences are paired by seed where both systems have the same seeds, each once and at
        least two: what was made for a seed, such as an SFT, then cancels out.
    """

    def __init__(self, trials: Sequence[Trial], paired_seeds: bool = False):
        self.trials = tuple(trials)
        self.paired_seeds = paired_seeds
        self.dataset, self.decoding = trials[0].dataset, trials[0].decoding
        self.questions = trials[0].questions
        for trial in trials:
            if trial.questions.keys != self.questions.keys:
                raise UserError(
                    f"{trials[0].run} and {trial.run} answered different questions of {trial.dataset}:"
                    " evaluate both on the same split and sample, or report them separately"
                )
        self._codes = np.array(self.questions.languages)
        self._language = np.unique(self._codes, return_inverse=True)[1]
        self._clusters = np.unique(self.questions.clusters, return_inverse=True)[1]
        self._runs: dict[System, dict[str, list[Trial]]] = {}
        for trial in trials:
            self._runs.setdefault(trial.system, {}).setdefault(trial.run, []).append(trial)

    @property
    def systems(self) -> list[System]:
        """All systems, in the order of their first trials."""
        return list(self._runs)

    def name(self, system: System) -> str:
        """Returns the displayed name of a system, with its model where there are several."""
        return system[1] if len({model for model, _ in self.systems}) == 1 else f"{system[1]}, {system[0]}"

    @functools.cached_property
    def languages(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(languages that every system was trained on, the others), in the order of the answers."""
        seen = set.intersection(*(set(trial.seen_languages) for trial in self.trials))
        codes = self.questions.order
        return tuple(c for c in codes if c in seen), tuple(c for c in codes if c not in seen)

    @functools.cached_property
    def subsets(self) -> tuple[str, ...]:
        """Subsets of the data set that are reported separately."""
        return tuple(sorted({subset for subsets in self.questions.subsets for subset in subsets}))

    @property
    def parts(self) -> dict[str, Part]:
        """Name -> part: the whole data set, groups of languages and subsets, without empty ones and repeats of it."""
        groups = {name: ("", group) for group, name in GROUP_NAMES.items()}
        # Those of two labels have tables of their own.
        subsets = {name.replace("_", " "): (name, "all") for name in self.subsets if "/" not in name}
        parts: dict[str, Part] = {"all": ("", "all")}
        for name, part in (groups | subsets).items():
            if any(0 < self._chosen(trial, part).sum() < len(self._codes) for trial in self.trials):
                parts[name] = part
        return parts

    @functools.cached_property
    def _members(self) -> dict[str, Bool[np.ndarray, " questions"]]:
        return {name: np.array([name in subsets for subsets in self.questions.subsets]) for name in self.subsets}

    def rivals(self, marking: "Marking") -> dict[System, System]:
        """Returns the system with which each other one is compared, of the same model and point."""
        systems = {(trial.method, trial.model, trial.point): trial.system for trial in self.trials}
        against = {method: marking.references.get(method, marking.against) for method, _, _ in systems}
        others = {
            system: systems.get((against[method] or "", model, point))
            for (method, model, point), system in systems.items()
        }
        return {system: other for system, other in others.items() if other is not None and other != system}

    def size(self, part: Part) -> int:
        """Returns the number of questions of a part, in all languages together."""
        return int(self._chosen(self.trials[0], part).sum())

    def seeds(self, system: System) -> int:
        """Returns the number of a system's training runs, or of its evaluations."""
        return len(self._runs[system])

    def score(self, system: System, metric: str, part: Part) -> SystemScore | None:
        """Returns the system's score on a part of the data; None if no question of it is scored."""
        runs = self._run_means(system, metric, part)
        if runs is None:
            return None
        whole = crossed_estimate(runs)
        # A metric that is not defined per question counts all questions.
        scored = [
            int((self._chosen(trial, part) & ~np.isnan(trial.scores.get(metric, np.zeros(len(self._codes))))).sum())
            for trials in self._runs[system].values()
            for trial in trials
        ]
        return SystemScore(
            value=whole.value,
            half=whole.half,
            runs=len(runs.means),
            trials=sum(map(bool, scored)),
            count=sum(scored),
        )

    def difference(self, system: System, other: System, metric: str, part: Part) -> Estimate | None:
        """Returns a system's score minus another's with interval and test, paired by question and perhaps by seed.

        None if one of them has no score, or if the part depends on the training languages and these differ.
        """
        masks = [self._chosen(trial, part) for trial in self.trials if trial.system in (system, other)]
        if not all(np.array_equal(mask, masks[0]) for mask in masks):
            return None
        first, second = (self._run_means(side, metric, part) for side in (system, other))
        if first is None or second is None:
            return None
        one, two = self._seeds(system), self._seeds(other)
        same = set(one) == set(two) and 1 < len(one) == len(first.means) == len(second.means)
        if self.paired_seeds and same:
            order = np.array([two.index(seed) for seed in one])
            means, parts = first.means - second.means[order], first.parts - second.parts[order]
            return crossed_estimate(RunMeans(means=means, parts=parts, asked=first.asked | second.asked))
        return crossed_estimate(first, second)

    def _seeds(self, system: System) -> list[int | str]:
        """Returns the seed of each run, in the order of the runs; empty if one is unknown or there twice."""
        seeds = [trials[0].seed for trials in self._runs.get(system, {}).values()]
        known = [seed for seed in seeds if seed is not None]
        return known if len(set(known)) == len(seeds) else []

    def _run_means(self, system: System, metric: str, part: Part) -> RunMeans | None:
        """Returns the means of the system's runs that have scores on a part."""
        if metric == EFFICIENCY:
            return self._efficiency(system, part)
        rows = []
        for trials in self._runs.get(system, {}).values():  # the scores of a run, averaged over its inference runs
            nothing = np.full(len(self._codes), math.nan)
            rows_of_run = [
                np.where(self._chosen(trial, part), trial.scores.get(metric, nothing), math.nan) for trial in trials
            ]
            scored = ~np.isnan(rows_of_run)
            sums = np.where(scored, rows_of_run, 0.0).sum(axis=0)
            if scored.any():
                rows.append(np.divide(sums, scored.sum(axis=0), out=nothing, where=scored.any(0)))
        groups = np.zeros_like(self._language) if part[0] else self._language
        return run_means(np.stack(rows), groups, self._clusters) if rows else None

    def _efficiency(self, system: System, part: Part) -> RunMeans | None:
        """Returns the run means of `score_per_log_token`, a function of three means, by the delta method."""
        inputs = [self._run_means(system, metric, part) for metric in EFFICIENCY_INPUTS]
        known = [run for run in inputs if run is not None]
        if len(known) < len(inputs) or len({len(run.means) for run in known}) > 1:
            return None
        exact, f1, tokens = (float(run.means.mean()) for run in known)
        means = np.array([score_per_log_token(*scores) for scores in zip(*(run.means for run in known), strict=True)])
        if np.isnan(means).any():
            return None
        log = math.log(tokens)
        slopes = (0.5 / log, 0.5 / log, -(exact + f1) / 2 / (tokens * log**2))
        parts = sum(slope * run.parts for slope, run in zip(slopes, known, strict=True))
        return RunMeans(means=means, parts=np.asarray(parts), asked=known[0].asked)

    def _chosen(self, trial: Trial, part: Part) -> Bool[np.ndarray, " questions"]:
        subset, language = part
        seen = np.isin(self._codes, trial.seen_languages)
        groups = {"all": np.ones(len(seen), bool), "seen": seen, "zero_shot": ~seen}
        chosen = groups[language] if language in groups else self._codes == language
        return chosen & self._members.get(subset, np.zeros(len(seen), bool)) if subset else chosen


def scoreboards(trials: Iterable[Trial], paired_seeds: bool = False) -> dict[tuple[str, str, str], Scoreboard]:
    """Returns (data set, split, decoding) -> the scoreboard of its trials."""
    groups: dict[tuple[str, str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.dataset, trial.split, trial.decoding), []).append(trial)
    return {key: Scoreboard(same, paired_seeds) for key, same in groups.items()}


# --- Tables of a paper ---

# As in LcRL, numbers are percentages, averages over languages are means of the languages' means, and the overall table
# covers the training languages (the published table 1 is the mean over those of tables 5 and 6).

GROUP_NAMES = {"seen": "training", "zero_shot": "zero-shot"}

INTERVAL = "±: half of the 95 % interval over questions and training runs."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Marking:
    """Significant differences to mark."""

    against: str | None = None  # the method that all others are tested against; None: no marks
    references: Mapping[str, str] = dataclasses.field(default_factory=dict)  # method -> the one it is tested against
    threshold: float = 0.01  # largest marked p-value, exclusive

    @property
    def note(self) -> str:
        return "" if self.against is None else f" * p < {self.threshold:g} against {self.named}."

    def tone(self, difference: Estimate, metric: str) -> Tone:
        """Returns whether a difference is better or worse; empty if it is not significant."""
        if metric in UNRANKED or not difference.p_value < self.threshold:
            return ""
        return "better" if difference.value > 0 else "worse"

    @property
    def named(self) -> str:
        """What the others are tested against: the method, and the exceptions."""
        exceptions = ", ".join(f"{method} against {other}" for method, other in self.references.items())
        return f"{self.against} ({exceptions})" if exceptions else str(self.against)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: a metric on a part of a scoreboard's data."""

    board: Scoreboard
    metric: str
    part: Part
    name: str


def overall_table(boards: Sequence[Scoreboard], title: str, metrics: Sequence[str], marking: Marking) -> Table:
    """Returns a table of all metrics by data set, over the training languages (LcRL, tables 1 and 2)."""
    columns = [
        Column(board, metric, ("", "seen"), METRIC_NAMES.get(metric, metric)) for board in boards for metric in metrics
    ]
    spans = tuple((board.dataset, len(metrics)) for board in boards)
    return _table(columns, title, marking, "Means over the training languages.", spans)


def language_table(board: Scoreboard, title: str, metric: str, marking: Marking) -> Table:
    """Returns a table by language, with means over training and zero-shot languages (LcRL, tables 5 and 6)."""
    seen, unseen = board.languages
    spans, columns = [], []
    for codes, group in ((seen, "seen"), (unseen, "zero_shot")):
        if codes:
            spans.append((f"{GROUP_NAMES[group]} languages", len(codes) + 1))
            columns += [
                Column(board, metric, ("", code), GROUP_NAMES.get(code, code.replace("_", "-")))
                for code in (*codes, group)
            ]
    columns.append(Column(board, metric, ("", "all"), "all"))
    about = f"Zero-shot: {', '.join(unseen)}." if unseen else "No language is zero-shot."
    if len({trial.seen_languages for trial in board.trials}) > 1:
        about += " The systems were trained on different languages: the last three columns are over each one's own."
    return _table(columns, title, marking, about, (*spans, ("", 1)))


def part_table(board: Scoreboard, title: str, metric: str, marking: Marking) -> Table | None:
    """Returns a table by group of languages and by subset; None without subsets."""
    if not board.subsets:
        return None
    columns = [Column(board, metric, part, name) for name, part in board.parts.items()]
    return _table(columns, title, marking, "A part's mean is over its questions.")


def part_differences(
    board: Scoreboard, metric: str, marking: Marking, parts: Mapping[str, Part] | None = None
) -> dict[System, dict[str, Estimate]]:
    """Returns each system's differences from `marking.against` by part; None: by group of languages and by subset.

    The p-values of all differences are corrected together (Holm). Systems that cannot be compared are omitted.
    """
    estimates = {
        (system, name): estimate
        for system, rival in board.rivals(marking).items()
        for name, part in (parts or board.parts).items()
        if (estimate := board.difference(system, rival, metric, part)) is not None
    }
    adjusted = holm([estimate.p_value for estimate in estimates.values()])
    compared: dict[System, dict[str, Estimate]] = {}
    for ((system, name), estimate), p_value in zip(estimates.items(), adjusted, strict=True):
        compared.setdefault(system, {})[name] = estimate._replace(p_value=p_value)
    return compared


def difference_table(board: Scoreboard, title: str, metric: str, marking: Marking) -> Table | None:
    """Returns a table of the differences from `marking.against`, see `part_differences`; None without differences."""
    compared = part_differences(board, metric, marking)
    if not compared:
        return None
    names = list(board.parts)

    def cell(difference: Estimate | None) -> Cell:
        if difference is None:
            return Cell("–")
        digits = f"{difference.p_value:.3f}" if difference.p_value < 1 else "1"
        p_text = "<0.001" if difference.p_value < 0.001 else digits
        number = f"{'-' if difference.value < 0 else '+'}{_number(abs(difference.value), metric)}"
        return Cell(f"{number}{_half(difference, metric)} (p {p_text})", marking.tone(difference, metric))

    seeds = " and, where both have the same seeds, by seed" if board.paired_seeds else ""
    tests = sum(map(len, compared.values()))
    note = (
        f"{'' if metric in NOT_SHARES else 'Percentage points. '}{INTERVAL}"
        f"{_alone(board, {*compared, *board.rivals(marking).values()})}"
        f" p: paired by question{seeds}, corrected for the {tests} tests of this table (Holm);"
        f" marked where p < {marking.threshold:g}. A part's mean is over its questions."
    )
    lines = _sections(list(compared), lambda system: (Cell(system[1]), *(cell(compared[system].get(n)) for n in names)))
    return Table(title=title, header=("", *names), note=note, **lines)


def runs_table(board: Scoreboard, title: str, metrics: Sequence[str]) -> Table:
    """Returns a table of the number of runs and the means over all languages with their intervals."""

    def line(system: System) -> tuple[Cell, ...]:
        scores = [board.score(system, metric, ("", "all")) for metric in metrics]
        known = [score for score in scores if score is not None]
        counts = f"{known[0].runs} / {known[0].trials}" if known else "–"
        cells = (Cell(with_interval(score, metric)) for score, metric in zip(scores, metrics, strict=True))
        return Cell(system[1]), Cell(counts), *cells

    header = ("", "runs / inferences", *(METRIC_NAMES.get(metric, metric) for metric in metrics))
    note = f"Means over all languages. {INTERVAL}{_alone(board)}{judged_note(metrics)}"
    return Table(title=title, header=header, note=note, **_sections(board.systems, line))


def study_table(board: Scoreboard, title: str, metric: str, axis: str, group: str) -> Table:
    """Returns a table with a row per method and a column per point of the study's axis."""
    points = study_points(board)
    methods = list(dict.fromkeys((trial.model, trial.method) for trial in board.trials))
    systems = {(trial.model, trial.method, trial.point): trial.system for trial in board.trials}

    def line(method: System) -> tuple[Cell, ...]:
        placed = (systems.get((*method, point)) for point in points)
        scores = (board.score(system, metric, ("", group)) if system else None for system in placed)
        return Cell(method[1]), *(Cell(with_interval(score, metric)) for score in scores)

    note = f"Columns: {axis}. Means over the languages of the group. {INTERVAL}{_alone(board)}{judged_note((metric,))}"
    return Table(title=title, header=("", *map(point_name, points)), note=note, **_sections(methods, line))


def study_points(board: Scoreboard) -> list[float | str]:
    """Returns the points of a study's axis: numbers in increasing order, then names in order of appearance."""
    points = [trial.point for trial in board.trials if trial.point is not None]
    numbers = sorted({point for point in points if not isinstance(point, str)})
    return [*numbers, *dict.fromkeys(point for point in points if isinstance(point, str))]


def _table(
    columns: Sequence[Column], title: str, marking: Marking, about: str, spans: tuple[tuple[str, int], ...] = ()
) -> Table:
    """Returns a table with a row per system; ranks are within a model, by the digits shown."""
    systems = list(dict.fromkeys(system for column in columns for system in column.board.systems))
    lines: dict[System, list[Cell]] = {system: [Cell(system[1])] for system in systems}
    for column in columns:
        board, metric, compared = column.board, column.metric, column.board.rivals(marking)
        scores = {system: board.score(system, metric, column.part) for system in systems}
        shown = {system: _number(score.value, metric) for system, score in scores.items() if score is not None}
        for system in systems:
            others = [text for other, text in shown.items() if other[0] == system[0]]
            rank: Rank = ""
            if metric not in UNRANKED and system in shown and len(others) > 1:
                better = {text for text in others if float(text) > float(shown[system])}
                rank = "" if len(better) > 1 else "second" if better else "best"
            rival = compared.get(system)
            difference = board.difference(system, rival, metric, column.part) if rival else None
            mark = "*" if difference is not None and difference.p_value < marking.threshold else ""
            lines[system].append(Cell(with_interval(scores[system], metric), rank=rank, mark=mark))
    shares = {column.metric not in NOT_SHARES for column in columns}
    unit = "Percent. " if shares == {True} else "Shares in percent. " if True in shares else ""
    alone = next(filter(None, map(_alone, dict.fromkeys(column.board for column in columns))), "")
    judged = judged_note(column.metric for column in columns)
    ranked = any(column.metric not in UNRANKED for column in columns)
    ranks = " Best in bold, second underlined." if ranked else ""
    return Table(
        title=title,
        header=("", *(column.name for column in columns)),
        note=f"{unit}{about} {INTERVAL}{alone}{judged}{ranks}{marking.note}",
        spans=spans,
        **_sections(systems, lambda system: tuple(lines[system])),
    )


def _sections(systems: Sequence[System], line: Callable[[System], tuple[Cell, ...]]) -> dict[str, Any]:
    """Returns the sections of a table, one per model, and their titles if there are several."""
    models = list(dict.fromkeys(model for model, _ in systems))
    sections = tuple(tuple(line(system) for system in systems if system[0] == model) for model in models)
    return {"sections": sections, "section_titles": tuple(models) if len(models) > 1 else ()}


def with_interval(score: SystemScore | None, metric: str) -> str:
    """Returns a score with its interval and, for metrics that score only some answers, their number in brackets."""
    judged = f" ({0 if score is None else score.count:,})" if metric in COUNTED else ""
    return f"–{judged}" if score is None else f"{_number(score.value, metric)}{_half(score, metric)}{judged}"


def _half(estimate: SystemScore | Estimate, metric: str) -> str:
    return "" if math.isnan(estimate.half) else f" ±{_number(estimate.half, metric)}"


def _alone(board: Scoreboard, systems: Iterable[System] | None = None) -> str:
    """Returns a note that intervals of single runs are over questions only; empty without single runs."""
    runs = (len({trial.run for trial in board.trials if trial.system == system}) for system in systems or board.systems)
    return " Of one run: over questions only." if 1 in runs else ""


def _number(value: float, metric: str) -> str:
    return f"{value:.2f}" if metric in NOT_SHARES else f"{100 * value:.1f}"

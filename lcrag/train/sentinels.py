"""Watches a training run for collapse: metrics of every step, and limits of these metrics that stop the run."""

import collections
import dataclasses
import io
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from lcrag.episodes import EpisodeRecord
from lcrag.episodes.prompts import answer_language
from lcrag.errors import UserError
from lcrag.evaluation.answered import Answered
from lcrag.evaluation.correct_language import correct_language
from lcrag.limits import Count, check_fields
from lcrag.runs import is_writer, read_metrics
from lcrag.runs.display import print_episode
from lcrag.runs.files import write_text
from lcrag.train.scoring import Scored

FOLDER = "sentinels"
REPEATED_TOKENS = 4
EpisodeValues = Mapping[str, Float[np.ndarray, " episodes"]]

WATCHED: Mapping[str, str] = {
    "entropy": "nats per policy token; by episode, the mean of -log p",
    "ratio/tail": "share of tokens whose probability the rollout's updates changed by more than a factor of two; by"
    " episode, -log p of its rarest token",
    "episode/repetition": "share of the policy's 4-grams of tokens that it wrote before in the same episode",
    "episode/wrong_language": "share of the scored answers that are not in the language asked for",
    "episode/search_rate": "share of the episodes that search at all; by episode, its searches",
    "episode/policy_tokens": "tokens of a response",
    "groups/without_variance": "share of the groups whose rewards are all equal, which teach nothing",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sentinels:
    """Limits of the metrics that show a collapse. All of `WATCHED` are logged, with or without limits.

    Attributes:
      least: Name of a metric of `WATCHED` -> its lower limit.
      most: Name of a metric of `WATCHED` -> its upper limit.
      patience: Number of consecutive steps outside one limit after which the run stops.
      shown: Number of episodes in the dump, the worst first.

    Raises:
      UserError: a limit for a metric that is not watched, or a patience below 1.
    """

    least: Mapping[str, float] = dataclasses.field(default_factory=dict)
    most: Mapping[str, float] = dataclasses.field(default_factory=dict)
    patience: Count = 20
    shown: Count = 5

    def __post_init__(self):
        for parameter in ("least", "most"):
            if unknown := sorted(set(getattr(self, parameter)) - set(WATCHED)):
                raise UserError(
                    f"Sentinels.{parameter} names {unknown[0]!r}, which no sentinel watches: use {', '.join(WATCHED)}"
                )
        check_fields(self)


NO_LIMITS = Sentinels()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokenLimit:
    """A broken limit, with the metric's `values` in the last steps, oldest first: all `above` the limit, or below."""

    metric: str
    limit: float
    above: bool
    values: tuple[float, ...]

    def __str__(self) -> str:
        side = "above" if self.above else "below"
        steps = f"for {len(self.values)} steps" if len(self.values) > 1 else "in one step"
        return f"{self.metric} was {side} {self.limit:g} {steps} ({self.values[-1]:.3g} in the last)"


def broken_limit(sentinels: Sentinels, records: Sequence[Mapping[str, Any]]) -> BrokenLimit | None:
    """Returns the first limit that each of the last `patience` records breaks; NaN and null break no limit.

    Args:
      sentinels: The limits.
      records: Metrics of the steps so far, as in `metrics.jsonl`.
    """
    recent = records[-sentinels.patience :]
    if len(recent) < sentinels.patience:
        return None
    for limits, above in ((sentinels.least, False), (sentinels.most, True)):
        for metric, limit in limits.items():
            values = [float("nan") if record.get(metric) is None else float(record[metric]) for record in recent]
            if all(value > limit if above else value < limit for value in values):
                return BrokenLimit(metric=metric, limit=limit, above=above, values=tuple(values))
    return None


def episode_values(scored: Scored, languages: Collection[str]) -> EpisodeValues:
    """Returns the per-episode values that each watched metric averages; NaN for episodes that could not be scored."""
    records = scored.records
    values = {
        "entropy": surprisal(records),
        "ratio/tail": largest_surprisal(records),
        "episode/repetition": repetition(records),
        "episode/wrong_language": wrong_language(records, languages),
        "episode/search_rate": np.array([each.counts["searches"] for each in records], float),
        "episode/policy_tokens": np.array([each.by_policy.sum() for each in records], float),
        "groups/without_variance": scored.without_variance.astype(float),
    }
    return {name: np.where(scored.scored, own, np.nan) for name, own in values.items()}


class CollapseWatch:
    """Decides after every step whether the run must stop.

    Args:
      folder: The run's folder; its `metrics.jsonl` contains all earlier steps.
      sentinels: The limits.
      languages: All languages of the run.
      most_skipped_in_a_row: Non-finite updates in a row that end the run.
    """

    def __init__(
        self, folder: pathlib.Path, sentinels: Sentinels, languages: Collection[str], most_skipped_in_a_row: int
    ):
        self._folder, self._sentinels, self._languages = folder, sentinels, languages
        self._most_skipped_in_a_row = most_skipped_in_a_row
        self._recent = collections.deque(read_metrics(folder), maxlen=sentinels.patience)

    def measure(self, scored: Scored) -> dict[str, float]:
        """Returns the additional metrics of the sentinels, by their names in `metrics.jsonl`; NaN without a score."""
        values = episode_values(scored, self._languages)
        return {
            "episode/repetition": _mean(values["episode/repetition"]),
            "episode/wrong_language": _mean(values["episode/wrong_language"]),
            "episode/search_rate": _mean(values["episode/search_rate"] > 0),
        }

    def reason_to_stop(self, step: int, metrics: Mapping[str, Any], scored: Scored) -> str | None:
        """Returns why the run must stop (non-finite updates, or a broken limit after a dump); None: it continues."""
        if metrics["update/non_finite_in_a_row"] >= self._most_skipped_in_a_row:
            return (
                f"{self._most_skipped_in_a_row} updates in a row were not finite, so the run stopped at step {step}:"
                f" see {self._folder}/episodes/step_{step}.jsonl, then begin anew with a lower adamw.learning_rate"
            )
        self._recent.append(dict(metrics))
        broken = broken_limit(self._sentinels, tuple(self._recent))
        if broken is None:
            return None
        path = self._folder / FOLDER / f"step_{step}.txt"
        if is_writer():
            path.parent.mkdir(exist_ok=True)
            values = episode_values(scored, self._languages)[broken.metric]
            write_text(path, "".join(_dump(broken, step, metrics, scored, values, self._sentinels.shown)))
        return (
            f"a sentinel stopped the run at step {step}, because {broken}: read {path}, then begin anew with other"
            f" settings or continue with another limit in Sentinels.{'most' if broken.above else 'least'}"
        )


def _mean(values: np.ndarray) -> float:
    scored = values[~np.isnan(values)]
    return float(scored.mean()) if len(scored) else float("nan")


def _dump(
    broken: BrokenLimit,
    step: int,
    metrics: Mapping[str, Any],
    scored: Scored,
    values: Float[np.ndarray, " episodes"],
    shown: int,
) -> Iterator[str]:
    """Writes the text of a dump, paragraph by paragraph; `values` are the broken metric's by episode."""
    yield f"A sentinel stopped the run at step {step}: {broken}.\n\n"
    yield f"{broken.metric}: {WATCHED[broken.metric]}.\n"
    yield f"In the last {len(broken.values)} steps: {', '.join(f'{value:.3g}' for value in broken.values)}\n\n"
    yield "All sentinels at this step:\n"
    yield from (f"  {name:24} {metrics.get(name, float('nan')):.3g}\n" for name in WATCHED)
    order = np.argsort(-values if broken.above else values, kind="stable")
    worst = [int(index) for index in order if not np.isnan(values[index])][:shown]
    yield f"\nThe {len(worst)} worst of {len(values)} episodes (all are in episodes/step_{step}.jsonl):\n"
    for number, index in enumerate(worst, start=1):
        record = scored.records[index]
        question, reward = record.question, float(scored.rewards["total"][index])
        text = io.StringIO()
        print_episode(((turn.by, turn.text) for turn in record.turns), Console(file=text, no_color=True))
        yield (
            f"\n{'-' * 8} {number}. {question.coupling} in {question.language}, episode {record.episode}:"
            f" {broken.metric} {values[index]:.3g}, reward {reward:.3g}\n"
            f"question: {question.text}\nanswer: {record.outcome.answer}   golds: {' | '.join(question.answers)}\n"
            f"{text.getvalue()}"
        )


def repetition(records: Sequence[EpisodeRecord], size: int = REPEATED_TOKENS) -> Float[np.ndarray, " episodes"]:
    """Returns the share of the policy's token n-grams that repeat an earlier one of the episode, in [0, 1).

    1 - distinct / all, the seq-rep-n of Welleck et al. 2020 (arXiv:1908.04319, section 6), over n-grams within one
    stretch of the policy's tokens; 0 for an episode without any.
    """
    return np.array([_repeated_share(record, size) for record in records], float)


def _repeated_share(record: EpisodeRecord, size: int) -> float:
    if len(record.tokens) < size:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(record.tokens, size)
    own = windows[np.lib.stride_tricks.sliding_window_view(record.by_policy, size).all(axis=1)]
    return 1.0 - len(np.unique(own, axis=0)) / len(own) if len(own) else 0.0


def surprisal(records: Sequence[EpisodeRecord]) -> Float[np.ndarray, " episodes"]:
    """Returns the mean of -log p over the policy's tokens, in nats: a one-sample entropy estimate; NaN without any."""
    return _over_policy_tokens(records, np.mean)


def largest_surprisal(records: Sequence[EpisodeRecord]) -> Float[np.ndarray, " episodes"]:
    """Returns -log p of the policy's least likely token, in nats; NaN without tokens."""
    return _over_policy_tokens(records, np.max)


def _over_policy_tokens(
    records: Sequence[EpisodeRecord], statistic: Callable[[np.ndarray], float]
) -> Float[np.ndarray, " episodes"]:
    own = (-record.log_probabilities[record.by_policy] for record in records)
    return np.array([statistic(values) if len(values) else np.nan for values in own], float)


def wrong_language(records: Sequence[EpisodeRecord], languages: Collection[str]) -> Float[np.ndarray, " episodes"]:
    """Returns 1 for an answer in another language than the required one, else 0; NaN if `correct_language` is NaN.

    Args:
      records: Episodes.
      languages: All languages of the run, among which an answer's is identified.
    """
    answered = [
        Answered(
            question_id=record.question.id,
            dataset=record.question.dataset,
            language=answer_language(record.question),
            answer=record.outcome.answer,
            golds=record.question.answers,
        )
        for record in records
    ]
    return 1.0 - correct_language(answered, languages)

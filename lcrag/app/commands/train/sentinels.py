"""Watches a training run for collapse: what is measured at every step, and the limits that stop the run."""

import collections
import dataclasses
import io
import pathlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from rich.console import Console

from lcrag.app.composition.method import Scored
from lcrag.app.display import print_episode
from lcrag.app.runs import is_writer, read_metrics
from lcrag.app.runs.files import write_text
from lcrag.errors import UserError
from lcrag.evaluation import collapse

FOLDER = "sentinels"
Signs = Mapping[str, Float[np.ndarray, " episodes"]]

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
    """Limits of the metrics in which a collapse shows. All of them are logged, with limits or without.

    Attributes:
      least: Name of a metric of `WATCHED` -> the least value it may have.
      most: The same for the largest value.
      patience: A run stops when one limit was broken in so many steps in a row.
      shown: Episodes written into the dump, the worst first.

    Raises:
      UserError: a limit for something that is not watched, or a patience below 1.
    """

    least: Mapping[str, float] = dataclasses.field(default_factory=dict)
    most: Mapping[str, float] = dataclasses.field(default_factory=dict)
    patience: int = 20
    shown: int = 5

    def __post_init__(self):
        for parameter in ("least", "most"):
            if unknown := sorted(set(getattr(self, parameter)) - set(WATCHED)):
                raise UserError(
                    f"Sentinels.{parameter} names {unknown[0]!r}, which no sentinel watches: use {', '.join(WATCHED)}"
                )
        if self.patience < 1:
            raise UserError(f"Sentinels.patience is {self.patience}: give it a value of 1 or more")


NO_LIMITS = Sentinels()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alarm:
    """A broken limit.

    Attributes:
      metric: Whose.
      limit: It.
      above: Whether it is an upper one.
      values: Of the steps in which it was broken, the last step's last.
    """

    metric: str
    limit: float
    above: bool
    values: tuple[float, ...]

    def __str__(self) -> str:
        side = "above" if self.above else "below"
        steps = f"for {len(self.values)} steps" if len(self.values) > 1 else "in one step"
        return f"{self.metric} was {side} {self.limit:g} {steps} ({self.values[-1]:.3g} in the last)"


def broken_limit(sentinels: Sentinels, records: Sequence[Mapping[str, Any]]) -> Alarm | None:
    """The first limit that each of the last `patience` records breaks; a number that is not finite breaks none.

    Args:
      sentinels: The limits.
      records: Metrics of the steps so far, as in `metrics.jsonl`; only the last ones are read.
    """
    recent = records[-sentinels.patience :]
    if len(recent) < sentinels.patience:
        return None
    for limits, above in ((sentinels.least, False), (sentinels.most, True)):
        for metric, limit in limits.items():
            values = [float("nan") if record.get(metric) is None else float(record[metric]) for record in recent]
            if all(value > limit if above else value < limit for value in values):
                return Alarm(metric=metric, limit=limit, above=above, values=tuple(values))
    return None


def signs_of(scored: Scored, languages: Collection[str]) -> dict[str, Float[np.ndarray, " episodes"]]:
    """A number per episode for every watched metric: what the metric is the mean of, or what it shows in."""
    records = scored.records
    by_record: dict[str, Callable] = {
        "entropy": collapse.surprisal,
        "ratio/tail": collapse.largest_surprisal,
        "episode/repetition": collapse.repetition,
        "episode/wrong_language": lambda episodes: collapse.wrong_language(episodes, languages),
        "episode/search_rate": lambda episodes: np.array([each.counts["searches"] for each in episodes], float),
        "episode/policy_tokens": lambda episodes: np.array([each.by_policy.sum() for each in episodes], float),
    }
    signs = {name: sign(records) for name, sign in by_record.items()}
    return signs | {"groups/without_variance": scored.without_variance.astype(float)}


class Guard:
    """Looks at every step of a run, and says why it must not go on.

    Args:
      folder: The run's folder, its `metrics.jsonl` holding the steps before the next one.
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
        """What only the sentinels measure, under the names of `metrics.jsonl`; NaN where nothing is scored."""
        signs = signs_of(scored, self._languages)
        return {
            "episode/repetition": _mean(signs["episode/repetition"]),
            "episode/wrong_language": _mean(signs["episode/wrong_language"]),
            "episode/search_rate": _mean(signs["episode/search_rate"] > 0),
        }

    def reason_to_stop(self, step: int, metrics: Mapping[str, Any], scored: Scored) -> str | None:
        """One sentence if updates are not finite, or a limit has been broken for too long (with a dump); else None."""
        if metrics["update/non_finite_in_a_row"] >= self._most_skipped_in_a_row:
            return (
                f"{self._most_skipped_in_a_row} updates in a row were not finite, so the run stopped at step {step}:"
                f" see {self._folder}/episodes/step_{step}.jsonl, then begin anew with a lower adamw.learning_rate"
            )
        self._recent.append(dict(metrics))
        alarm = broken_limit(self._sentinels, tuple(self._recent))
        if alarm is None:
            return None
        path = self._folder / FOLDER / f"step_{step}.txt"
        if is_writer():
            path.parent.mkdir(exist_ok=True)
            signs = signs_of(scored, self._languages)
            write_text(path, "".join(_dump(alarm, step, metrics, scored, signs, self._sentinels.shown)))
        return (
            f"a sentinel stopped the run at step {step}, because {alarm}: read {path}, then begin anew with other"
            f" settings or continue with another limit in Sentinels.{'most' if alarm.above else 'least'}"
        )


def _mean(values: np.ndarray) -> float:
    scored = values[~np.isnan(values)]
    return float(scored.mean()) if len(scored) else float("nan")


def _dump(
    alarm: Alarm, step: int, metrics: Mapping[str, Any], scored: Scored, signs: Signs, shown: int
) -> Iterator[str]:
    """The text of a dump, paragraph by paragraph."""
    yield f"A sentinel stopped the run at step {step}: {alarm}.\n\n"
    yield f"{alarm.metric}: {WATCHED[alarm.metric]}.\n"
    yield f"In the last {len(alarm.values)} steps: {', '.join(f'{value:.3g}' for value in alarm.values)}\n\n"
    yield "All sentinels at this step:\n"
    yield from (f"  {name:24} {metrics.get(name, float('nan')):.3g}\n" for name in WATCHED)
    sign = signs[alarm.metric]
    order = np.argsort(-sign if alarm.above else sign, kind="stable")
    worst = [index for index in order if not np.isnan(sign[index])][:shown]
    yield f"\nThe {len(worst)} worst of {len(sign)} episodes (all are in episodes/step_{step}.jsonl):\n"
    for number, index in enumerate(worst, start=1):
        yield _episode_text(number, alarm.metric, scored, int(index), float(sign[index]))


def _episode_text(number: int, metric: str, scored: Scored, index: int, sign: float) -> str:
    record = scored.records[index]
    question, earned = record.question, float(scored.rewards["total"][index])
    text = io.StringIO()
    print_episode(((turn.by, turn.text) for turn in record.turns), Console(file=text, no_color=True))
    return (
        f"\n{'-' * 8} {number}. {question.coupling} in {question.language}, episode {record.episode}:"
        f" {metric} {sign:.3g}, reward {earned:.3g}\n"
        f"question: {question.text}\nanswer: {record.outcome.answer}   golds: {' | '.join(question.answers)}\n"
        f"{text.getvalue()}"
    )

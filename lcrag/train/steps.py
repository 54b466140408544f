"""Checks before the first step of a training, and metrics and checkpoints of its steps.

Metrics have their names in `metrics.jsonl`. Model FLOPs utilisation (Chowdhery et al., 2022, PaLM, appendix B) is
operations by formula / seconds / peak rate: padding, recomputation, compilation and waiting lower it. If the peak rate
is unknown (CPUs), only rates are given.
"""

import collections
import contextlib
import math
import pathlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import Float, PyTree

from lcrag.collectives import check_same_everywhere
from lcrag.data.questions import Question, records_fingerprint
from lcrag.episodes import EpisodeRecord
from lcrag.episodes.programs import answer_language
from lcrag.episodes.record import PROMPT_TURN
from lcrag.errors import UserError
from lcrag.evaluation.metrics import Answered, correct_language
from lcrag.files import resolved_folder
from lcrag.learning import Layout, Trajectory
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.update import batch_shares
from lcrag.policy import AnyMesh, DecoderConfig, Policy, parameter_fingerprint
from lcrag.policy.config import accelerator_of
from lcrag.policy.hugging_face import sampled_fingerprint
from lcrag.policy.parameters import causal_mean, forward_flops, update_flops
from lcrag.retrieval import SearchableCollections
from lcrag.rewards import Reward, TermSum
from lcrag.runs.folder import upload_copies
from lcrag.runs.processes import NotedSignals, Stopped
from lcrag.train.method import Episode, Method, grouped, values_of, without_variance

# --- Before the first step ---


def check_rewarded(reward: Reward | None, questions: Iterable[Question]) -> None:
    """Checks before sampling that a reward can score every question and that its models can be loaded."""
    if isinstance(reward, TermSum):
        for model in reward.models.values():
            getattr(model, "check", lambda: None)()  # raises a UserError if it cannot be loaded
        for question in questions:
            name = f"{question.coupling} in {question.language} ({question.text[:60]!r})"
            reward.check(name, {"answers": question.answers} | question.extra)


def check_rows(layout: Layout, context: int, mesh: AnyMesh) -> None:
    """Raises a UserError if training rows cannot hold a full context or be divided among the devices."""
    layout.row_length(context)
    layout.check_shares(batch_shares(mesh))


def content_hashes(
    policy: Policy,
    collections: SearchableCollections | None,
    questions: Iterable[Question],
    models: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """Returns content hashes of the policy, collections, questions and models, which gin names only by their folders.

    Several processes compare these hashes, and also a fingerprint sampled from the policy's files, because each process
    reads only its shard of the parameters. Models of endpoints have no hashes.
    """
    hashes = {
        "policy": parameter_fingerprint(policy.params),
        "tokenizer": policy.tokenizer.fingerprint(),
        "questions": records_fingerprint(questions),
    }
    for name, model in (models or {}).items():
        hashes |= {f"{name}/{part}": value for part, value in getattr(model, "hashes", {}).items()}
    hashes |= collections.content_hashes() if collections is not None else {}
    folder = resolved_folder(policy.name)
    files = {"folder of the policy": sampled_fingerprint(folder)} if jax.process_count() > 1 else {}
    check_same_everywhere(files | hashes)
    return hashes


# --- Checkpoints between steps ---


class StepCheckpoints:
    """Saves a run's steps, and defers SIGTERM and Ctrl-C while its block runs, except in `interruptible` blocks.

    At the end of the block everything saved is complete on disk, except after an error. With several processes, a
    signal to any of them ends all after the same step. `state` returns what to save; the state before `first_step` is
    already saved, or is the initial one. If a deferred signal arrived, the block ends by `Stopped`.
    """

    def __init__(self, checkpoints: Checkpoints, state: Callable[[], PyTree], first_step: int):
        self._checkpoints, self._state, self._signals = checkpoints, state, NotedSignals(held=True)
        self._done = self._saved = first_step

    def __enter__(self) -> "StepCheckpoints":
        self._signals.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if isinstance(error, Stopped):
                self._save()
            if error is None or isinstance(error, Stopped):
                self._checkpoints.wait()
            if error is None:
                self._raise_agreed()
        finally:
            self._signals.__exit__()
        if error is None:
            self._signals.raise_noted()  # a signal to this process alone, after the last agreement

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        """Returns a block that a signal can end at any point by `Stopped`; it must not change the state.

        With several processes, steps are always finished, because one process cannot abandon collective work.
        """
        return contextlib.nullcontext() if jax.process_count() > 1 else self._signals.let_through()

    def finish(self, step: int, *, save: bool, validation_loss: float | None = None) -> None:
        """Records that a step is done, and saves the state after it if `save`; raises `Stopped` after a signal."""
        self._done = step + 1
        if save:
            self._save(validation_loss)
        self._raise_agreed()

    def _raise_agreed(self) -> None:
        """Raises a signal that all processes know of; a signal to this process alone stays deferred until they do."""
        number = self._signals.number
        if jax.process_count() > 1:
            number = int(multihost_utils.process_allgather(np.int32(number)).max())
        if number:
            self._signals.number = number  # which any of the processes may have received
            self._signals.raise_noted()

    def _save(self, validation_loss: float | None = None) -> None:
        if self._done > self._saved:
            upload_copies()  # first: a checkpoint in object storage has the metrics of its steps there
            self._checkpoints.save(self._done, self._state(), validation_loss)
            self._saved = self._done


# --- Metrics of a step ---


REPEATED_TOKENS = 4
CALLS = "tool_calls"  # count of an episode whose program has a tool
# Shares of the groups of a step whose episodes have no advantage.
WITHOUT_ADVANTAGE = ("groups/without_variance", "groups/of_one")


def step_metrics(
    policy: Policy,
    method: Method,
    languages: Collection[str],
    episodes: Sequence[Episode],
    rollouts: Sequence[Mapping[str, float]],
    trajectories: Sequence[Trajectory],
    *,
    max_rollouts: int,
    passes: int,
    update_seconds: float,
    started: float,
) -> dict[str, Any]:
    """Returns the metrics of a training step besides those of its updates.

    Args:
      languages: Those of the collections, among which an answer's is identified.
      episodes: Those of the step.
      rollouts: What each of its rollouts took, of at most `max_rollouts`; see `Rollouts.join`.
      trajectories: The episodes that it learned from, `passes` times.
      started: When the step began, by `time.monotonic`.
    """
    metrics: dict[str, Any] = episode_metrics(episodes, languages, min_std=method.min_std)
    if max_rollouts > 1:
        metrics |= dynamic_sampling_metrics(episodes, len(rollouts))
    total = {name: sum(taken[name] for taken in rollouts) for name in rollouts[0]}
    metrics |= {name: seconds for name, seconds in total.items() if name.startswith("seconds/")}
    metrics |= {
        "tokens_per_second/sampled": total["sampled_tokens"] / total["seconds/rollout"],
        "slots/occupancy": total["sampled_tokens"] / max(1, total["slot_steps"]),
        "append/filled": total["appended_tokens"] / max(1, total["append_positions"]),
        "compiled_shapes": rollouts[-1]["compiled_shapes"],
        "seconds/update": update_seconds,
        **memory_metrics(),
    }
    flops = rollout_flops(policy.config, (episode.record for episode in episodes))
    metrics |= rate_metrics("rollout", policy, flops, metrics["seconds/rollout"])
    metrics |= rate_metrics("update", policy, learning_flops(policy.config, trajectories, passes), update_seconds)
    metrics["seconds/step"] = time.monotonic() - started
    # What is left of the rollout, and of the step; the rest is negative where sampling runs ahead of learning.
    parts = {
        "programs": ("rollout", "append", "decode", "retrieval_wait"),
        "rest": ("step", "rollout", "rewards", "update"),
    }
    for name, (whole, *known) in parts.items():
        metrics[f"seconds/{name}"] = metrics[f"seconds/{whole}"] - sum(metrics[f"seconds/{part}"] for part in known)
    return metrics


def episode_metrics(
    episodes: Sequence[Episode], languages: Collection[str], *, min_std: float = 0.0
) -> dict[str, float]:
    """Returns means over the scored episodes of a step, and counts of the others.

    Repetition, answers in another language and the search rate show a collapsing policy first. What no episode shows is
    NaN.

    Args:
      languages: Those among which an answer's is identified.
      min_std: That of the method.
    """

    def mean(values: Iterable[float]) -> float:
        known = np.array(list(values), float)
        return float(known.mean()) if len(known) else float("nan")

    scored = [episode for episode in episodes if episode.scored]
    records = [episode.record for episode in scored]
    terms = dict.fromkeys(term for episode in episodes for term in episode.rewards)
    rewards = {term: values_of(scored, term) for term in terms}
    names = dict.fromkeys(name for record in records for name in record.counts)
    groups = grouped(episodes)
    totals = [values_of([episode for episode in group if episode.scored]) for group in groups]
    low = [len(group) > 1 and np.ptp(group) > 0 and np.std(group, ddof=1) < min_std for group in totals]
    # Whether the collection of a question's language holds what it needs, where the questions say.
    searches: dict[str, list[int]] = collections.defaultdict(list)
    for record in records:
        if "native_holds" in record.question.extra:
            holds = record.question.extra["native_holds"]
            searches["native_holds" if holds else "native_missing"].append(record.counts["searches"])
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
    correct = correct_language(answered, languages)  # NaN for an answer of which it is unknown
    return {
        **{f"reward/{term}": mean(values) for term, values in rewards.items()},
        **{f"episode/{name}": mean(record.counts.get(name, 0) for record in records) for name in names},
        "episode/retrieval_failures": mean(episode.record.counts.get("retrieval_failures", 0) for episode in episodes),
        "episode/finished": mean(record.finished for record in records),
        "episode/answered": mean(record.outcome.answer is not None for record in records),
        "episode/invalid_actions": mean(record.outcome.invalid_actions for record in records),
        "episode/tokens": mean(len(record.tokens) for record in records),
        "step/episodes": len(episodes),
        "step/prompts": len({episode.record.question.key for episode in episodes}),
        "episode/scored": len(scored),
        "episode/failed": sum(episode.record.failure is not None for episode in episodes),
        "episode/unscored": len(episodes) - len(scored),
        "groups/without_variance": mean(
            without_variance(group) and len(scores) != 1 for group, scores in zip(groups, totals, strict=True)
        ),
        "groups/of_one": mean(len(group) == 1 for group in totals),
        "groups/below_floor": mean(low),
        **{f"episode/searches_{subset}": mean(made) for subset, made in searches.items()},
        **tool_rates(records, rewards),
        "episode/repetition": mean(repetition(records)),
        "episode/wrong_language": mean(1.0 - correct[~np.isnan(correct)]),
        "episode/search_rate": mean(record.counts["searches"] > 0 for record in records),
    }


def tool_rates(
    records: Sequence[EpisodeRecord], rewards: Mapping[str, Float[np.ndarray, " episodes"]]
) -> dict[str, float]:
    """Returns `tools/<tier>/rate`, `/two_calls` and `/reward` for every tier, and `tools/<domain>/<tier>/...`.

    They are the shares of a step's episodes with a tool call, and with two or more, and their mean `rewards["task"]`,
    the reward before the cost of calls, if it exists. Empty if no program has a tool or no question has a tier.
    """
    earned = rewards.get("task", rewards["total"])
    places: dict[str, list[int]] = collections.defaultdict(list)
    for place, record in enumerate(records):
        question = record.question
        if question.tier and CALLS in record.counts:
            places[question.tier].append(place)
            if question.domain:
                places[f"{question.domain}/{question.tier}"].append(place)
    rates = {}
    for part, chosen in places.items():
        calls = np.array([records[place].counts[CALLS] for place in chosen])
        rates[f"tools/{part}/rate"] = float(np.mean(calls > 0))
        rates[f"tools/{part}/two_calls"] = float(np.mean(calls > 1))
        rates[f"tools/{part}/reward"] = float(np.mean(earned[chosen]))
    return rates


def dynamic_sampling_metrics(episodes: Sequence[Episode], rollouts: int) -> dict[str, int]:
    """Returns how much a step with dynamic sampling sampled, and how much of it the update learns from."""
    dropped = [episode.record for episode in episodes if not episode.kept]
    return {
        "dynamic_sampling/rollouts": rollouts,
        "dynamic_sampling/groups_sampled": len({episode.group for episode in episodes}),
        "dynamic_sampling/groups_kept": len({episode.group for episode in episodes if episode.kept}),
        "dynamic_sampling/episodes_dropped": len(dropped),
        "dynamic_sampling/policy_tokens_dropped": sum(int(record.by_policy.sum()) for record in dropped),
    }


def repetition(records: Sequence[EpisodeRecord], size: int = REPEATED_TOKENS) -> Float[np.ndarray, " episodes"]:
    """Returns the share of the policy's token n-grams that repeat an earlier one of the episode, in [0, 1).

    1 - distinct / all, the seq-rep-n of Welleck et al. 2020 (arXiv:1908.04319, section 6), over n-grams within one
    stretch of the policy's tokens; 0 for an episode without any.
    """
    shares = np.zeros(len(records))
    for place, record in enumerate(records):
        if len(record.tokens) >= size:
            windows = np.lib.stride_tricks.sliding_window_view(record.tokens, size)
            written = np.lib.stride_tricks.sliding_window_view(record.by_policy, size).all(axis=1)
            if written.any():
                shares[place] = 1.0 - len(np.unique(windows[written], axis=0)) / written.sum()
    return shares


def rollout_flops(config: DecoderConfig, records: Iterable[EpisodeRecord]) -> float:
    """Counts the operations that a rollout needs: every token passes once, a prompt shared by samples once for all.

    Completions outside the dialogue are left out.
    """
    total, prompts = 0.0, set()
    for record in records:
        length, shared = len(record.tokens), 0
        if record.prompt in prompts:
            shared = int((record.turn == PROMPT_TURN).sum())
        prompts.add(record.prompt)
        attended, written = (shared + length + 1) / 2, int(record.by_policy.sum())
        total += forward_flops(config, length - shared, attended=attended, unembedded=written)
    return total


def learning_flops(config: DecoderConfig, trajectories: Iterable[Trajectory], passes: int = 1) -> float:
    """Counts the operations of learning from trajectories `passes` times: forward and backward passes of the policy.

    Passes that only score, and those of a critic, are left out.
    """
    sizes = ((len(trajectory.tokens), int(trajectory.by_policy.sum())) for trajectory in trajectories)
    return passes * sum(
        update_flops(config, length, attended=causal_mean(length), unembedded=learned) for length, learned in sizes
    )


def rate_metrics(phase: str, policy: Policy, flops: float, seconds: float) -> dict[str, float]:
    """Returns operations per second of "rollout" or "update", and their share of the devices' peak if it is known."""
    rate, devices = flops / max(seconds, 1e-9), policy.mesh.devices.ravel()
    accelerator = accelerator_of(devices[0])
    measured = {f"flops_per_second/{phase}": rate}
    if accelerator is not None:
        measured[f"mfu/{phase}"] = rate / (accelerator.flops_per_second * len(devices))
    return measured


def memory_metrics() -> dict[str, int]:
    """Returns the memory in use and its peak so far, in bytes, of this process's fullest device; empty if unknown."""
    known = [stats for device in jax.local_devices() if (stats := device.memory_stats())]
    names = {"device/memory_bytes": "bytes_in_use", "device/memory_peak_bytes": "peak_bytes_in_use"}
    return {
        name: max(int(stats[key]) for stats in known)
        for name, key in names.items()
        if known and all(key in stats for stats in known)
    }


# --- Notices ---


class Notices:
    """Says on the console what a user should know of a step: what may last is said once, or rarely."""

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._said: set[str] = set()
        self._before: Mapping[str, Any] = {}  # metrics of the step before; empty for the first of this process
        self._idle = 0  # steps in a row without a learning signal

    def __call__(self, step: int, metrics: Mapping[str, Any], episodes: Sequence[Episode] = ()) -> None:
        """Says what the metrics and the episodes of a step show."""

        def say(text: str, once: str = "") -> None:
            if once not in self._said:
                self._say(f"step {step}: {text}")
            self._said |= {once} if once else set()

        names = "update/skipped", "critic/skipped"
        skipped, old = (sum(values.get(name, 0) for name in names) for values in (metrics, self._before))
        if skipped > old if self._before else metrics["update/non_finite_in_a_row"]:
            say(f"skipped updates whose loss or gradients were not finite, {skipped:.0f} since the run began")
        self._before = metrics

        if unscored := [episode for episode in episodes if not episode.scored and episode.record.failure is None]:
            terms = [name for name, value in unscored[0].rewards.items() if math.isnan(value) and name != "total"]
            say(
                f"{len(unscored)} of {len(episodes)} episodes have no score and are not learned from: the reward term"
                f" {[*terms, 'total'][0]} returned NaN for question {unscored[0].record.question.text[:60]!r}",
                once="unscored",
            )
        counted = "empty_turns", "generations"
        empty, turns = (sum(episode.record.counts.get(name, 0) for episode in episodes) for name in counted)
        if 2 * empty > turns:
            say(
                f"{empty} of {turns} turns of the policy have no text: read an episode; a chat model may need"
                " demonstrations first, or turns that it knows (Chat.turns)",
                once="empty",
            )

        # A critic's advantages need no group whose rewards differ.
        flat = sum(metrics.get(name) or 0.0 for name in WITHOUT_ADVANTAGE) > 1 - 1e-6
        self._idle = self._idle + 1 if flat and "critic/gradient_norm" not in metrics else 0
        if self._idle in (1, 10, 100, 1000):
            lasting = f" for {self._idle} steps" if self._idle > 1 else ""
            say(
                f"no reward varied within a group{lasting}, so nothing is learned. If all are 0, teach the format first"
                " (lcrag sft) or ask easier questions; if all are right, ask harder ones; otherwise raise"
                " Method.samples. `lcrag view` shows the episodes"
            )


def check_finite(metrics: Mapping[str, Any], step: int, max_consecutive_skips: int, where: pathlib.Path) -> None:
    """Raises a UserError if a run has diverged: too many updates in a row, or the validation loss, were not finite."""
    if metrics["update/non_finite_in_a_row"] >= max_consecutive_skips:
        raise UserError(
            f"{max_consecutive_skips} updates in a row were not finite, so the run stopped at step {step}: see"
            f" {where}, then begin anew with a lower adamw.learning_rate"
        )
    if not math.isfinite(metrics.get("validation/loss", 0.0)):
        raise UserError(
            f"the validation loss is not finite, so the run stopped at step {step}: begin anew with a lower"
            " adamw.learning_rate"
        )

"""Reinforcement learning of a policy that searches. Read this file first; it reads top to bottom.

A step draws questions, each in all its languages. The policy answers them in episodes of several turns, searching as
its method's program allows (`lcrag.train.rollout`); a reward scores the episodes; the advantage of an episode is its
reward relative to its group (`lcrag.train.method`), or comes from a critic; and the policy is updated with the clipped
policy-gradient loss (`lcrag.learning`). Everything a run uses is an argument of `train`, bound in gin/wiring.gin.

An episode is an `EpisodeRecord`, the tokens and texts that the runner leaves; an `Episode`, which adds its rewards and
advantage; a `Trajectory`, what learning reads of it; and a part of a `Batch`, arrays of few shapes. Rewards read the
columns of many records, `lcrag.rewards.Episodes`.
"""

import contextlib
import functools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import gin
import jax

from lcrag.data.questions import Question, groups_of_step, share_of
from lcrag.errors import Count, Seed, Share, UserError, check_arguments, typed
from lcrag.learning import Critic, Layout, Optimizer, PolicyGradient
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner, frozen_fingerprint
from lcrag.policy import Policy, save_policy
from lcrag.retrieval import SearchableCollections
from lcrag.runs import open_run, operative_config, provenance
from lcrag.runs.display import ProgressDisplay, make_console, progress_display
from lcrag.runs.folder import Trackers
from lcrag.train.evaluation import AFTER, Evaluation, report_run, was_finished
from lcrag.train.method import Episode, Method, extremes
from lcrag.train.one_ahead import OneAhead
from lcrag.train.rollout import Lanes, Rollouts, StepSampler
from lcrag.train.steps import (
    Notices,
    StepCheckpoints,
    check_finite,
    check_rewarded,
    check_rows,
    content_hashes,
    step_metrics,
)

Sampled: TypeAlias = tuple[list[Episode], list[dict[str, float]]]  # of a step; see `StepSampler.sample`


def training_step(
    step: int,
    sample: Callable[[int], Sampled],
    learner: Learner,
    measure: Callable[..., dict[str, Any]],
    display: ProgressDisplay,
) -> tuple[list[Episode], dict[str, Any]]:
    """One step of training, a rollout and its updates; returns the episodes and the metrics.

    `sample` is `sample_in_turn` or `sample_ahead`, and `measure` is `step_metrics`, with their other arguments bound.
    """
    # --- Rollout: sample episodes, score them, compute advantages. A signal may end it at any point.
    started = time.monotonic()
    episodes, rollouts = sample(step)

    # --- Update: one gradient step for each mini-batch of the episodes that have a learning signal.
    display.phase("update")
    updating = time.monotonic()
    trajectories = [episode.trajectory() for episode in episodes if episode.kept]
    metrics = learner.learn(trajectories)
    seconds = time.monotonic() - updating
    return episodes, metrics | measure(episodes, rollouts, trajectories, update_seconds=seconds, started=started)


@gin.configurable
@typed
def train(
    output_dir: pathlib.Path,
    *,
    seed: Seed,  # of the order of the questions and of sampling
    steps: Count,  # each is a rollout and its updates
    policy: Policy,  # the initial one; its parameters are donated
    questions: Sequence[Question],
    collections: SearchableCollections,
    method: Method,  # program, reward and groups
    lanes: Lanes,  # samplers and their devices
    objective: PolicyGradient,
    optimizer: Optimizer,  # its schedule spans the updates of all steps
    layout: Layout,  # shapes of training rows
    trackers: Trackers,  # where metrics go in addition to metrics.jsonl
    critic: Critic | None = None,  # a value model whose advantages replace those of groups (PPO)
    # Questions of a step, each in all its languages; None: as many as have `prompts_per_step` versions. A prompt is
    # sampled `method.samples` times; see `Method.with_advantage_group`.
    questions_per_step: int | None = None,
    prompts_per_step: int | None = None,
    question_share: Share = 1.0,  # a question is used in all its languages; a smaller share is a subset of a larger one
    updates_per_rollout: Count = 1,  # mini-batches of a rollout, one update each
    passes_per_rollout: Count = 1,
    max_rollouts: Count = 1,  # of a step; above 1, groups with equal rewards are replaced (DAPO's dynamic sampling)
    # 0: sampling and learning in turn; 1: a step is sampled while the update before it runs, which needs
    # `objective.importance_cap`.
    staleness: Literal[0, 1] = 0,
    max_consecutive_skips: Count = 5,  # non-finite updates in a row after which the run stops
    checkpoint_every: Count = 50,  # the last step is always saved
    episodes_every: Count = 10,  # steps between those of which every episode is written
    extreme_groups: int = 64,  # of other steps, the best and worst episode of so many groups, which differ most
    evaluation: Evaluation | None = None,  # on held-out questions, before and after
    evaluate_every: Count | None = None,  # steps between further evaluations, labelled "after step <n>"
) -> None:
    """Trains a policy to search; the same call continues an interrupted run.

    SIGTERM and Ctrl-C abandon a rollout, or wait for an update, and save the last finished step.

    Raises:
      UserError: The output folder belongs to another run, questions have no collection or cannot be scored, or the run
        diverged.
      Stopped: A signal arrived during training; the last finished step is saved.
    """
    given = locals()

    # --- What a step draws and what samples it; everything is checked before the output folder is opened.
    questions = share_of(questions, question_share, seed=seed)
    method, table, questions_per_step = method.of_step(
        questions, questions_per_step, prompts_per_step, group_baseline=critic is None
    )
    # A function of the step, so that a continued run draws the same; more than an update needs for dynamic sampling.
    draw = functools.partial(groups_of_step, table, seed=seed, couplings=questions_per_step * max_rollouts)
    draw(step=0)  # refuses a table that is too small
    check_rewarded(method.reward, questions)
    rollouts = Rollouts(lanes, policy, collections, method, seed)
    evaluation, about = check_run(given, questions, method, rollouts)
    episodes_per_rollout = questions_per_step * method.samples * max(map(len, table))

    with (
        open_run(output_dir, config=operative_config(), about=about, may_change=MAY_CHANGE) as run,
        Checkpoints(run.checkpoints, base=frozen_fingerprint(policy)) as checkpoints,
        contextlib.ExitStack() as entered,
    ):
        # --- The learner, at its start or at the latest intact checkpoint.
        console = make_console()
        updates = updates_per_rollout * passes_per_rollout  # of a step, which the optimizer's schedule counts
        learner = Learner(
            policy,
            objective,
            optimizer.with_updates(updates, steps),
            layout,
            rollouts.runner.temperature,
            critic and critic.with_updates(updates, steps),
            parts=updates_per_rollout,
            passes=passes_per_rollout,
        )
        ahead = OneAhead(rollouts, learner) if staleness else None
        trained = ahead or learner  # whose state a checkpoint holds
        first = trained.restore(checkpoints)
        if first > steps:
            raise UserError(f"{run.path} has done {first} steps, but train.steps is {steps}: set it to {first} or more")
        if was_finished(run.path, first, first == steps):
            report_run(run.path, evaluation, console)
            return
        if evaluation is not None and first == 0:
            evaluation.run_before(run.path, rollouts, learner.params, seed=seed, console=console)

        # --- Checkpoints and signals, the log, the console, and sampling one step ahead.
        saved = entered.enter_context(StepCheckpoints(checkpoints, lambda: trained.state, first))
        log = entered.enter_context(run.metrics(first - 1, trackers))
        display = entered.enter_context(
            progress_display(method.name, steps, first=first, tokens=rollouts.written_tokens)
        )
        notices = Notices(display.say)
        sampler = StepSampler(rollouts, draw, max_rollouts, episodes_per_rollout * max_rollouts, display)
        sample: Callable[[int], Sampled] = functools.partial(sample_in_turn, sampler, learner, saved)
        if ahead is not None:
            sample = functools.partial(sample_ahead, sampler, ahead, saved, steps)
        measure = functools.partial(
            step_metrics, policy, method, collections.languages, max_rollouts=max_rollouts, passes=passes_per_rollout
        )
        if first < steps:
            if ahead is not None:
                entered.enter_context(ahead)
                ahead.begin(first, sampler)
            display.say(f"training: steps {first:,} to {steps - 1:,} of {episodes_per_rollout:,} episodes")

        for step in range(first, steps):
            # --- Evaluate, every few steps; an evaluation that is interrupted continues with the run.
            label = f"after step {step}"
            if evaluation and evaluate_every and step and not step % evaluate_every:
                if not evaluation.is_done(run.path, label):
                    display.phase("evaluation")
                    with saved.interruptible():
                        evaluation.run(run.path, label, rollouts, learner.params, seed=seed, console=console)

            # --- Sample and learn.
            episodes, metrics = training_step(step, sample, learner, measure, display)

            # --- Log.
            if ahead is not None:
                metrics |= ahead.metrics(step, episodes, metrics["seconds/step"])
            log.write(step, metrics)
            display.update(step + 1, metrics)
            notices(step, metrics, episodes)
            last = step == steps - 1
            diverging = metrics["update/non_finite_in_a_row"] >= max_consecutive_skips
            whole = diverging or last or step % episodes_every == 0
            if whole or extreme_groups:
                shown = episodes if whole else extremes(episodes, extreme_groups)
                rows = (episode.json(advantage=critic is None) for episode in shown)
                run.write_episodes(step, rows, extremes=not whole)
            check_finite(metrics, step, max_consecutive_skips, run.path / "episodes" / f"step_{step}.jsonl")

            # --- Checkpoint; a signal that arrived during the update ends the run here.
            saved.finish(step, save=last or (step + 1) % checkpoint_every == 0)

        # --- The end: everything saved is complete on disk, then the trained policy is evaluated and exported.
        entered.close()
        if evaluation is not None:
            evaluation.run(run.path, AFTER, rollouts, learner.params, seed=seed, console=console)
        save_policy(run.path / "policy", policy, learner.params)
        report_run(run.path, evaluation, console)


# --- Sampling, in turn with the updates or one step ahead of them ---


def sample_in_turn(sampler: StepSampler, learner: Learner, saved: StepCheckpoints, step: int) -> Sampled:
    """Samples a step with the parameters of the update before it."""
    with saved.interruptible():
        sampler.rollouts.set_params(learner.params, learner.policy_version)
        return sampler.sample(step)


def sample_ahead(sampler: StepSampler, ahead: OneAhead, saved: StepCheckpoints, steps: int, step: int) -> Sampled:
    """Returns a step that was sampled during the update before it, and begins the next, before this step's update."""
    with saved.interruptible():
        sampled = ahead.take(step, sampler)
    ahead.begin(step + 1, sampler if step + 1 < steps else None)
    return sampled


# --- Checks before the first step ---


# Bindings that a continued run may change. With other values of the first ones, which fit a run to its devices, sums of
# floats are rounded differently.
HARDWARE = (
    *(f"{scope}mesh.{part}" for scope in ("", "sampler/") for part in ("data", "fsdp", "tensor", "devices")),
    *("policy.mesh", "Computation.remat"),
    *(f"{scope}Layout.{part}" for scope in ("", "sft/") for part in ("rows", "short_row_length", "policy_shares")),
    *(f"{scope}Layout.{part}" for scope in ("", "sft/") for part in ("min_micro_batches", "min_episodes")),
    *("Sampler.slots", "Sampler.block", "Sampler.min_finished_share", "Sampler.windows", "Sampler.append_rows"),
    *("Sampler.append_tokens", "Sampler.decode_rows", "Sampler.layers", "Sampler.merge_adapters"),
    *("Sampler.gather_parameters", "Lanes.count", "Lanes.tensor", "Lanes.mesh"),
)
MAY_CHANGE = (
    *HARDWARE,
    *("train.steps", "train.evaluate_every", "train.checkpoint_every", "train.episodes_every", "train.extreme_groups"),
    *("adamw.steps", "critic/adamw.steps", "Evaluation.reading"),
    *(f"{part}.url" for part in ("remote_collections", "EndpointCompleter", "EndpointTranslator", "RemoteTranslator")),
    *("Trackers.names", "Trackers.project", "Trackers.offline"),
)


def check_settings(given: Mapping[str, Any], temperature: float) -> None:
    """Raises a UserError if arguments of `train`, by name, do not go together; `temperature` is the runner's."""
    check_arguments("train", train, given.items())
    max_rollouts, staleness, evaluate_every = given["max_rollouts"], given["staleness"], given["evaluate_every"]
    if max_rollouts > 1 and given["critic"] is not None:
        raise UserError(
            f"train.max_rollouts is {max_rollouts}, so groups whose rewards are equal would be dropped, but a critic"
            " learns from them: set it to 1, or train.critic to None"
        )
    if staleness and given["objective"].importance_cap is None:
        raise UserError(
            f"train.staleness is {staleness}, so episodes are of an older policy than the one that learns from them,"
            " which only a correction makes right: add --gin.PolicyGradient.importance_cap=2.0, or set it to 0"
        )
    if staleness and jax.process_count() > 1 and given["lanes"].count == 1:
        raise UserError(
            f"train.staleness is {staleness}, but {jax.process_count()} processes share one lane, which samples and"
            f" learns in turn: set Lanes.count to {jax.process_count()} or a multiple, or train.staleness to 0"
        )
    if staleness and evaluate_every is not None:
        raise UserError(
            f"train.evaluate_every is {evaluate_every}, but with train.staleness = {staleness} the samplers that"
            " evaluate are sampling the next step: set one of them to its default, None or 0"
        )
    if temperature <= 0:
        raise UserError(
            f"Runner.temperature is {temperature}, so the policy would sample greedily: learning needs a"
            " positive one (1.0)"
        )


def check_run(
    given: Mapping[str, Any], questions: Sequence[Question], method: Method, rollouts: Rollouts
) -> tuple[Evaluation | None, dict[str, Any]]:
    """Checks the arguments of `train`, by name, together with the questions and the method of its steps.

    Returns the evaluation, which knows what is trained on, and what `run.json` says of the run.
    """
    policy, collections, evaluation = given["policy"], given["collections"], given["evaluation"]
    runner = rollouts.runner
    check_settings(given, runner.temperature)
    check_rows(given["layout"], runner.sampler.context, policy.mesh)
    rollouts.check(questions)
    asked, trained_on = list(questions), dict[str, Any]()
    if evaluation is not None:
        evaluation, trained_on = evaluation.after_training(questions)
        evaluation.check(rollouts)
        asked += evaluation.questions
    hashes = content_hashes(policy, collections, asked, {**method.models, **runner.completers})
    return evaluation, provenance(seed=given["seed"], hashes=hashes) | trained_on

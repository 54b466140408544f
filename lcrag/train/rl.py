"""`lcrag train`: reinforcement learning, from rollouts to a held-out table. Reads top to bottom."""

import pathlib
import time
from collections.abc import Sequence

from lcrag.composition.components import configured_sinks, content_hashes
from lcrag.composition.configuration import operative_config
from lcrag.data.questions import Question
from lcrag.learning import Critic, Layout, Optimizer, PolicyGradient
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner, frozen_fingerprint
from lcrag.limits import Amount, Count, PositiveShare, Seed
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.runs import open_run, provenance
from lcrag.runs.display import make_console, progress_display
from lcrag.train.checking import (
    check_dynamic_sampling,
    check_exploration,
    check_questions,
    check_rewarded,
    check_rows,
)
from lcrag.train.evaluation import Evaluation
from lcrag.train.held_out import BoundEvaluation
from lcrag.train.lanes import Lanes
from lcrag.train.method import Method
from lcrag.train.policy_export import save_policy
from lcrag.train.rollouts import StepEpisodes
from lcrag.train.run_report import report_run
from lcrag.train.schedule import check_staleness
from lcrag.train.scoring import Scored
from lcrag.train.sentinels import NO_LIMITS, CollapseWatch, Sentinels
from lcrag.train.step_checkpoints import StepCheckpoints
from lcrag.train.step_log import StepLog
from lcrag.train.streaming import scheduled
from lcrag.train.training_draw import Sizes, training_draw
from lcrag.train.utilisation import Utilisation, memory_metrics, utilisation_of

# Settings that fit a run to its devices; with other values, a continued run rounds sums of floats differently.
HARDWARE = (
    *(f"{scope}mesh.{part}" for scope in ("", "sampler/") for part in ("data", "fsdp", "tensor", "devices")),
    *("policy.mesh", "Computation.remat"),
    *(f"{scope}Layout.{part}" for scope in ("", "sft/") for part in ("rows", "short_row_length")),
    *(f"Sampler.{part}" for part in ("slots", "block", "wanted", "windows", "append_rows", "append_tokens")),
    *(f"Sampler.{part}" for part in ("decode_rows", "drafts", "least_tokens_per_pass", "layers", "merge_adapters")),
    *("Sampler.gather_parameters", "Lanes.count", "Lanes.tensor", "Lanes.mesh", "Lanes.stealing"),
)
MAY_CHANGE = (
    *HARDWARE,
    *("train.steps", "train.checkpoint_every", "train.episodes_every", "train.extreme_groups", "train.sentinels"),
    *("adamw.steps", "critic/adamw.steps", "Evaluation.reading"),
    *(f"{part}.url" for part in ("remote_collections", "EndpointCompleter", "EndpointTranslator", "RemoteTranslator")),
    *(f"Sentinels.{part}" for part in ("least", "most", "patience", "shown")),
    *(f"MetricsLog.{part}" for part in ("sinks", "project", "offline")),
)


def train(
    output_dir: pathlib.Path,
    words: Sequence[str] = (),
    *,
    seed: Seed,
    steps: Count,
    couplings: Count,
    policy: Policy,
    questions: Sequence[Question],
    question_share: PositiveShare = 1.0,
    collections: SearchableCollections,
    method: Method,
    objective: PolicyGradient,
    optimizer: Optimizer,
    layout: Layout,
    critic: Critic | None = None,
    updates_per_rollout: Count = 1,
    passes_per_rollout: Count = 1,
    most_rollouts: Count = 1,
    staleness: Amount = 0,
    recompute_contexts: bool = False,
    checkpoint_every: Count = 50,
    episodes_every: Count = 10,
    extreme_groups: Amount = 64,
    most_skipped_in_a_row: Count = 5,
    sentinels: Sentinels = NO_LIMITS,
    evaluation: Evaluation | None = None,
) -> None:
    """Trains a policy to search; the same call continues an interrupted run.

    SIGTERM and Ctrl-C abandon a rollout, or wait for an update, and save the last finished step.

    Args:
      output_dir: The run's folder.
      words: Not used.
      seed: Seed of the question order and of sampling.
      steps: Training steps, each a rollout and its updates.
      couplings: Coupled questions per step (each in all its languages, `method.samples` times; see `Method.sized`).
      policy: Initial policy.
      questions: Training questions.
      question_share: Share of the questions to use, each in all its languages; with one seed, a smaller share is a
        subset of a larger one.
      collections: Collections that programs search.
      method: Program, reward and coupling.
      objective: Policy-gradient loss.
      optimizer: Its schedule spans the updates of all steps.
      layout: Shapes of training rows.
      critic: Value model whose advantages replace those of groups (PPO); None: no value model.
      updates_per_rollout: Mini-batches per rollout, one update each.
      passes_per_rollout: Passes over each rollout.
      most_rollouts: Largest number of rollouts per step; above 1, groups with equal rewards are replaced by newly
        sampled ones (DAPO's dynamic sampling).
      staleness: Maximum number of updates since the policy that began an episode. 0: sampling and learning take turns.
        1: the next step is sampled while the update runs. More: sampling never pauses, and steps depend on timing.
        Above 0, `objective.importance_cap` must be set.
      recompute_contexts: Above a staleness of 1, new weights recompute the contexts of running episodes; otherwise
        these keep the keys and values of older weights.
      checkpoint_every: Steps between checkpoints; the last step is always saved.
      episodes_every: Interval of the steps of which every episode is written.
      extreme_groups: Number of groups of the other steps of which the best and the worst episode are written, those
        whose rewards differ most; 0: none.
      most_skipped_in_a_row: Consecutive non-finite updates after which the run stops with a dump.
      sentinels: Limits that stop a collapsing run; the watched metrics are always logged.
      evaluation: Held-out evaluation before and after, or None.

    Raises:
      UserError: The output folder belongs to another run, questions have no collection or cannot be
        scored, or the run diverged or collapsed.
      Stopped: A signal arrived during training; the last finished step is saved.
    """
    # The training questions and their draws.
    sinks = configured_sinks()
    check_dynamic_sampling(most_rollouts, critic)
    check_staleness(staleness, objective, most_rollouts, recompute_contexts)
    updates = updates_per_rollout * passes_per_rollout
    optimizer, critic = optimizer.with_updates(updates), critic and critic.with_updates(updates)
    sizes = Sizes(couplings=couplings, question_share=question_share, most_rollouts=most_rollouts, seed=seed)
    draw = training_draw(method, questions, sizes, group_baseline=critic is None)
    draw.groups(step=0)  # rejects a table that is too small
    method, questions = draw.method, draw.questions
    check_rewarded(method.reward, questions)
    if evaluation is not None:
        check_rewarded(evaluation.reward, evaluation.questions)
    # The sampler; everything is checked before the output folder is opened.
    lanes = Lanes(policy, collections, method, seed)
    runner = lanes.runner
    check_exploration(runner.temperature)
    check_rows(layout, lanes.sampler.context, policy.mesh)
    check_questions(questions, collections, runner, lanes.program, native_collections=method.native_collections)
    held_out = None
    if evaluation is not None:
        held_out = BoundEvaluation(evaluation, policy, method, collections, lanes, runner, seed)
    asked = [*questions, *(evaluation.questions if evaluation else ())]
    hashes = content_hashes(policy, collections, asked, {**method.models, **runner.completers})
    about = provenance(seed=seed, hashes=hashes)
    with (
        open_run(output_dir, config=operative_config(), about=about, may_change=MAY_CHANGE) as run,
        Checkpoints(run.checkpoints, base=frozen_fingerprint(policy)) as checkpoints,
    ):
        console = make_console()
        counts = {"parts": updates_per_rollout, "passes": passes_per_rollout}
        learner = Learner(policy, objective, optimizer, layout, runner.temperature, critic, **counts)
        schedule = scheduled(lanes, learner, draw, staleness, recompute_contexts)
        first = schedule.restore(checkpoints)
        if held_out is not None and first == 0:
            held_out.before(run.path, learner.params, console)
        with (
            StepCheckpoints(checkpoints, schedule, first) as saved,
            run.metrics(first - 1, sinks) as metrics_log,
            progress_display(method.name, steps, first=first, tokens=runner.written_tokens) as display,
            schedule,
        ):
            watch = CollapseWatch(run.path, sentinels, collections.languages, most_skipped_in_a_row)
            log = StepLog(run, metrics_log, display, watch, episodes_every, extreme_groups, advantages=critic is None)
            utilisation = utilisation_of(policy, passes_per_rollout)
            schedule.begin(first, steps, display.phase)
            for step in range(first, steps):
                with saved.interruptible():
                    episodes = schedule.episodes(step)
                schedule.taken(step)
                display.phase("update")
                scored, metrics = learn(learner, episodes, utilisation)
                schedule.learned(step)
                last = step == steps - 1
                log.write(step, scored, metrics | schedule.measurements(step, scored), last=last)
                saved.finish(step, save=last or (step + 1) % checkpoint_every == 0)
        log.sum_up(console)
        if held_out is not None:
            held_out.after(run.path, learner.params, console)
        save_policy(run.path / "policy", policy, learner.params)
        report_run(run.path, evaluation, console)


def learn(learner: Learner, episodes: StepEpisodes, utilisation: Utilisation) -> tuple[Scored, dict[str, float | int]]:
    """Updates the policy with a step's episodes; returns (all sampled episodes, metrics of sampling and learning)."""
    started = time.monotonic()
    trajectories = episodes.batch.trajectories()
    measured = learner.learn(trajectories)
    scored, seconds = episodes.batch.scored(), time.monotonic() - started
    timing = episodes.metrics() | {"seconds/update": seconds}
    timing |= utilisation.rollout(scored.records, episodes.seconds["rollout"])
    timing |= utilisation.update(trajectories, seconds) | memory_metrics()
    return scored, scored.measurements() | episodes.batch.measurements() | measured | timing

"""`lcrag train`: reinforcement learning, from rollouts to a held-out table. Reads top to bottom."""

import functools
import itertools
import pathlib
import time
from collections.abc import Mapping, Sequence

import numpy as np

from lcrag.app.commands.evaluate import Evaluation
from lcrag.app.commands.report.reporting import AFTER, BEFORE, report_run
from lcrag.app.commands.train.dynamic_sampling import collect
from lcrag.app.commands.train.finished_steps import FinishedSteps
from lcrag.app.commands.train.sentinels import NO_LIMITS, Guard, Sentinels
from lcrag.app.composition.checking import (
    check_counts,
    check_dynamic_sampling,
    check_exploration,
    check_questions,
    check_rewarded,
    check_rows,
    check_seed,
)
from lcrag.app.composition.components import content_hashes, make_runner, make_sampler
from lcrag.app.composition.configuration import operative_config
from lcrag.app.composition.method import Method, ProgramOf, Scored
from lcrag.app.display import TrainingDisplay, make_console, training_display
from lcrag.app.runs import RunFolder, open_run, provenance
from lcrag.app.commands.export import save_policy
from lcrag.data.batches import Coupled, groups_of_step
from lcrag.data.questions import Question
from lcrag.data.batches import share_of
from lcrag.episodes import Runner, episode_json
from lcrag.errors import UserError
from lcrag.learning import Critic, Layout, Optimizer, PolicyGradient
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import Learner
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.sampling import Sampler

MAY_CHANGE = (
    "train.steps",
    "adamw.steps",
    "train.checkpoint_every",
    "train.episodes_every",
    "remote_collections.url",
    "EndpointCompleter.url",
    "EndpointTranslator.url",
    "RemoteTranslator.url",
    "train.sentinels",
    "Sentinels.least",
    "Sentinels.most",
    "Sentinels.patience",
    "Sentinels.shown",
)


def train(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    seed: int,
    steps: int,
    couplings: int,
    policy: Policy,
    questions: Sequence[Question],
    question_share: float = 1.0,
    collections: SearchableCollections,
    method: Method,
    objective: PolicyGradient,
    optimizer: Optimizer,
    layout: Layout,
    critic: Critic | None = None,
    updates_per_rollout: int = 1,
    passes_per_rollout: int = 1,
    most_rollouts: int = 1,
    checkpoint_every: int = 50,
    episodes_every: int = 10,
    most_skipped_in_a_row: int = 5,
    sentinels: Sentinels = NO_LIMITS,
    evaluation: Evaluation | None = None,
) -> None:
    """Trains a policy to search; the same call continues an interrupted run.

    SIGTERM and Ctrl-C abandon a rollout, or wait for an update, and save the last finished step.

    Args:
      output_dir: The run's folder.
      words: Not used.
      seed: Of question order and sampling.
      steps: Of a rollout and its updates.
      couplings: Coupled questions in a step (each in all its languages, `method.samples` times).
      policy: Where to start.
      questions: To train on.
      question_share: Share of them that is used, in all their languages; with one seed, smaller shares are parts of
        larger ones.
      collections: To search in.
      method: Program, reward and coupling.
      objective: Policy-gradient loss.
      optimizer: Its `steps` count updates.
      layout: Shapes of training rows.
      critic: With it, PPO: advantages are a value model's, not a group's; None: no value model.
      updates_per_rollout: Mini-batches that a rollout is cut into, one update each.
      passes_per_rollout: How often a rollout is learned from.
      most_rollouts: Rollouts of a step at most: groups whose rewards are all equal are dropped, and others sampled in
        their place (DAPO's dynamic sampling); 1: nothing is dropped.
      checkpoint_every: Steps between checkpoints; the last step is always saved.
      episodes_every: Steps between written episodes.
      most_skipped_in_a_row: Non-finite updates in a row after which the run stops with a dump.
      sentinels: Limits that stop a run which collapses; what they watch is logged always.
      evaluation: Held-out evaluation before and after, or None.

    Raises:
      UserError: no output folder, one of another run, questions without collections or that a reward cannot score, or
        a run that diverged or collapsed.
      Stopped: a signal came while it learned; the last finished step is saved.
    """
    if output_dir is None:
        raise UserError("lcrag train needs a folder for its results: --output_dir=FOLDER")
    check_seed("train", seed)
    check_counts("train", steps=steps, checkpoint_every=checkpoint_every, episodes_every=episodes_every)
    check_counts("train", updates_per_rollout=updates_per_rollout, passes_per_rollout=passes_per_rollout)
    check_counts("train", most_rollouts=most_rollouts, most_skipped_in_a_row=most_skipped_in_a_row)
    check_dynamic_sampling(most_rollouts, critic)
    questions = share_of(questions, question_share, seed=seed)
    table, program = method.table(questions, group_baseline=critic is None), method.on(collections.languages)
    groups = functools.partial(groups_of_step, table, seed=seed, couplings=couplings * most_rollouts)
    groups(step=0)  # enough of them?
    held_out = evaluation.questions if evaluation else ()
    check_rewarded(method.reward, questions)
    check_rewarded(evaluation.reward if evaluation else None, held_out)
    sampler = make_sampler(policy)
    runner = make_runner(sampler, policy, collections, seed)
    check_exploration(runner.temperature)
    check_rows(layout, sampler.context, policy.mesh)
    evaluated = method.evaluated_on(collections.languages)
    for asked, begun in ((questions, program), (held_out, evaluated))[: 2 if evaluation else 1]:
        check_questions(asked, collections, runner, begun, native_collections=method.native_collections)
    if evaluation is not None:
        evaluation.check_references(policy)
    models = {**method.models, **runner.completers}
    about = provenance(seed=seed, hashes=content_hashes(policy, collections, [*questions, *held_out], models))
    with open_run(output_dir, config=operative_config(), about=about, may_change=MAY_CHANGE) as run:
        console = make_console()
        counts = {"parts": updates_per_rollout, "passes": passes_per_rollout}
        learner = Learner(policy, objective, optimizer, layout, runner.temperature, critic, **counts)
        training = _Training(
            sampler=sampler,
            runner=runner,
            method=method,
            program=program,
            learner=learner,
            most_rollouts=most_rollouts,
            episodes=couplings * most_rollouts * method.samples * max(map(len, table)),
        )
        with Checkpoints(run.checkpoints, base=learner.base) as checkpoints:
            first = learner.restore(checkpoints)
            if evaluation is not None and first == 0:
                evaluation.run(run.path, BEFORE, runner, evaluated, policy, seed=seed, console=console)
                evaluation.run_references(run.path, sampler, runner, evaluated, policy, seed=seed, console=console)
            sampler.set_params(learner.params)
            with FinishedSteps(checkpoints, lambda: learner.state, first) as finished, run.metrics(first - 1) as log:
                guard = Guard(run.path, sentinels, collections.languages, most_skipped_in_a_row)
                with training_display(steps, first_step=first, title=method.name) as display:
                    for step in range(first, steps):
                        scored, metrics = training.step(step, groups(step=step), display, finished)
                        metrics |= guard.measure(scored)
                        log.write(step, metrics)
                        display.update(step + 1, metrics)
                        last = step == steps - 1
                        guarded_episodes(run, guard, step, metrics, scored, due=step % episodes_every == 0 or last)
                        finished.finished(step, save=(step + 1) % checkpoint_every == 0 or last)
        if evaluation is not None:
            evaluation.run(run.path, AFTER, runner, evaluated, policy, seed=seed, console=console)
        save_policy(run.path / "policy", policy, learner.params)
        report_run(run.path, evaluation, console)


class _Training:
    """What a step needs: slots and programs to sample episodes, a method to score them, and a learner."""

    def __init__(
        self,
        *,
        sampler: Sampler,
        runner: Runner,
        method: Method,
        program: ProgramOf,
        learner: Learner,
        most_rollouts: int,
        episodes: int,
    ):
        self._sampler, self._runner, self._method, self._program = sampler, runner, method, program
        self._learner, self._most_rollouts = learner, most_rollouts
        self._episodes = episodes  # numbers that a step's episodes may have

    def step(
        self, step: int, drawn: Sequence[Coupled], display: TrainingDisplay, finished: FinishedSteps
    ) -> tuple[Scored, dict[str, float | int]]:
        """The rollouts of one step, which may be abandoned, and its updates: (scored episodes, metrics)."""
        sampled_before, slot_steps_before = self._sampler_counts()
        seconds: dict[str, float] = dict.fromkeys(("rollout", "retrieval_wait", "rewards"), 0.0)
        with finished.abandonable():
            collected = collect(drawn, self._most_rollouts, self._sampling(step, drawn, display, seconds))
        display.phase("update")
        started, scored = time.monotonic(), collected.scored
        measured = self._learner.learn(list(itertools.compress(scored.trajectories(), collected.kept)))
        self._sampler.set_params(self._learner.params)
        seconds["update"] = time.monotonic() - started
        sampled, slot_steps = np.subtract(self._sampler_counts(), (sampled_before, slot_steps_before))
        timing = {f"seconds/{phase}": taken for phase, taken in seconds.items()} | {
            "tokens_per_second/sampled": float(sampled) / seconds["rollout"],
            "slots/occupancy": float(sampled) / max(1.0, float(slot_steps)),
            "compiled_shapes": self._sampler.statistics.compiled_shapes,
        }
        account = collected.measurements() if self._most_rollouts > 1 else {}
        return scored, scored.measurements() | account | measured | timing

    def _sampling(self, step: int, drawn: Sequence[Coupled], display: TrainingDisplay, seconds: dict[str, float]):
        """The function that samples and scores some of a step's groups, adding up how long that takes.

        An episode's number, and so its random stream, is that of its place in all that the step may draw.
        """
        firsts = np.cumsum([0, *(len(self._method.prompts([group])) for group in drawn)])

        def sample(place: int, groups: Sequence[Coupled]) -> Scored:
            started, first = time.monotonic(), step * self._episodes + int(firsts[place])
            questions = enumerate(self._method.prompts(groups), start=first)
            records = self._runner.run(
                [(question, self._program(question), number) for number, question in questions],
                policy_version=step,
                progress=lambda done, total: display.phase("rollout", done, total),
            )
            rolled_out = time.monotonic()
            scored = self._method.score(records, step)
            seconds["rollout"] += rolled_out - started
            seconds["retrieval_wait"] += self._runner.statistics.retrieval_wait_seconds
            seconds["rewards"] += time.monotonic() - rolled_out
            return scored

        return sample

    def _sampler_counts(self) -> tuple[int, int]:
        statistics = self._sampler.statistics
        return statistics.sampled_tokens, statistics.slot_steps


def guarded_episodes(
    run: RunFolder, guard: Guard, step: int, metrics: Mapping[str, float | int], scored: Scored, *, due: bool
) -> None:
    """Writes the episodes of a step where they are due, or where they show why the run must not go on.

    Raises:
      UserError: it must not.
    """
    reason_to_stop = guard.reason_to_stop(step, metrics, scored)
    if reason_to_stop or due:
        write_episodes(run, step, scored)
    if reason_to_stop:
        raise UserError(reason_to_stop)


def write_episodes(run: RunFolder, step: int, scored: Scored) -> None:
    """Writes every episode of a step with its rewards."""
    rows = (
        episode_json(record, group=group, rewards={name: values[index] for name, values in scored.rewards.items()})
        for index, (record, group) in enumerate(zip(scored.records, scored.groups, strict=True))
    )
    run.write_episodes(step, rows)

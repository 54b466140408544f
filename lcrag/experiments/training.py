"""`lcrag train`: reinforcement learning, from rollouts to a held-out table. Reads top to bottom."""

import functools
import pathlib
import time
from collections.abc import Sequence

import gin
import jax
import numpy as np

from lcrag.data.questions import Question
from lcrag.data.shares import share_of
from lcrag.display import TrainingDisplay, make_console, training_display
from lcrag.episodes import Runner, episode_json
from lcrag.errors import UserError
from lcrag.experiments.checking import check_counts, check_questions, check_rows
from lcrag.experiments.evaluating import Evaluation
from lcrag.experiments.learner import decoder_functions, policy_update
from lcrag.experiments.method import Method, ProgramOf, Scored
from lcrag.experiments.parts import Policy, content_hashes, make_runner, make_sampler
from lcrag.experiments.reporting import AFTER, BEFORE, report_run
from lcrag.experiments.saving import save_policy
from lcrag.experiments.sentinels import NO_LIMITS, Guard, Sentinels
from lcrag.learning import (
    Layout,
    Optimizer,
    PolicyGradient,
    TrainState,
    initial_state,
    make_score,
    pack,
)
from lcrag.learning.checkpoints import Checkpoints, abstract_state
from lcrag.policy import join, param_shardings, split_trainable
from lcrag.policy.fingerprint import parameter_fingerprint
from lcrag.retrieval import SearchableCollections
from lcrag.runs import RunFolder, open_run, provenance
from lcrag.sampling import Sampler

MAY_CHANGE = (
    "train.steps",
    "adamw.steps",
    "train.checkpoint_every",
    "train.episodes_every",
    "remote_collections.url",
    "train.sentinels",
    "Sentinels.least",
    "Sentinels.most",
    "Sentinels.patience",
    "Sentinels.shown",
)


@gin.configurable
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
    updates_per_rollout: int = 1,
    checkpoint_every: int = 50,
    episodes_every: int = 10,
    most_skipped_in_a_row: int = 5,
    sentinels: Sentinels = NO_LIMITS,
    evaluation: Evaluation | None = None,
) -> None:
    """Trains a policy to search; the same call continues an interrupted run.

    Args:
      output_dir: The run's folder.
      words: Not used.
      seed: Of question order and sampling.
      steps: Rollouts, each followed by its updates.
      couplings: Coupled questions in a rollout (each in all its languages, `method.samples` times).
      policy: Where to start.
      questions: To train on.
      question_share: Share of them that is used, in all their languages; with one seed, smaller shares are parts of
        larger ones.
      collections: To search in.
      method: Program, reward and coupling.
      objective: Policy-gradient loss.
      optimizer: Its `steps` count updates.
      layout: Shapes of training rows.
      updates_per_rollout: Mini-batches that a rollout is cut into, one update each.
      checkpoint_every: Steps between checkpoints; the last step is always saved.
      episodes_every: Steps between written episodes.
      most_skipped_in_a_row: Non-finite updates in a row after which the run stops with a dump.
      sentinels: Limits that stop a run which collapses; what they watch is logged always.
      evaluation: Held-out evaluation before and after, or None.

    Raises:
      UserError: no output folder, one of another run, questions without collections, or a run that diverged or
        collapsed.
    """
    if output_dir is None:
        raise UserError("lcrag train needs a folder for its results: --output_dir=FOLDER")
    check_counts("train", steps=steps, checkpoint_every=checkpoint_every, episodes_every=episodes_every)
    check_counts("train", updates_per_rollout=updates_per_rollout, most_skipped_in_a_row=most_skipped_in_a_row)
    questions = share_of(questions, question_share, seed=seed)
    table, program = method.table(questions), method.on(collections.languages)
    method.questions(table, seed=seed, step=0, couplings=couplings)  # enough of them?
    sampler = make_sampler(policy)
    runner = make_runner(sampler, policy, collections, seed)
    check_rows(layout, sampler.context, policy.mesh)
    asked = [*questions, *(evaluation.questions if evaluation else ())]
    check_questions(asked, collections, runner, program)  # a program once begun is known to gin, and so to config.gin
    about = provenance(seed=seed, hashes=content_hashes(policy, collections, asked))
    with open_run(output_dir, config=gin.operative_config_str(), about=about, may_change=MAY_CHANGE) as run:
        console = make_console()
        training = _Training(
            sampler=sampler,
            runner=runner,
            method=method,
            program=program,
            policy=policy,
            objective=objective,
            optimizer=optimizer,
            layout=layout,
            parts=updates_per_rollout,
        )
        with Checkpoints(run.checkpoints, base=training.base) as checkpoints:
            first = training.restore(checkpoints)
            if evaluation is not None and first == 0:
                evaluation.run(run.path, BEFORE, runner, program, policy, seed=seed, console=console)
                evaluation.run_references(run.path, sampler, runner, program, policy, seed=seed, console=console)
                sampler.set_params(training.params)
            with run.metrics(first - 1) as log, training_display(steps, first_step=first, title=method.name) as display:
                guard = Guard(run.path, sentinels, collections.languages, most_skipped_in_a_row)
                for step in range(first, steps):
                    drawn = method.questions(table, seed=seed, step=step, couplings=couplings)
                    scored, metrics = training.step(step, drawn, display)
                    metrics |= guard.measure(scored)
                    log.write(step, metrics)
                    display.update(step + 1, metrics)
                    reason_to_stop = guard.reason_to_stop(step, metrics, scored)
                    if reason_to_stop or step % episodes_every == 0 or step == steps - 1:
                        write_episodes(run, step, scored)
                    if reason_to_stop:
                        raise UserError(reason_to_stop)
                    if (step + 1) % checkpoint_every == 0 or step == steps - 1:
                        checkpoints.save(step + 1, training.state)
        if evaluation is not None:
            evaluation.run(run.path, AFTER, runner, program, policy, seed=seed, console=console)
        save_policy(run.path / "policy", policy, training.params)
        report_run(run.path, evaluation, console)


class _Training:
    """The train state and the functions of a step."""

    def __init__(
        self,
        *,
        sampler: Sampler,
        runner: Runner,
        method: Method,
        program: ProgramOf,
        policy: Policy,
        objective: PolicyGradient,
        optimizer: Optimizer,
        layout: Layout,
        parts: int,
    ):
        self._sampler, self._runner, self._method, self._program = sampler, runner, method, program
        self._layout, self._parts = layout, parts
        shardings, _ = split_trainable(policy.config, param_shardings(policy.config, policy.mesh))
        params, self._frozen = split_trainable(policy.config, policy.params)
        self.base = parameter_fingerprint(self._frozen) if self._frozen else None
        self._update = policy_update(policy.config, policy.mesh, objective, optimizer, runner.temperature)
        self._reference = None
        if objective.kl_coefficient:
            score = make_score(*decoder_functions(policy.config, policy.mesh), policy.mesh, runner.temperature)
            self._reference = functools.partial(score, params, frozen=self._frozen)
            # the update gives its state's memory away, and the reference's parameters are still wanted
            copy = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 0, tree), out_shardings=shardings)
            params = copy(params)
        self.state: TrainState = initial_state(params, optimizer, policy.mesh, shardings)

    def restore(self, checkpoints: Checkpoints) -> int:
        """Continues from the latest checkpoint if there is one; returns the first step to do."""
        step = checkpoints.latest_step()
        if step is None:
            return 0
        wanted = abstract_state(self.state)
        jax.tree.map(lambda leaf: leaf.delete(), self.state)  # one state has room, two may not
        self.state = checkpoints.restore(wanted)
        self._sampler.set_params(self.params)
        return step

    @property
    def params(self):
        """All parameters as they are now, frozen ones included."""
        return join(self.state.params, self._frozen)

    def step(self, step: int, questions: Sequence[Question], display: TrainingDisplay):
        """One rollout and its updates: (scored episodes, metrics)."""
        started = time.monotonic()
        sampled_before, slot_steps_before = self._sampler_counts()
        programs = [
            (question, self._program(question), step * len(questions) + number)
            for number, question in enumerate(questions)
        ]
        records = self._runner.run(
            programs, policy_version=step, progress=lambda done, total: display.phase("rollout", done, total)
        )
        rolled_out = time.monotonic()
        scored = self._method.score(records, step)
        rewarded = time.monotonic()
        display.phase("update")
        measured = self._learn(scored)
        updated = time.monotonic()
        sampled, slot_steps = np.subtract(self._sampler_counts(), (sampled_before, slot_steps_before))
        timing = {
            "seconds/rollout": rolled_out - started,
            "seconds/retrieval_wait": self._runner.statistics.retrieval_wait_seconds,
            "seconds/rewards": rewarded - rolled_out,
            "seconds/update": updated - rewarded,
            "tokens_per_second/sampled": float(sampled) / (rolled_out - started),
            "slots/occupancy": float(sampled) / max(1.0, float(slot_steps)),
            "compiled_shapes": self._sampler.statistics.compiled_shapes,
        }
        return scored, scored.measurements() | measured | timing

    def _sampler_counts(self) -> tuple[int, int]:
        statistics = self._sampler.statistics
        return statistics.sampled_tokens, statistics.slot_steps

    def _learn(self, scored: Scored) -> dict[str, float]:
        trajectories = scored.trajectories()
        measured: list[dict[str, float]] = []
        for part in range(self._parts):
            batch = pack(trajectories[part :: self._parts], self._layout)
            if self._reference is not None:
                batch = batch.replace(reference_log_probabilities=jax.device_get(self._reference(batch)))
            with jax.transfer_guard("disallow"):
                self.state, metrics = self._update(self.state, batch, self._frozen)
                measured.append({name: float(value) for name, value in jax.device_get(metrics).items()})
        self._sampler.set_params(self.params)
        means = {name: float(np.mean([each[name] for each in measured])) for name in measured[0]}
        counts = {name: value for name, value in measured[-1].items() if name.startswith("update/")}
        # later mini-batches are off-policy by design: only the first compares the two programs
        return means | counts | {"sampling_training_gap": measured[0]["sampling_training_gap"]}


def write_episodes(run: RunFolder, step: int, scored: Scored) -> None:
    """Writes every episode of a step with its rewards."""
    rows = (
        episode_json(record, group=group, rewards={name: values[index] for name, values in scored.rewards.items()})
        for index, (record, group) in enumerate(zip(scored.records, scored.groups, strict=True))
    )
    run.write_episodes(step, rows)

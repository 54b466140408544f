"""Supervised fine-tuning: from rows of demonstrations to the policy with the lowest validation loss."""

import functools
import math
import pathlib
import time
from typing import Any

import gin

from lcrag.curation.rows import RowContext, RowSource, rows_fingerprint, spans_of
from lcrag.data.questions import rows_of_step
from lcrag.episodes import Chat
from lcrag.errors import Count, Positive, Seed, UserError, typed
from lcrag.learning import Layout, Optimizer, Supervised
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import SupervisedLearner, frozen_fingerprint
from lcrag.policy import Policy, save_policy
from lcrag.retrieval import SearchableCollections
from lcrag.runs import open_run, operative_config, provenance
from lcrag.runs.display import make_console, progress_display
from lcrag.runs.folder import Trackers
from lcrag.train.evaluation import AFTER, Evaluation, report_run, was_finished
from lcrag.train.method import Method
from lcrag.train.rl import HARDWARE
from lcrag.train.rollout import Lanes, Rollouts
from lcrag.train.steps import (
    Notices,
    StepCheckpoints,
    check_finite,
    check_rows,
    content_hashes,
    learning_flops,
    memory_metrics,
    rate_metrics,
)

MAY_CHANGE = (
    *HARDWARE,
    *("sft.steps", "sft.epochs", "sft.patience", "sft.validate_every", "adamw.steps", "sft/adamw.steps"),
    *("remote_collections.url", "Evaluation.reading"),
    *("Trackers.names", "Trackers.project", "Trackers.offline"),
)


@gin.configurable
@typed
def sft(
    output_dir: pathlib.Path,
    *,
    seed: Seed,  # of the order of the rows
    rows_per_step: Count,  # an epoch is the number of rows / rows_per_step
    steps: Count | None = None,  # maximum number of updates
    epochs: Positive | None = None,  # instead of `steps`: how often each row is learned
    policy: Policy,  # the initial one; its parameters are donated
    rows: RowSource,
    validation_rows: RowSource,
    objective: Supervised,
    optimizer: Optimizer,  # its `steps` count updates; None: those of the run
    layout: Layout,  # shapes of the packed rows
    chat: Chat,  # how prompts are given to a model with a chat template
    trackers: Trackers,  # where metrics go in addition to metrics.jsonl
    validate_every: Count = 50,  # steps between validations, each with a checkpoint; the last step is always validated
    patience: Count | None = None,  # validations without a new lowest loss after which the run stops; None: never
    max_consecutive_skips: Count = 5,  # non-finite updates in a row after which the run stops
    method: Method | None = None,  # whose program is demonstrated and evaluated, if rows or the evaluation need one
    collections: SearchableCollections | None = None,  # that the program searches
    lanes: Lanes | None = None,  # samplers of the evaluation
    evaluation: Evaluation | None = None,  # on held-out questions, before and after
) -> None:
    """Trains a policy to imitate demonstrations; the same call continues an interrupted run.

    SIGTERM and Ctrl-C wait for the running step and save it.

    Raises:
      UserError: an output folder of another run or of other rows, rows that cannot be used, questions that cannot
        be evaluated, or a diverged run.
      Stopped: a signal came while it learned; the last finished step is saved.
    """
    if (steps is None) == (epochs is None):
        raise UserError(
            f"sft.steps is {steps} and sft.epochs {epochs}: set one of them, the number of updates or of passes over"
            " the rows"
        )

    # --- The rows: whole demonstrations as tokens, of which the policy's own are learned.
    longest = max(layout.row_lengths)
    check_rows(layout, longest, policy.mesh)
    chat.check(policy.tokenizer)
    context = RowContext(
        tokenizer=policy.tokenizer,
        chat=chat,
        longest_tokens=min(longest, policy.config.max_positions),
        program=None if method is None or collections is None else method.program_for(collections.languages),
        search=None if collections is None else collections.search,
    )
    table, validation = list(rows(context)), list(validation_rows(context))
    if not validation:
        raise UserError("there are no validation rows, so no loss to stop on: give sft.validation_rows some")
    if rows_per_step > len(table):
        raise UserError(
            f"there are {len(table)} rows for steps of {rows_per_step}: lower sft.rows_per_step or add rows"
        )
    if steps is None:
        steps = math.ceil((epochs or 0) * len(table) / rows_per_step)
    optimizer = optimizer.with_updates(1, steps)
    drawn = functools.partial(rows_of_step, len(table), seed=seed, size=rows_per_step)

    rollouts, trained_on = None, dict[str, Any]()  # of the evaluation
    if evaluation is not None:
        if method is None or collections is None or lanes is None:
            raise UserError(
                "sft.evaluation needs a program: set sft.method, .collections and .lanes, or sft.evaluation to None"
            )
        evaluation, trained_on = evaluation.after_training(context.demonstrated)
        rollouts = Rollouts(lanes, policy, collections, method, seed)
        evaluation.check(rollouts)
    hashes = content_hashes(policy, collections, evaluation.questions if evaluation else ())
    hashes |= {"rows": rows_fingerprint(table), "validation_rows": rows_fingerprint(validation)}
    about, config = provenance(seed=seed, hashes=hashes) | trained_on, operative_config()
    with (
        open_run(output_dir, config=config, about=about, may_change=MAY_CHANGE) as run,
        Checkpoints(run.checkpoints, base=frozen_fingerprint(policy)) as checkpoints,
    ):
        console = make_console()
        learner = SupervisedLearner(policy, objective, optimizer, layout)
        first = learner.restore(checkpoints)
        if first > steps or (first == steps and checkpoints.best_step() is None):  # interrupted before a validation
            lack = "fewer" if first > steps else "no more, and none was validated"
            raise UserError(f"{run.path} has done {first} steps; sft.steps or .epochs ask for {lack}: raise them")

        def stops(step: int) -> bool:
            best = checkpoints.best_step() or 0
            return patience is not None and step - best >= patience * validate_every

        if was_finished(run.path, first, first == steps or stops(first)):
            report_run(run.path, evaluation, console)
            return
        if first == 0:
            run.write_rows([{"spans": spans_of(table[row], policy.tokenizer)} for row in drawn(step=0)])
            if evaluation is not None and rollouts is not None:
                evaluation.run_before(run.path, rollouts, learner.params, seed=seed, console=console)
        with (
            StepCheckpoints(checkpoints, lambda: learner.state, first) as saved,
            run.metrics(first - 1, trackers) as log,
            progress_display("SFT", steps, first=first) as display,
        ):
            notices = Notices(display.say)
            if first < steps:
                display.say(f"training: steps {first:,} to {steps - 1:,} of {rows_per_step:,} rows")
            for step in range(first, steps):
                if stops(step):
                    best = checkpoints.best_step()
                    display.say(f"stopped at step {step}: no lower validation loss since step {best or 0}")
                    break
                initial: dict[str, float] = {}
                if step == 0:
                    display.phase("validation")
                    initial = {"validation/initial_loss": learner.loss(validation, rows_per_step)}

                # --- Update.
                display.phase("update")
                learned = [table[row] for row in drawn(step=step)]
                started = time.monotonic()
                metrics = learner.learn(learned) | initial
                seconds = time.monotonic() - started

                # --- Validation, every few steps.
                validated = (step + 1) % validate_every == 0 or step == steps - 1
                if validated:
                    display.phase("validation")
                    metrics["validation/loss"] = learner.loss(validation, rows_per_step)

                # --- Log and checkpoint.
                tokens = sum(len(row.tokens) for row in learned)
                metrics |= {"seconds/update": seconds, "tokens_per_second/trained": tokens / seconds}
                metrics |= rate_metrics("update", policy, learning_flops(policy.config, learned), seconds)
                metrics |= memory_metrics() | {"data/epoch": (step + 1) * rows_per_step / len(table)}
                log.write(step, metrics)
                display.update(step + 1, metrics)
                notices(step, metrics)
                check_finite(metrics, step, max_consecutive_skips, run.path)
                saved.finish(step, save=validated, validation_loss=metrics.get("validation/loss"))
        best = learner.take_best(checkpoints)
        console.print(f"the lowest validation loss was that of step {best}", highlight=False)
        if evaluation is not None and rollouts is not None:
            evaluation.run(run.path, AFTER, rollouts, learner.params, seed=seed, console=console)
        save_policy(run.path / "policy", policy, learner.params)
        report_run(run.path, evaluation, console)

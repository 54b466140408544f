"""`lcrag sft`: supervised fine-tuning, from rows to the policy with the lowest validation loss."""

import functools
import math
import pathlib
import time
from collections.abc import Sequence

from lcrag.composition.components import (
    configured_chat,
    configured_sinks,
    content_hashes,
    make_runner,
    make_sampler,
)
from lcrag.composition.configuration import operative_config
from lcrag.composition.sft_rows import RowContext, RowSource, rows_fingerprint, spans_of
from lcrag.data.batches import rows_of_step
from lcrag.errors import UserError
from lcrag.learning import Layout, Optimizer, Supervised, Trajectory
from lcrag.learning.checkpoints import Checkpoints
from lcrag.learning.learners import SupervisedLearner, frozen_fingerprint
from lcrag.limits import Count, Seed
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.runs import open_run, provenance
from lcrag.runs.display import make_console, progress_display
from lcrag.train.checking import check_rewarded, check_rows
from lcrag.train.evaluation import Evaluation
from lcrag.train.held_out import BoundEvaluation
from lcrag.train.method import Method
from lcrag.train.policy_export import save_policy
from lcrag.train.rl import HARDWARE
from lcrag.train.run_report import report_run
from lcrag.train.step_checkpoints import StepCheckpoints
from lcrag.train.utilisation import Utilisation, memory_metrics, utilisation_of

MAY_CHANGE = (
    *HARDWARE,
    *("sft.steps", "sft.patience", "adamw.steps", "sft/adamw.steps", "remote_collections.url", "Evaluation.reading"),
    *(f"MetricsLog.{part}" for part in ("sinks", "project", "offline")),
)
SAME_HASHES = ("rows", "validation_rows")


def sft(
    output_dir: pathlib.Path,
    words: Sequence[str] = (),
    *,
    seed: Seed,
    steps: Count,
    rows_per_step: Count,
    policy: Policy,
    rows: RowSource,
    validation_rows: RowSource,
    objective: Supervised,
    optimizer: Optimizer,
    layout: Layout,
    validate_every: Count = 50,
    patience: Count | None = None,
    most_skipped_in_a_row: Count = 5,
    method: Method | None = None,
    collections: SearchableCollections | None = None,
    evaluation: Evaluation | None = None,
) -> None:
    """Trains a policy to imitate demonstrations; the same call continues an interrupted run.

    SIGTERM and Ctrl-C wait for the running step and save it.

    Args:
      output_dir: The run's folder.
      words: Not used.
      seed: Seed of the order of the rows.
      steps: Maximum number of updates; an epoch is the number of rows / rows_per_step.
      rows_per_step: Demonstrations of one update.
      policy: The initial policy.
      rows: Makes the training demonstrations.
      validation_rows: Makes the validation demonstrations.
      objective: Supervised loss.
      optimizer: Its `steps` count updates.
      layout: Shapes of the packed rows.
      validate_every: Steps between validations, each with a checkpoint; the last step is always validated.
      patience: Validations without a new lowest loss after which the run stops; None: never.
      most_skipped_in_a_row: Non-finite updates in a row after which the run stops.
      method: The method whose program is demonstrated and evaluated, if rows or the evaluation need one.
      collections: The collections that the program searches.
      evaluation: Held-out evaluation before and after, or None.

    Raises:
      UserError: an output folder of another run or of other rows, rows that cannot be used, questions that cannot
        be evaluated, or a diverged run.
      Stopped: a signal came while it learned; the last finished step is saved.
    """
    sinks, longest = configured_sinks(), max(layout.row_lengths)
    check_rows(layout, longest, policy.mesh)
    longest = min(longest, policy.config.max_positions)
    table, validation = made_rows(rows, validation_rows, policy, longest, method, collections)
    if rows_per_step > len(table):
        raise UserError(
            f"there are {len(table)} rows for steps of {rows_per_step}: lower sft.rows_per_step or add rows"
        )
    held_out = None if evaluation is None else bound_evaluation(evaluation, policy, method, collections, seed)
    hashes = content_hashes(policy, collections, evaluation.questions if evaluation else ())
    hashes |= {"rows": rows_fingerprint(table), "validation_rows": rows_fingerprint(validation)}
    about, config = provenance(seed=seed, hashes=hashes), operative_config()
    drawn = functools.partial(rows_of_step, len(table), seed=seed, size=rows_per_step)
    with (
        open_run(output_dir, config=config, about=about, may_change=MAY_CHANGE, same_hashes=SAME_HASHES) as run,
        Checkpoints(run.checkpoints, base=frozen_fingerprint(policy)) as checkpoints,
    ):
        console = make_console()
        learner = SupervisedLearner(policy, objective, optimizer, layout)
        first = learner.restore(checkpoints)
        if first == 0:
            run.write_rows([{"spans": spans_of(table[row], policy.tokenizer)} for row in drawn(step=0)])
            if held_out is not None:
                held_out.before(run.path, learner.params, console)
        with (
            StepCheckpoints(checkpoints, learner, first) as saved,
            run.metrics(first - 1, sinks) as log,
            progress_display("SFT", steps, first=first) as display,
        ):
            utilisation = utilisation_of(policy)
            for step in range(first, steps):
                best = checkpoints.best_step() or 0
                if patience is not None and step - best >= patience * validate_every:
                    display.say(f"stopped at step {step}: no lower validation loss since step {best}")
                    break
                start = {} if step else {"validation/initial_loss": learner.loss(validation, rows_per_step)}
                display.phase("update")
                metrics = timed_update(learner, [table[row] for row in drawn(step=step)], utilisation) | start
                metrics["data/epoch"] = (step + 1) * rows_per_step / len(table)
                validated = (step + 1) % validate_every == 0 or step == steps - 1
                if validated:
                    display.phase("validation")
                    metrics["validation/loss"] = learner.loss(validation, rows_per_step)
                log.write(step, metrics)
                display.update(step + 1, metrics)
                check_finite(metrics, step, most_skipped_in_a_row)
                saved.finish(step, save=validated, validation_loss=metrics.get("validation/loss"))
        best = learner.take_best(checkpoints)
        console.print(f"the lowest validation loss was that of step {best}", highlight=False)
        if held_out is not None:
            held_out.after(run.path, learner.params, console)
        save_policy(run.path / "policy", policy, learner.params)
        report_run(run.path, evaluation, console)


def made_rows(
    rows: RowSource,
    validation_rows: RowSource,
    policy: Policy,
    longest_tokens: int,
    method: Method | None,
    collections: SearchableCollections | None,
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Makes the training and validation rows; the other arguments are for `RowContext`.

    Raises:
      UserError: rows cannot be made, or there are none to validate on.
    """
    chat = configured_chat()
    chat.check(policy.tokenizer)
    context = RowContext(
        tokenizer=policy.tokenizer, chat=chat, longest_tokens=longest_tokens, method=method, collections=collections
    )
    table, validation = (list(make(context)) for make in (rows, validation_rows))
    if not validation:
        raise UserError("there are no validation rows, so no loss to stop on: give sft.validation_rows some")
    return table, validation


def bound_evaluation(
    evaluation: Evaluation,
    policy: Policy,
    method: Method | None,
    collections: SearchableCollections | None,
    seed: int,
) -> BoundEvaluation:
    """Returns the held-out evaluation, with its own sampler.

    Raises:
      UserError: it does not fit the program and the collections.
    """
    if method is None or collections is None:
        raise UserError("sft.evaluation needs a program: set sft.method and sft.collections, or sft.evaluation to None")
    check_rewarded(evaluation.reward, evaluation.questions)
    sampler = make_sampler(policy)
    runner = make_runner(sampler, policy, collections, seed, may_wait=True)
    return BoundEvaluation(evaluation, policy, method, collections, sampler, runner, seed)


def timed_update(learner: SupervisedLearner, rows: Sequence[Trajectory], utilisation: Utilisation) -> dict[str, float]:
    """Makes one update; returns its metrics, including its time and device utilisation."""
    started = time.monotonic()
    metrics = learner.learn(rows)
    seconds = time.monotonic() - started
    tokens = sum(len(row.tokens) for row in rows)
    timing = {"seconds/update": seconds, "tokens_per_second/trained": tokens / seconds}
    return metrics | timing | utilisation.update(rows, seconds) | memory_metrics()


def check_finite(metrics: dict[str, float], step: int, most_skipped_in_a_row: int) -> None:
    """Checks that a run has not diverged.

    Raises:
      UserError: it has diverged.
    """
    remedy = "begin anew with a lower adamw.learning_rate"
    if metrics["update/non_finite_in_a_row"] >= most_skipped_in_a_row:
        raise UserError(
            f"{most_skipped_in_a_row} updates in a row were not finite, so the run stopped at step {step}: {remedy}"
        )
    if not math.isfinite(metrics.get("validation/loss", 0.0)):
        raise UserError(f"the validation loss is not finite, so the run stopped at step {step}: {remedy}")

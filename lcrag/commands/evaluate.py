"""`lcrag evaluate`: evaluates a policy without training it."""

import dataclasses
import pathlib
from collections.abc import Sequence

import gin

from lcrag.commands.records import trained_by_run
from lcrag.errors import Seed, UserError, typed
from lcrag.evaluation import METRIC_NAMES, place_tables, read_rows, summary_table, to_markdown
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.runs import differences, is_writer, operative_config, provenance, write_json, write_text, writer_does
from lcrag.runs.display import make_console
from lcrag.runs.folder import RUN, changed_content, read_config, read_provenance
from lcrag.train.evaluation import EVALUATION, REPORT, Evaluation, answers_path, print_end
from lcrag.train.method import Method
from lcrag.train.rollout import Lanes, Rollouts
from lcrag.train.steps import content_hashes


@gin.configurable
@typed
def evaluate(
    output_dir: pathlib.Path,
    *,
    seed: Seed,
    policy: Policy,
    collections: SearchableCollections,
    method: Method,
    lanes: Lanes,
    evaluation: Evaluation,
    label: str | None = None,
    metrics: Sequence[str] = (
        *("answered", "c3_recall_bergen", "c3_recall", "flexible_exact_match", "exact_match", "mixed_f1"),
        *("correct_language", "searches", "answer_retrieved", "answer_shown"),
    ),
) -> None:
    """Evaluates a policy without training; writes `evaluation.json`, answers, episodes and `report.md`.

    Args:
      label: Name of the results in tables; None: the method's.
      metrics: Metrics of the tables; `evaluation.json` has all.
    """
    if unknown := [metric for metric in metrics if metric not in METRIC_NAMES]:
        raise UserError(f"there is no metric {unknown[0]!r} for evaluate.metrics: use {', '.join(METRIC_NAMES)}")
    if evaluation.seen_languages is None and (trained_by := trained_by_run(policy.name)) is not None:
        seen = read_provenance(trained_by.with_name(RUN)).get("seen_languages")
        evaluation = dataclasses.replace(evaluation, seen_languages=seen)
    name = method.name if label is None else label
    rollouts = Rollouts(lanes, policy, collections, method, seed)
    evaluation.check(rollouts)
    models = rollouts.runner.completers
    about = provenance(seed=seed, hashes=content_hashes(policy, collections, evaluation.questions, models))
    about["seen_languages"] = evaluation.languages_seen
    config = operative_config()

    def claim_name() -> None:
        path = answers_path(output_dir, name, "config").with_suffix(".gin")
        record = answers_path(output_dir, name, "run").with_suffix(".json")
        difference = differences(read_config(path), config, may_change=("evaluate.metrics",)) if path.exists() else None
        if not difference and record.exists():
            difference = changed_content(read_provenance(record).get("hashes", {}), about["hashes"])
        if difference:
            raise UserError(
                f"{output_dir} holds another evaluation called {name!r}: {difference};"
                " choose another evaluate.label or --output_dir"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, about)
        write_text(path, config)

    writer_does(claim_name)
    console = make_console()
    rows = evaluation.run(output_dir, name, rollouts, policy.params, seed=seed, console=console)
    if is_writer():
        results = place_tables(read_rows(output_dir / EVALUATION), metrics)
        write_text(output_dir / REPORT, "\n".join(["# Evaluation", *map(to_markdown, results)]))
        summary = summary_table(rows, f"{name}: {evaluation.split} questions, all languages", metrics, brief=True)
        print_end(console, summary, output_dir)

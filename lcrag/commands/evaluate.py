"""`lcrag evaluate`: evaluates a policy without training it."""

import pathlib
from collections.abc import Sequence

import gin

from lcrag.errors import UserError, typed
from lcrag.evaluation import METRIC_NAMES, place_tables, to_rich
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.runs import operative_config, provenance, writer_does
from lcrag.runs.answers import claim_label
from lcrag.runs.display import make_console
from lcrag.train.evaluation import Evaluation
from lcrag.train.load import content_hashes
from lcrag.train.method import Method
from lcrag.train.rollout import Lanes, Rollouts


@gin.configurable
@typed
def evaluate(
    output_dir: pathlib.Path,
    *,
    seed: int,
    policy: Policy,
    collections: SearchableCollections,
    method: Method,
    lanes: Lanes,
    evaluation: Evaluation,
    label: str | None = None,
    metrics: Sequence[str] = (
        "c3_recall_bergen",
        "flexible_exact_match",
        "exact_match",
        "correct_language",
        "searches",
        "retrieval_rounds",
    ),
) -> None:
    """Evaluates a policy without training; writes `evaluation.json`, answers and episodes, and prints a table.

    Args:
      label: Name of the results in tables; None: the method's.
      metrics: Metrics of the printed table; all are written.
    """
    if unknown := [metric for metric in metrics if metric not in METRIC_NAMES]:
        raise UserError(f"there is no metric {unknown[0]!r} for evaluate.metrics: use {', '.join(METRIC_NAMES)}")
    label = method.name if label is None else label
    rollouts = Rollouts(lanes, policy, collections, method, seed)
    evaluation.check(rollouts)
    models = rollouts.runner.completers
    about = provenance(seed=seed, hashes=content_hashes(policy, collections, evaluation.questions, models))
    config = operative_config()
    writer_does(lambda: claim_label(output_dir, label, config, about))
    console = make_console()
    rows = evaluation.run(output_dir, label, rollouts, seed=seed, console=console)
    for table in place_tables(rows, metrics):
        console.print(to_rich(table))

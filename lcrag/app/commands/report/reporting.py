"""`lcrag report`: a run's tables and its `report.md`, or those of several runs (see `comparing`)."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from lcrag.app.commands.evaluate import (
    AFTER,
    BEFORE,
    EVALUATION,
    Evaluation,
    answers_path,
    inference_runs,
    read_answers,
)
from lcrag.app.commands.report.comparing import compare_runs
from lcrag.app.display import make_console
from lcrag.app.runs import is_writer
from lcrag.app.runs.configured import read_configured
from lcrag.app.runs.folder import CONFIG
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.evaluation import (
    Answered,
    Table,
    compare,
    comparison_table,
    evaluate,
    method_table,
    read_training_log,
    to_rich,
    write_report,
)
from lcrag.methods.globalrag.analysis import PlanDiversity, diversity_table, phase_table, plan_diversity

METRICS = ("c3_recall", "flexible_exact_match", "correct_language", "searches")
REWARDED = ("reward", "tool_rate", "tool_calls")  # in place of METRICS, where answers are rewarded by their domains
COSTS = (
    *("squad_exact_match", "squad_f1", "retrieval_rounds"),
    *("sampled_tokens", "score_per_log_token", "failures_without_passage"),
)
SUBSETS = ("native_holds", "native_missing", "copyable", "translated")


def tables(folder: pathlib.Path, evaluation: Evaluation, seed: int) -> list[Table]:
    """For each way of decoding, before and after by language and subset; then every policy: results, costs, plans."""
    split, rows = evaluation.split, []
    metrics = METRICS if evaluation.reward is None else REWARDED
    groups = [
        [(split, name) for name in ("all", "seen", "zero_shot")],
        [(split, code) for code in evaluation.languages],
    ]
    groups += [[(f"{split}/{subset}", "all") for subset in own] for own in (SUBSETS, _parts(evaluation.questions))]
    found = []
    settings: dict[str, Any] = {
        "split": split,
        "seen_languages": evaluation.seen_languages,
        "languages": evaluation.languages,
    }
    for decoding in evaluation.temperatures:
        answers = {label: _answers(folder, label, decoding) for label in _labels(evaluation)}
        for label, answered in answers.items():
            rows += evaluate(answered, method=f"{label}, {decoding}", model="", seed=seed, **settings)
        found.append(
            comparison_table(
                rows,
                f"Held-out questions, {decoding}",
                groups,
                metrics,
                before=f"{BEFORE}, {decoding}",
                after=f"{AFTER}, {decoding}",
                references=[f"{label}, {decoding}" for label in evaluation.references],
                differences=compare(answers[BEFORE], answers[AFTER], **settings),
            )
        )
    labels = [f"{label}, {decoding}" for decoding in evaluation.temperatures for label in _labels(evaluation)]
    found.append(method_table(rows, "Every policy, all languages", labels, metrics, (split, "all")))
    found.append(method_table(rows, "What answers cost, all languages", labels, COSTS, (split, "all")))
    plans = diversity_table(_plans(folder, evaluation), "Plans of right answers")
    return found if plans is None else [*found, plans]


def _parts(questions: Sequence[Question]) -> list[str]:
    """The subsets of an evaluation's domains and tiers, and of both."""
    both = (f"{each.domain}/{each.tier}" for each in questions if each.domain and each.tier)
    names = (*(each.domain for each in questions), *(each.tier for each in questions), *both)
    return list(dict.fromkeys(filter(None, names)))


def _plans(folder: pathlib.Path, evaluation: Evaluation) -> dict[str, list[PlanDiversity]]:
    """The plans of every policy in each way of decoding that asked more than once."""
    asked = {
        f"{label}, {decoding}": (label, decoding)
        for decoding in evaluation.temperatures
        for label in _labels(evaluation)
        if len(inference_runs(folder, label, decoding)) > 1
    }
    return {name: [plan_diversity(_answers(folder, *each))] for name, each in asked.items()}


def _answers(folder: pathlib.Path, label: str, decoding: str) -> list[Answered]:
    """The answers of all inference runs together."""
    return [answer for path in inference_runs(folder, label, decoding) for answer in read_answers(path)]


def _labels(evaluation: Evaluation) -> Sequence[str]:
    return (BEFORE, AFTER, *evaluation.references)


def report_run(folder: pathlib.Path, evaluation: Evaluation | None, console: Console) -> None:
    """Prints the tables of a finished run and writes `report.md` with its curves; one of several processes does."""
    if not is_writer():
        return
    about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    title = str(read_configured(folder / CONFIG).get("Method.name", "Training run"))
    curves = read_training_log(folder / "metrics.jsonl")
    results = tables(folder, evaluation, about["seed"]) if evaluation is not None else []
    if (times := phase_table({title: [curves]})) is not None:
        results.append(times)
    for table in results:
        console.print(to_rich(table))
    path = write_report(
        folder,
        title=title,
        summary=f"Started {about['started']}, seed {about['seed']}.",
        command=" ".join(about["command"]),
        versions={
            "commit": about["commit"] or "not in a repository",
            **about["packages"],
            "devices": ", ".join(about["devices"]),
        },
        tables=results,
        reading=evaluation.reading if evaluation else "Nothing was evaluated.",
        curves=curves,
    )
    console.print(f"The report is in {path}")


def report(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    compare: Callable[[pathlib.Path, Sequence[str], Console], pathlib.Path] = compare_runs,
    evaluation: Evaluation | None = None,
) -> None:
    """Writes the tables of several runs, or `report.md` anew for one run's folder.

    Args:
      output_dir: Where the tables of several runs go; without words, the run's folder.
      words: Folders of runs, or folders that hold some.
      compare: Writes the tables of several runs.
      evaluation: Without words: how the run was evaluated; without its answers before and after, there are no tables.

    Raises:
      UserError: no output folder, or none of a run, or a run's evaluation whose configuration is not given.
    """
    console = make_console()
    if words:
        if output_dir is None:
            raise UserError("lcrag report needs a folder for the tables of several runs: --output_dir=FOLDER")
        console.print(f"The report is in {compare(output_dir, words, console)}")
        return
    if output_dir is None or not (output_dir / "run.json").is_file():
        where = "no folder is given" if output_dir is None else f"{output_dir} is not the folder of a run"
        raise UserError(f"{where}: give a run's with --output_dir=FOLDER, or name several behind the command")
    if evaluation is None and (output_dir / EVALUATION).is_file():
        raise UserError(
            f"{output_dir} was evaluated, but nothing binds report.evaluation: name the experiment that it was trained"
            " with (--gin_file=quickstart.gin, say), and what was bound behind it"
        )
    evaluated = evaluation is not None and _is_evaluated(output_dir, evaluation)
    report_run(output_dir, evaluation if evaluated else None, console)


def _is_evaluated(folder: pathlib.Path, evaluation: Evaluation) -> bool:
    sides = [answers_path(folder, side, decoding) for side in (BEFORE, AFTER) for decoding in evaluation.temperatures]
    return all(path.is_file() for path in sides)

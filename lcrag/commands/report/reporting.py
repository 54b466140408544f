"""`lcrag report`: the tables and `report.md` of one run, or those of several runs (see `comparing`)."""

import itertools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from lcrag.commands.evaluate import Evaluation
from lcrag.commands.report.comparing import compare_runs
from lcrag.commands.report.run_folders import run_folders, stratify
from lcrag.composition.used_bindings import check_used
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.evaluation import (
    Table,
    compare,
    comparison_table,
    evaluate,
    method_table,
    read_training_log,
    step_size,
    to_rich,
    write_report,
)
from lcrag.evaluation.answerable import STRATA
from lcrag.evaluation.training_log import wall_time_table
from lcrag.methods.globalrag.analysis import diversity_table, phase_table, plan_diversity
from lcrag.runs import is_writer, read_configured
from lcrag.runs.answers import AFTER, BEFORE, EVALUATION, answers_path, inference_runs, read_answers
from lcrag.runs.display import make_console
from lcrag.runs.folder import CONFIG, RUN
from lcrag.runs.metrics import METRICS as LOG

METRICS = ("c3_recall", "flexible_exact_match", "correct_language", "searches")
PAPERS = "c3_recall_bergen"  # LcRL's tables; before and after are compared by the c3 recall that is rewarded
REWARDED = ("reward", "tool_rate", "tool_calls")  # instead of METRICS, if answers are rewarded by their domains
COSTS = (
    *("squad_exact_match", "squad_f1", "retrieval_rounds"),
    *("sampled_tokens", "total_tokens", "score_per_log_token", "failures_without_passage"),
)
SUBSETS = ("native_holds", "native_missing", "copyable", "translated")


def report(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    compare: Callable[[pathlib.Path | None, Sequence[str], Console], None] = compare_runs,
    evaluation: Evaluation | None = None,
    audit: str | None = None,
) -> None:
    """Writes the report of several runs, or rewrites `report.md` of one run.

    Args:
      output_dir: Folder for the report of several runs; without `words`, the folder of the one run.
      words: Folders of runs, or folders that contain such folders.
      compare: Writes the report of several runs, or their records.
      evaluation: Evaluation settings of the one run; tables of results also need its answers before and after training.
      audit: Folder of an audit (`lcrag audit`), with which results are also reported by whether the answers can be
        found; the rows of these strata are added to each folder's `evaluation.json`. None: no strata.

    Raises:
      UserError: there is no output folder, it is not the folder of a run, or the configuration of a run's evaluation is
        missing.
    """
    console = make_console()
    if words:
        if audit is not None:
            for folder in run_folders(words):
                stratify(folder, audit)
        compare(output_dir, words, console)
        return
    if output_dir is None or not (output_dir / RUN).is_file():
        where = "no folder is given" if output_dir is None else f"{output_dir} is not the folder of a run"
        raise UserError(f"{where}: give a run's with --output_dir=FOLDER, or name several after the command")
    if evaluation is None and (output_dir / EVALUATION).is_file():
        raise UserError(
            f"{output_dir} was evaluated, but nothing binds report.evaluation: name the experiment that it was trained"
            " with (--gin_file=quickstart.gin, say), and its further bindings"
        )
    check_used()
    if audit is not None and (output_dir / EVALUATION).is_file():
        stratify(output_dir, audit)
    report_run(output_dir, evaluation if evaluation and _is_evaluated(output_dir, evaluation) else None, console)


def _is_evaluated(folder: pathlib.Path, evaluation: Evaluation) -> bool:
    sides = itertools.product(_sides(evaluation), evaluation.temperatures)
    return all(answers_path(folder, *side).is_file() for side in sides)


def _sides(evaluation: Evaluation) -> tuple[str, ...]:
    return (BEFORE, AFTER) if evaluation.before else (AFTER,)


def report_run(folder: pathlib.Path, evaluation: Evaluation | None, console: Console) -> None:
    """Prints the tables of a finished run and writes `report.md` with training curves, in the writing process only."""
    if not is_writer():
        return
    about = json.loads((folder / RUN).read_text(encoding="utf-8"))
    title = str(read_configured(folder / CONFIG).get("Method.name", "Training run"))
    curves = read_training_log(folder / LOG)
    results = tables(folder, evaluation, about["seed"]) if evaluation is not None else []
    times = (phase_table({title: [curves]}), wall_time_table(curves))
    results += [table for table in times if table is not None]
    for table in results:
        console.print(to_rich(table))
    size = step_size(curves)
    commit, devices = about["commit"] or "not in a repository", ", ".join(about["devices"])
    path = write_report(
        folder,
        title=title,
        summary=f"Started {about['started']}, seed {about['seed']}{f', {size}' if size else ''}.",
        command=" ".join(about["command"]),
        versions={"commit": commit, **about["packages"], "devices": devices},
        tables=results,
        reading=evaluation.reading if evaluation else "Nothing was evaluated.",
        curves=curves,
    )
    console.print(f"The report is in {path}")


def tables(folder: pathlib.Path, evaluation: Evaluation, seed: int) -> list[Table]:
    """Returns the tables of a run: before and after training by decoding, then results, costs and plans by policy.

    Without an evaluation before training there is nothing to compare, and the first tables are left out.
    """
    split = evaluation.split
    metrics = METRICS if evaluation.reward is None else REWARDED
    sections = [
        [(split, name) for name in ("all", "seen", "zero_shot")],
        [(split, code) for code in evaluation.languages],
    ]
    sections += [
        [(f"{split}/{subset}", "all") for subset in own] for own in (SUBSETS, STRATA, _parts(evaluation.questions))
    ]
    settings: dict[str, Any] = {"seen_languages": evaluation.seen_languages, "languages": evaluation.languages}
    policies = (*_sides(evaluation), *evaluation.references)
    runs = {
        (label, decoding): [read_answers(path) for path in inference_runs(folder, label, decoding)]
        for decoding in evaluation.temperatures
        for label in policies
    }
    answers = {key: list(itertools.chain.from_iterable(own)) for key, own in runs.items()}
    names = {key: ", ".join(key) for key in runs}
    rows = [
        row
        for key, name in names.items()
        for row in evaluate(answers[key], method=name, model="", split=split, seed=seed, **settings)
    ]
    found = [
        comparison_table(
            rows,
            f"Held-out questions, {decoding}",
            sections,
            metrics,
            before=names[BEFORE, decoding],
            after=names[AFTER, decoding],
            references=[names[label, decoding] for label in evaluation.references],
            differences=compare(answers[BEFORE, decoding], answers[AFTER, decoding], split=split, **settings),
        )
        for decoding in (evaluation.temperatures if evaluation.before else ())
    ]
    every = metrics if evaluation.reward is not None else (PAPERS, *metrics)
    for title, own in (("Every policy", every), ("What answers cost", COSTS)):
        found.append(method_table(rows, f"{title}, all languages", list(names.values()), own, (split, "all")))
    plans = {names[key]: [plan_diversity(answers[key])] for key, own in runs.items() if len(own) > 1}
    diversity = diversity_table(plans, "Plans of right answers")
    return found if diversity is None else [*found, diversity]


def _parts(questions: Sequence[Question]) -> list[str]:
    """Returns the subsets for the domains and tiers of questions, and for combinations of both."""
    both = (f"{each.domain}/{each.tier}" for each in questions if each.domain and each.tier)
    names = (*(each.domain for each in questions), *(each.tier for each in questions), *both)
    return list(dict.fromkeys(filter(None, names)))

"""The report of one run: its tables and `report.md`."""

import itertools
import json
import pathlib
from typing import Any

from rich.console import Console

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
from lcrag.evaluation.training_log import wall_time_table
from lcrag.methods.globalrag.analysis import diversity_table, phase_table, plan_diversity
from lcrag.runs import is_writer, read_configured
from lcrag.runs.answers import AFTER, BEFORE, answers_path, inference_runs, read_answers
from lcrag.runs.folder import CONFIG, RUN
from lcrag.runs.metrics import METRICS as LOG
from lcrag.train.evaluation import Evaluation

METRICS = ("c3_recall", "flexible_exact_match", "correct_language", "searches")
PAPERS = "c3_recall_bergen"  # LcRL's tables; before and after are compared by the c3 recall that is rewarded
REWARDED = ("reward", "tool_rate", "tool_calls")  # instead of METRICS, if answers are rewarded by their domains
COSTS = (
    *("squad_exact_match", "squad_f1", "retrieval_rounds"),
    *("sampled_tokens", "total_tokens", "score_per_log_token", "failures_without_passage"),
)
SUBSETS = ("native_holds", "native_missing", "copyable", "translated")


def is_evaluated(folder: pathlib.Path, evaluation: Evaluation) -> bool:
    """Whether a folder has the answers of every policy that the evaluation of a training run asks."""
    labels = (BEFORE, AFTER) if evaluation.before else (AFTER,)
    files = itertools.starmap(answers_path, itertools.product([folder], labels, evaluation.temperatures))
    return all(map(pathlib.Path.is_file, files))


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
    split, questions = evaluation.split, evaluation.questions
    metrics = METRICS if evaluation.reward is None else REWARDED
    domains_and_tiers = [
        *(question.domain for question in questions),
        *(question.tier for question in questions),
        *(f"{question.domain}/{question.tier}" for question in questions if question.domain and question.tier),
    ]
    sections = [
        [(split, name) for name in ("all", "seen", "zero_shot")],
        [(split, code) for code in evaluation.languages],
        [(f"{split}/{subset}", "all") for subset in SUBSETS],
        [(f"{split}/{subset}", "all") for subset in dict.fromkeys(domains_and_tiers) if subset],
    ]
    settings: dict[str, Any] = {"seen_languages": evaluation.seen_languages, "languages": evaluation.languages}
    policies = (*((BEFORE,) if evaluation.before else ()), AFTER, *evaluation.references)
    runs = {
        (label, decoding): [read_answers(path) for path in inference_runs(folder, label, decoding)]
        for decoding in evaluation.temperatures
        for label in policies
    }
    answers = {key: list(itertools.chain.from_iterable(answered)) for key, answered in runs.items()}
    names = {key: ", ".join(key) for key in runs}
    rows = [
        row
        for key, name in names.items()
        for row in evaluate(answers[key], method=name, model="", split=split, seed=seed, **settings)
    ]
    compared = [
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
    by_policy = [
        method_table(rows, f"{title}, all languages", list(names.values()), columns, (split, "all"))
        for title, columns in (("Every policy", every), ("What answers cost", COSTS))
    ]
    plans = {names[key]: [plan_diversity(answers[key])] for key, answered in runs.items() if len(answered) > 1}
    diversity = diversity_table(plans, "Plans of right answers")
    return [*compared, *by_policy, *([] if diversity is None else [diversity])]

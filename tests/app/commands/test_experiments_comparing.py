"""`lcrag report RUN ...`: which runs are gathered, averaged and compared, and which are refused."""

import json
import shutil

import gin
import pytest
from experiment_parts import contents, run
from run_standins import evaluation, training_run

from lcrag import main
from lcrag.app.commands.report.run_folders import base_model, run_folders
from lcrag.evaluation import Row, write_rows


def report(*folders, output, options=()):
    gin.clear_config()
    where = [f"--output_dir={output}"] if output else []
    return main.run(["report", *map(str, folders), *where, *options])


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for method, right in (("LcRL", 0.9), ("mSearch-R1", 0.4)):
        for seed in (0, 1):
            training_run(folder / f"{method}-{seed}", method, right, seed=seed, inferences=2, labels={"before": 0.1})
    evaluation(folder / "rag", "RAG", 0.5)
    return folder


def test_runs_of_a_method_are_averaged_and_tested(runs, tmp_path, capsys):
    assert report(runs, output=tmp_path / "report", options=["--against=mSearch-R1"]) == 0
    printed, text = capsys.readouterr().out, (tmp_path / "report" / "report.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    assert rows.keys() >= {"LcRL", "mSearch-R1", "RAG"} and "before" not in rows
    assert "| LcRL | 2 / 4 |" in text and "| RAG | 1 / 1 |" in text
    for part in ("**Overall, greedy**", "c3 recall by language, toy, greedy", "by part", "Zero-shot: de.", "seed 1"):
        assert part in text
    assert "Overall, greedy" in printed and "report.md" in printed
    tables = (tmp_path / "report" / "tables.tex").read_text()
    assert tables.count(r"\begin{table}") == text.count("\n**") and r"\textbf" in tables and "$^{*}$" in tables
    assert (tmp_path / "report" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_other_labels_and_an_order(runs, tmp_path):
    options = ["--gin.compare_runs.also=('before',)", "--gin.compare_runs.order=('before', 'RAG', 'LcRL')"]
    assert report(runs, output=tmp_path / "report", options=options) == 0
    lines = [line.split(" | ")[0].strip("| ") for line in (tmp_path / "report" / "report.md").read_text().splitlines()]
    start = lines.index("before")
    assert lines[start : start + 4] == ["before", "RAG", "LcRL", "mSearch-R1"]
    assert "| before | 2 / 4 |" in (tmp_path / "report" / "report.md").read_text(), "once a seed, not once a run"


def test_a_study(tmp_path):
    for share in (0.25, 1.0):
        for seed in (0, 1):
            training_run(tmp_path / "runs" / f"{share}-{seed}", "LcRL", 0.4 + 0.4 * share, seed=seed, share=share)
    assert report(tmp_path / "runs", output=tmp_path / "report", options=["--axis=train.question_share"]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "|  | 0.25 | 1 |" in text and "LcRL [0.25]" in text
    assert (tmp_path / "report" / "study_toy_greedy.png").read_bytes().startswith(b"\x89PNG")
    options = ["--axis=Method.collections"]
    assert report(tmp_path / "runs" / "1.0-0", output=tmp_path / "named", options=options) == 0
    assert "|  | native collection |" in (tmp_path / "named" / "report.md").read_text()


def test_an_evaluated_policy_is_known_by_the_run_that_trained_it(tmp_path):
    trained = training_run(tmp_path / "trained", "LcRL", 0.5, share=0.5)
    own = evaluation(tmp_path / "later", "LcRL", 0.6, policy=str(trained / "policy"))
    assert base_model(str(trained / "policy")) == base_model("atlas/cold_start") == "atlas"
    assert base_model("/models/Qwen2.5-3B-Instruct") == "Qwen2.5-3B-Instruct"
    assert report(own, output=tmp_path / "report", options=["--axis=train.question_share"]) == 0
    assert "LcRL [0.5] (atlas)" in (tmp_path / "report" / "report.md").read_text()


def test_a_training_run_and_an_evaluation_of_one_name(tmp_path, capsys):
    """They are averaged only if they are the same method, and never if they are the same policy and seed."""
    trained = training_run(tmp_path / "trained", "LcRL", 0.5)
    elsewhere = evaluation(tmp_path / "elsewhere", "LcRL", 0.6, policy=str(trained / "policy"))
    config = elsewhere / "answers" / "policy_config.gin"
    own = config.read_text()
    config.write_text(own.replace("@native_collection", "@every_collection"))
    assert report(trained, elsewhere, output=tmp_path / "report") == 2
    assert "are both called 'LcRL', but Method.collections is" in capsys.readouterr().err
    config.write_text(own)
    assert report(trained, elsewhere, output=tmp_path / "report") == 2
    assert "are the same policy, asked with the same seed and both called 'LcRL'" in capsys.readouterr().err


def test_folders_are_found_wherever_they_lie(runs, tmp_path):
    assert [path.name for path in run_folders([str(runs)])] == [
        "LcRL-0", "LcRL-1", "mSearch-R1-0", "mSearch-R1-1", "rag",
    ]  # fmt: skip
    assert run_folders([str(runs / "rag"), str(runs / "rag")]) == [runs / "rag"]


def other_questions(runs):
    path = runs / "rag" / "answers" / "policy_greedy.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))


def another_configuration(runs):
    training_run(runs / "LcRL-9", "LcRL", 0.9, seed=9, couplings=12, inferences=2)


def lost_configuration(runs):
    (runs / "LcRL-0" / "config.gin").unlink()


def lost_answers(runs):
    (runs / "LcRL-0" / "answers" / "after_greedy.jsonl").unlink()


def torn_answers(runs):
    path = runs / "rag" / "answers" / "policy_greedy.jsonl"
    path.write_text(path.read_text()[:-20])


def lost_record(runs):
    (runs / "LcRL-0" / "run.json").unlink()


@pytest.mark.parametrize(
    ("damage", "options", "part"),
    [
        (other_questions, [], "answered different questions of toy"),
        (another_configuration, [], "are both called 'LcRL', but train.couplings is 2 there and 12 here"),
        (lost_configuration, [], "has lost the configuration of 'after'"),
        (lost_answers, [], "LcRL-0 has lost the answers of 'after' (after_greedy.jsonl)"),
        (torn_answers, [], "policy_greedy.jsonl, line 90, is no answer"),
        (lost_record, [], "run.json, which says how 'after' was made, cannot be read"),
        (None, ["--against=GRPO"], "there is no run of 'GRPO' to test against, only runs of RAG, mSearch-R1, LcRL"),
        (None, ["--axis=train.shares"], "sets no train.shares"),
        (None, ["--gin.compare_runs.metrics=('bleu',)"], "there is no metric 'bleu'"),
    ],
)
def test_what_is_no_comparison(damage, options, part, runs, tmp_path, capsys):
    if damage is not None:
        damage(runs)
    assert report(runs, output=tmp_path / "report", options=options) == 2
    error = capsys.readouterr().err
    assert error.startswith("lcrag: error: ") and error.count("\n") == 1 and part in error
    assert not (tmp_path / "report").exists()


def test_judgements_of_a_search_are_no_method(runs, tmp_path, capsys):
    where = dict(model="m", dataset="miracl", split="dev", language="fi", metric="mrr@10", count=9, seed=0)
    (runs / "indexes").mkdir()
    write_rows(runs / "indexes" / "evaluation.json", [Row(method="retrieval", value=0.5, **where)])
    assert report(runs, output=tmp_path / "report") == 0
    capsys.readouterr()
    assert report(runs / "indexes", output=tmp_path / "other") == 2
    assert "no policy was evaluated in" in capsys.readouterr().err


def test_folders_that_are_none(runs, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert report(tmp_path / "nowhere", output=tmp_path / "report") == 2
    assert report(tmp_path / "empty", output=tmp_path / "report") == 2
    assert report(runs, output=runs / "LcRL-0") == 2
    assert report(runs, output=None) == 2
    errors = capsys.readouterr().err.splitlines()
    parts = ("there is no folder", "nothing in", "is a run itself", "--output_dir=FOLDER")
    assert len(errors) == 4 and all(part in error for part, error in zip(parts, errors, strict=True))


def test_a_real_run(finished, tiny, tmp_path):
    """Everything that `lcrag train` and `lcrag evaluate` write is read, and one's own folder is left alone."""
    output = shutil.copytree(finished, tmp_path / "run")
    bindings = ("Evaluation.temperatures={'sampled': 1.0, 'greedy': 0.0}", "Evaluation.runs=2")
    assert run("evaluate", tiny, *bindings, "evaluate.label='RAG'", output=tmp_path / "evaluated") == 0
    names = {path.name for path in (tmp_path / "evaluated" / "answers").glob("*.jsonl")}
    assert names == {"RAG_sampled.jsonl", "RAG_sampled_run_2.jsonl", "RAG_greedy.jsonl"}
    seeds = {row["seed"] for row in json.loads((tmp_path / "evaluated" / "evaluation.json").read_text())["rows"]}
    assert seeds == {0, "0, run 2"}
    before = contents(output)
    assert report(output, tmp_path / "evaluated", output=tmp_path / "report") == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| LcRL | 1 / 1 |" in text and "| RAG | 1 / 2 |" in text and "Zero-shot: de, ko, es, pt, th." in text
    assert contents(output) == before


def test_a_run_is_not_reported_anew_without_its_configuration(finished, capsys):
    before = contents(finished)
    assert report(output=finished) == 2
    assert "name the experiment" in capsys.readouterr().err and contents(finished) == before

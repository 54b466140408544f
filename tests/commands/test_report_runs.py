"""`lcrag report RUN ...`: which runs are gathered, averaged and compared, and which are refused."""

import json
import shutil

import gin
import pytest
from experiment_parts import assert_mistake, contents, run
from run_standins import evaluation, training_run

from lcrag import main
from lcrag.commands.report.run_folders import base_model, run_folders
from lcrag.evaluation import Row, write_rows


def report(*folders, output, options=()):
    gin.clear_config()
    where = [f"--output_dir={output}"] if output else []
    return main.run(["report", *map(str, folders), *where, *options])


def reported(*folders, output, options=()):
    """The text of a report."""
    assert report(*folders, output=output, options=options) == 0
    return (output / "report.md").read_text()


def assert_refused(capsys, part, *folders, output, options=()):
    assert report(*folders, output=output, options=options) == 2
    assert_mistake(capsys, part)


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    for method, right in (("LcRL", 0.9), ("mSearch-R1", 0.4)):
        for seed in (0, 1):
            training_run(folder / f"{method}-{seed}", method, right, seed=seed, inferences=2, labels={"before": 0.1})
    evaluation(folder / "rag", "RAG", 0.5)
    return folder


def test_runs_of_a_method_are_averaged_and_tested(runs, tmp_path, capsys):
    text = reported(runs, output=tmp_path / "report", options=["--against=mSearch-R1"])
    names = {line.split(" | ")[0].strip("| ") for line in text.splitlines() if line.startswith("|")}
    assert names >= {"LcRL", "mSearch-R1", "RAG"}
    assert "before" not in names
    by_language = "c3 recall (BERGEN) by language, toy, greedy"
    for part in ("| LcRL | 2 / 4 |", "| RAG | 1 / 1 |", "**Overall, greedy**", by_language):
        assert part in text
    for part in ("by part", "Zero-shot: de.", "seed 1", "c3 recall (BERGEN): difference from mSearch-R1, toy, greedy"):
        assert part in text
    assert (tmp_path / "report" / "differences_toy_greedy.png").read_bytes().startswith(b"\x89PNG")
    assert "Overall, greedy" in capsys.readouterr().out
    tables = (tmp_path / "report" / "tables.tex").read_text()
    assert tables.count(r"\begin{table}") == text.count("\n**")
    assert r"\textbf" in tables
    assert "$^{*}$" in tables
    assert (tmp_path / "report" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_other_labels_and_an_order(runs, tmp_path):
    options = ["--gin.compare_runs.also=('before',)", "--gin.compare_runs.order=('before', 'RAG', 'LcRL')"]
    text = reported(runs, output=tmp_path / "report", options=options)
    lines = [line.split(" | ")[0].strip("| ") for line in text.splitlines()]
    start = lines.index("before")
    assert lines[start : start + 4] == ["before", "RAG", "LcRL", "mSearch-R1"]
    assert "| before | 2 / 4 |" in text, "once a seed, not once a run"


def test_some_methods_only(runs, tmp_path):
    text = reported(runs, output=tmp_path / "report", options=["--gin.compare_runs.only=('RAG', 'LcRL')"])
    assert "mSearch-R1" not in text
    assert "| LcRL |" in text
    assert "| RAG |" in text


def test_a_study(tmp_path):
    for share in (0.25, 1.0):
        for seed in (0, 1):
            training_run(tmp_path / "runs" / f"{share}-{seed}", "LcRL", 0.4 + 0.4 * share, seed=seed, share=share)
    text = reported(tmp_path / "runs", output=tmp_path / "report", options=["--axis=train.question_share"])
    assert "|  | 0.25 | 1 |" in text
    assert "LcRL [0.25]" in text
    assert (tmp_path / "report" / "study_toy_greedy.png").read_bytes().startswith(b"\x89PNG")
    options = ["--axis=Method.collections"]
    text = reported(tmp_path / "runs" / "1.0-0", output=tmp_path / "named", options=options)
    assert "|  | native collection |" in text


def test_an_evaluated_policy_is_known_by_the_run_that_trained_it(tmp_path):
    trained = training_run(tmp_path / "trained", "LcRL", 0.5, share=0.5)
    own = evaluation(tmp_path / "later", "LcRL", 0.6, policy=str(trained / "policy"))
    assert base_model(str(trained / "policy")) == base_model("atlas/cold_start") == "atlas"
    assert base_model("/models/Qwen2.5-3B-Instruct") == "Qwen2.5-3B-Instruct"
    assert "LcRL [0.5] (atlas)" in reported(own, output=tmp_path / "report", options=["--axis=train.question_share"])


def test_a_training_run_and_an_evaluation_of_one_name(tmp_path, capsys):
    """They are averaged only if they are the same method, and never if they are the same policy and seed."""
    trained = training_run(tmp_path / "trained", "LcRL", 0.5)
    elsewhere = evaluation(tmp_path / "elsewhere", "LcRL", 0.6, policy=str(trained / "policy"))
    config = elsewhere / "answers" / "LcRL_config.gin"
    own = config.read_text()
    config.write_text(own.replace("@native_collection", "@every_collection"))
    assert_refused(
        capsys, "are both called 'LcRL', but Method.collections is", trained, elsewhere, output=tmp_path / "report"
    )
    config.write_text(own)
    assert_refused(
        capsys,
        "are the same policy, asked with the same seed and both called 'LcRL'",
        trained,
        elsewhere,
        output=tmp_path / "report",
    )


@pytest.mark.parametrize("same_questions", [True, False])
def test_files_made_for_the_seed_of_a_run_are_no_difference(same_questions, tmp_path, capsys):
    for seed in (0, 1):
        config = training_run(tmp_path / "runs" / f"several-{seed}", "RAG-R1", 0.5, seed=seed) / "config.gin"
        made = f"made/{'several' if same_questions or not seed else 'single'}-{seed}/selection/train.jsonl"
        config.write_text(f"{config.read_text()}train/jsonl_questions.files = ('{made}',)\n")
    if same_questions:
        assert "2 / 2" in reported(tmp_path / "runs", output=tmp_path / "report")
    else:
        told = "are both called 'RAG-R1', but train/jsonl_questions.files is"
        assert_refused(capsys, told, tmp_path / "runs", output=tmp_path / "report")


def test_folders_are_found_at_any_depth(runs):
    names = ["LcRL-0", "LcRL-1", "mSearch-R1-0", "mSearch-R1-1", "rag"]
    assert [path.name for path in run_folders([str(runs)])] == names
    assert run_folders([str(runs / "rag"), str(runs / "rag")]) == [runs / "rag"]


def shortened(keep):
    """Cuts the answers of a folder."""

    def damage(runs):
        path = runs / "rag" / "answers" / "RAG_greedy.jsonl"
        path.write_text(keep(path.read_text()))

    return damage


def lost(name):
    return lambda runs: (runs / "LcRL-0" / name).unlink()


def another_configuration(runs):
    training_run(runs / "LcRL-9", "LcRL", 0.9, seed=9, couplings=12, inferences=2)


@pytest.mark.parametrize(
    ("damage", "options", "part"),
    [
        (shortened(lambda text: "".join(text.splitlines(True)[:-3])), [], "answered different questions of toy"),
        (shortened(lambda text: text[:-20]), [], "RAG_greedy.jsonl, line 90, is not an answer"),
        (another_configuration, [], "are both called 'LcRL', but train.questions_per_step is 2 there and 12 here"),
        (lost("config.gin"), [], "has lost the configuration of 'after'"),
        (lost("answers/after_greedy.jsonl"), [], "LcRL-0 has lost the answers of 'after' (after_greedy.jsonl)"),
        (lost("run.json"), [], "run.json, the provenance of 'after', cannot be read"),
        (None, ["--against=GRPO"], "there is no run of 'GRPO' to test against, only runs of RAG, mSearch-R1, LcRL"),
        (None, ["--axis=train.shares"], "sets no train.shares"),
        (
            None,
            ["--gin.compare_runs.only=('GRPO',)"],
            "compare_runs.only names 'GRPO', which was not run: choose among",
        ),
        (None, ["--gin.compare_runs.metrics=('bleu',)"], "there is no metric 'bleu'"),
    ],
)
def test_runs_that_cannot_be_compared(damage, options, part, runs, tmp_path, capsys):
    if damage is not None:
        damage(runs)
    assert_refused(capsys, part, runs, output=tmp_path / "report", options=options)
    assert not (tmp_path / "report").exists()


def test_retrieval_evaluations_are_no_method(runs, tmp_path, capsys):
    where = dict(model="m", dataset="miracl", split="dev", language="fi", metric="mrr@10", count=9, seed=0)
    (runs / "indexes").mkdir()
    write_rows(runs / "indexes" / "evaluation.json", [Row(method="retrieval", value=0.5, **where)])
    assert report(runs, output=tmp_path / "report") == 0
    capsys.readouterr()
    assert_refused(capsys, "no policy was evaluated in", runs / "indexes", output=tmp_path / "other")


def test_folders_that_cannot_be_reported(runs, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert_refused(capsys, "there is no folder", tmp_path / "nowhere", output=tmp_path / "report")
    assert_refused(capsys, "nothing in", tmp_path / "empty", output=tmp_path / "report")
    assert_refused(capsys, "is a run itself", runs, output=runs / "LcRL-0")
    assert_refused(capsys, "--output_dir=FOLDER", runs, output=None)


def test_a_real_run(finished, tiny, tmp_path):
    """Everything that `lcrag train` and `lcrag evaluate` write is read, and their folders are left alone."""
    output = shutil.copytree(finished, tmp_path / "run")
    bindings = ("Evaluation.temperatures={'sampled': 1.0, 'greedy': 0.0}", "Evaluation.runs=2")
    assert run("evaluate", tiny, *bindings, "evaluate.label='RAG'", output=tmp_path / "evaluated") == 0
    names = {path.name for path in (tmp_path / "evaluated" / "answers").glob("*.jsonl")}
    assert names == {"RAG_sampled.jsonl", "RAG_sampled_run_2.jsonl", "RAG_greedy.jsonl"}
    seeds = {row["seed"] for row in json.loads((tmp_path / "evaluated" / "evaluation.json").read_text())["rows"]}
    assert seeds == {0, "0, run 2"}
    before = contents(output)
    text = reported(output, tmp_path / "evaluated", output=tmp_path / "report")
    for part in ("| LcRL | 1 / 1 |", "| RAG | 1 / 2 |", "Zero-shot: de, ko, es, pt, th."):
        assert part in text
    assert contents(output) == before


def test_only_the_trained_policy_may_be_evaluated(tiny, tmp_path):
    bindings = ("STEPS=1", "Evaluation.before=False", "Evaluation.temperatures={'greedy': 0.0}")
    assert run("train", tiny, *bindings, output=tmp_path / "run") == 0
    answered = {path.name for path in (tmp_path / "run" / "answers").glob("*.jsonl")}
    assert "after_greedy.jsonl" in answered
    assert "before_greedy.jsonl" not in answered
    text = (tmp_path / "run" / "report.md").read_text()
    assert "Every policy" in text
    assert "Held-out questions, greedy" not in text
    assert "| LcRL | 1 / 1 |" in reported(tmp_path / "run", output=tmp_path / "report")


def test_a_run_is_not_reported_again_without_its_configuration(finished, capsys):
    before = contents(finished)
    assert_refused(capsys, "name the experiment", output=finished)
    assert contents(finished) == before

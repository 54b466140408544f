"""`lcrag report`: what is averaged, compared, recorded and refused; tables and figures from runs and from records."""

import dataclasses
import json
import shutil
from pathlib import Path

import gin
import numpy as np
import pytest
from experiment_parts import assert_mistake, contents
from matplotlib.figure import Figure

from lcrag import main
from lcrag.commands.records import (
    MAX_POINTS,
    QUESTIONS,
    base_model,
    thinned,
)
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Outcome
from lcrag.evaluation import Answered, Row, write_rows
from lcrag.files import write_json_lines
from lcrag.rewards import domain_reward
from lcrag.train.evaluation import Evaluation, _answered, answers_path, tables
from lcrag.train.steps import tool_rates

OPTIONS = ("--against=mSearch-R1", "--gin.compare_runs.also=('before',)", "--axis=Method.collections")
TIERS = {"en": "high", "fi": "low", "de": "low"}


LANGUAGES = ("en", "fi", "de")
CONFIG = """
SEED = {seed}
policy.folder = '{policy}'
Method.name = '{method}'
Method.collections = @native_collection
{command}.seed = %SEED
Evaluation.seen_languages = ('en', 'fi')
Evaluation.languages = ('en', 'fi', 'de')
"""
ABOUT = {"seed": 0, "commit": "abc123", "command": ["lcrag", "train"]}


def write_answers(folder, labels, *, seed, inferences=1):
    """Answers of each label, of which a share is right, every other question in a subset; and `evaluation.json`."""
    rows = []
    for label, right in labels.items():
        for number in range(1, inferences + 1):
            generator = np.random.default_rng((seed, number))
            answered = [
                Answered(
                    question_id=str(question), dataset="toy", language=language, golds=("Helsinki",), searches=1,
                    answer="Helsinki" if generator.random() < right else "Oslo",
                    subsets=("copyable",) if question % 2 else (),
                )
                for question in range(30) for language in LANGUAGES
            ]  # fmt: skip
            path = answers_path(folder, label, "greedy", number)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json_lines(path, map(dataclasses.asdict, answered))
        where = dict(model="m", dataset="toy", split="held_out", language="all", metric="c3_recall", count=9, seed=seed)
        rows.append(Row(method=f"{label}, greedy", value=right, **where))
    write_rows(folder / "evaluation.json", rows)


def training_run(folder, method, right, *, seed=0, share=1.0, couplings=2, labels=None, inferences=1):
    folder.mkdir(parents=True)
    config = CONFIG.format(method=method, seed=seed, policy="atlas/cold_start", command="train")
    (folder / "config.gin").write_text(
        f"{config}train.question_share = {share}\ntrain.questions_per_step = {couplings}\n"
    )
    (folder / "run.json").write_text(json.dumps({**ABOUT, "seed": seed}))
    write_answers(folder, {"after": right, **(labels or {})}, seed=seed, inferences=inferences)
    steps = [{"step": n, "reward/total": 0.1 * n + right, "episode/policy_tokens": 20 - n} for n in range(5)]
    write_json_lines(folder / "metrics.jsonl", steps)
    return folder


def evaluation(folder, *methods, policy="atlas/cold_start"):
    write_answers(folder, {name: 0.5 + 0.1 * number for number, name in enumerate(methods)}, seed=0)
    for method in methods:
        config = CONFIG.format(method=method, seed=0, policy=policy, command="evaluate")
        answers_path(folder, method, "config").with_suffix(".gin").write_text(config)
        answers_path(folder, method, "run").with_suffix(".json").write_text(json.dumps(ABOUT))
    return folder


@pytest.fixture(autouse=True)
def unrendered(monkeypatch):
    """Figures are not rendered, which takes half of the time."""
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **about: Path(path).touch())


def report(*folders, options=(), **places):
    gin.clear_config()
    where = [f"--{name}={place}" for name, place in places.items()]
    return main.run(["report", *map(str, folders), *options, *where])


def reported(*folders, output, options=()):
    assert report(*folders, options=options, output_dir=output) == 0
    return (output / "report.md").read_text()


def assert_refused(capsys, part, *folders, options=(), **places):
    assert report(*folders, options=options, **places) == 2
    assert_mistake(capsys, part)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "runs"
    for method, right in (("LcRL", 0.9), ("mSearch-R1", 0.4)):
        for seed in (0, 1):
            training_run(folder / f"{method}-{seed}", method, right, seed=seed, inferences=2, labels={"before": 0.1})
    evaluation(folder / "prompted", "RAG", "IRCoT")
    return folder


@pytest.fixture
def runs(made, tmp_path):
    return shutil.copytree(made, tmp_path / "runs")


@pytest.fixture
def records(runs, tmp_path):
    assert report(runs, options=OPTIONS, records=tmp_path / "records") == 0
    return tmp_path / "records"


def test_runs_of_a_method_are_averaged_and_tested(runs, tmp_path, capsys):
    text = reported(runs, output=tmp_path / "report", options=OPTIONS[:1])
    names = {line.split(" | ")[0].strip("| ") for line in text.splitlines() if line.startswith("|")}
    assert names >= {"LcRL", "mSearch-R1", "RAG", "IRCoT"}
    assert "before" not in names
    titles = ("by language, toy", "by part", "difference from mSearch-R1, toy, greedy")
    for part in ("| LcRL | 2 / 4 |", "| RAG | 1 / 1 |", "**Overall, greedy**", "Zero-shot: de.", "seed 1", *titles):
        assert part in text
    drawn = {"curves.png", "differences_toy_greedy.png", "differences_by_language_toy_greedy.png"}
    assert drawn <= {path.name for path in (tmp_path / "report").iterdir()}
    assert "Overall, greedy" in capsys.readouterr().out
    assert (tmp_path / "report" / "tables.tex").read_text().count(r"\begin{table}") == text.count("\n**")


def test_labels_an_order_and_a_choice_of_methods(runs, tmp_path):
    options = ["--gin.compare_runs.also=('before',)", "--gin.compare_runs.order=('before', 'RAG', 'LcRL')"]
    text = reported(runs, output=tmp_path / "report", options=options)
    lines = [line.split(" | ")[0].strip("| ") for line in text.splitlines()]
    start = lines.index("before")
    assert lines[start : start + 5] == ["before", "RAG", "LcRL", "mSearch-R1", "IRCoT"]
    assert "| before | 2 / 4 |" in text, "once a seed, not once a run"


def test_a_study_has_points(tmp_path):
    for share in (0.25, 1.0):
        for seed in (0, 1):
            training_run(tmp_path / "runs" / f"{share}-{seed}", "LcRL", 0.4 + 0.4 * share, seed=seed, share=share)
    axis = "--axis=train/golden_answers.question_share,train.question_share"  # the first that a run sets
    text = reported(tmp_path / "runs", output=tmp_path / "report", options=[axis])
    assert "|  | 0.25 | 1 |" in text
    assert "LcRL [0.25]" in text
    assert (tmp_path / "report" / "study_toy_greedy.png").is_file()
    text = reported(tmp_path / "runs" / "1.0-0", output=tmp_path / "named", options=["--axis=Method.collections"])
    assert "|  | native collection |" in text


def test_an_evaluated_policy_is_known_by_the_run_that_trained_it(tmp_path, capsys):
    """It is averaged with that run only if they are the same method, and never if they are the same policy and seed."""
    trained = training_run(tmp_path / "trained", "LcRL", 0.5, share=0.5)
    own = evaluation(tmp_path / "later", "LcRL", policy=str(trained / "policy"))
    assert base_model(str(trained / "policy")) == base_model("atlas/cold_start") == "atlas"
    assert base_model("/models/Qwen2.5-3B-Instruct") == "Qwen2.5-3B-Instruct"
    assert "LcRL [0.5] (atlas)" in reported(own, output=tmp_path / "report", options=["--axis=train.question_share"])
    assert_refused(capsys, "are the same policy", trained, own, output_dir=tmp_path / "twice")
    config = own / "answers" / "LcRL_config.gin"
    config.write_text(config.read_text().replace("@native_collection", "@every_collection"))
    assert_refused(capsys, "but Method.collections is", trained, own, output_dir=tmp_path / "twice")


def test_files_made_for_the_seed_of_a_run_are_no_difference(tmp_path, capsys):
    for mode, seed in (("several", 0), ("several", 1), ("single", 2)):
        config = training_run(tmp_path / f"RAG-R1-{seed}", "RAG-R1", 0.5, seed=seed) / "config.gin"
        own = f"made/{mode}-{seed}/selection/train.jsonl"
        config.write_text(f"{config.read_text()}train/jsonl_questions.files = ('{own}',)\n")
    first, second, other = (tmp_path / f"RAG-R1-{seed}" for seed in range(3))
    assert "2 / 2" in reported(first, second, output=tmp_path / "report")
    assert_refused(capsys, "train/jsonl_questions.files", first, other, output_dir=tmp_path / "other")


@pytest.mark.parametrize(
    "lines", [["Chat.name = 'gpt-1'"] * 2, ["Trackers.names = ('wandb',)\ntrain.evaluate_every = 5", ""]]
)
def test_seeds_that_differ_in_nothing_that_matters_are_one_system(lines, tmp_path, monkeypatch):
    for seed, line in enumerate(lines):
        config = training_run(tmp_path / "runs" / f"LcRL-{seed}", "LcRL", 0.5, seed=seed) / "config.gin"
        config.write_text(f"{config.read_text()}{line}\n")
        monkeypatch.chdir(config.parent)
        assert report(".", records=tmp_path / "records") == 0
        assert (tmp_path / "records" / f"LcRL-{seed}.json").exists()
    for folder in ("runs", "records"):
        assert "| LcRL | 2 / 2 |" in reported(tmp_path / folder, output=tmp_path / f"{folder}_report")


def rewritten(path, change):
    """Returns a function that changes a file of a folder, as text."""

    def damage(folder):
        (folder / path).write_text(change((folder / path).read_text()))

    return damage


def lost(name):
    return lambda folder: (folder / name).unlink()


ANSWERS = "prompted/answers/RAG_greedy.jsonl"


def changed(name, change):
    """Returns a function that changes the JSON object of a file."""

    def of_text(text):
        content = json.loads(text)
        change(content)
        return json.dumps(content)

    return rewritten(name, of_text)


RECORD = "LcRL-0.json"


@pytest.mark.parametrize(
    ("of", "damage", "options", "part"),
    [
        ("runs", rewritten(ANSWERS, lambda text: text.partition("\n")[2]), (), "different questions of toy"),
        (
            "runs",
            lambda runs: training_run(runs / "LcRL-9", "LcRL", 0.9, seed=9, couplings=12, inferences=2),
            *((), "train.questions_per_step is 2 there and 12 here"),
        ),
        ("runs", lost("LcRL-0/config.gin"), (), "configuration of 'after'"),
        ("runs", lost("LcRL-0/answers/after_greedy.jsonl"), (), "after_greedy.jsonl"),
        ("runs", lost("LcRL-0/run.json"), (), "run.json"),
        ("runs", None, ["--against=GRPO"], "no run of 'GRPO'"),
        ("runs", None, ["--axis=train.shares"], "sets no train.shares"),
        ("runs", None, ["--gin.compare_runs.only=('GRPO',)"], "compare_runs.only names 'GRPO'"),
        ("runs", None, ["--gin.compare_runs.metrics=('bleu',)"], "no metric 'bleu'"),
        ("records", None, ["--gin.compare_runs.metrics=('squad_f1',)"], "hold no squad_f1"),
        *(
            ("runs", None, [f"--gin.compare_runs.metrics=('{metric}',)", OPTIONS[2]], f"hold no {metric}")
            for metric in ("answer_retrieved", "score_per_log_token")
        ),
        ("records", rewritten(RECORD, lambda text: text[:-100]), (), RECORD),
        ("records", changed(RECORD, lambda own: own.pop("model")), (), RECORD),
        ("records", changed(RECORD, lambda own: own["answers"][0].update(questions="x")), (), "other questions of toy"),
        ("records", changed(RECORD, lambda own: own["answers"][0]["scores"]["searches"].pop()), (), RECORD),
        ("records", changed(RECORD, lambda own: own["config"].update({"train.steps": "9"})), (), "train.steps"),
        ("records", changed(QUESTIONS, lambda own: own["splits"][0]["rows"].append([0, 99, 0])), (), QUESTIONS),
    ],
)
def test_runs_and_records_that_cannot_be_compared(of, damage, options, part, request, tmp_path, capsys):
    folder = request.getfixturevalue(of)
    if damage is not None:
        damage(folder)
    assert_refused(capsys, part, folder, options=options, output_dir=tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_folders_that_cannot_be_reported(runs, finished, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    where = dict(model="m", dataset="miracl", split="dev", language="fi", metric="mrr@10", count=9, seed=0)
    (runs / "indexes").mkdir()
    write_rows(runs / "indexes" / "evaluation.json", [Row(method="retrieval", value=0.5, **where)])
    assert report(runs, output_dir=tmp_path / "report") == 0  # a retrieval evaluation is no method
    capsys.readouterr()
    assert_refused(capsys, "no policy was evaluated", runs / "indexes", output_dir=tmp_path / "other")
    assert_refused(capsys, "no folder", tmp_path / "nowhere", output_dir=tmp_path / "other")
    assert_refused(capsys, "nothing in", tmp_path / "empty", output_dir=tmp_path / "other")
    assert_refused(capsys, "is a run itself", runs, output_dir=runs / "LcRL-0")
    assert_refused(capsys, "--output_dir=FOLDER", runs)
    assert_refused(capsys, "has not finished", runs / "LcRL-0")
    assert not (runs / "LcRL-0" / "report.md").exists()
    before = contents(finished)
    text = reported(
        finished, runs / "prompted", output=tmp_path / "real", options=["--gin.compare_runs.only=('LcRL',)"]
    )
    assert "| LcRL | 1 / 1 |" in text
    assert "Zero-shot: de, ko, es, pt, th." in text
    assert contents(finished) == before, "what `lcrag train` wrote is read and left alone"


def test_records_give_the_report_of_the_runs(runs, records, tmp_path):
    names = sorted(path.name for path in records.iterdir())
    methods = [f"{method}-{seed}.json" for method in ("LcRL", "mSearch-R1") for seed in (0, 1)]
    assert names == sorted([*methods, "prompted-RAG.json", "prompted-IRCoT.json", QUESTIONS])
    assert report(runs, options=OPTIONS, output_dir=tmp_path / "of_runs") == 0
    moved = shutil.move(records, tmp_path / "results")
    assert report(moved, options=OPTIONS, output_dir=tmp_path / "of_records") == 0
    one, other = (
        {path.name: path.read_bytes() for path in (tmp_path / of).iterdir()} for of in ("of_runs", "of_records")
    )
    assert one == other
    assert "curves.png" in one
    (moved / "LcRL-0.json").unlink()
    text = reported(moved, runs / "LcRL-0", output=tmp_path / "mixed", options=OPTIONS[:1])
    assert "| LcRL | 2 / 4 |" in text, "one run and the record of another"


def test_what_cannot_be_recorded_or_made_of_records(runs, records, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert_refused(capsys, "in object storage", runs, records="gs://bucket/records")
    other = evaluation(tmp_path / "other" / "RAG", "RAG")
    rewritten("answers/RAG_greedy.jsonl", lambda text: "".join(text.splitlines(True)[:36]))(other)
    assert_refused(capsys, "other questions of toy, held_out", other, records=records)
    assert not (records / "RAG.json").exists()
    again = evaluation(tmp_path / "other" / "again" / "RAG", "RAG")
    assert_refused(capsys, "would both be recorded", other, again, records=tmp_path / "mixed")
    assert_refused(capsys, "is a file", runs, records=records / QUESTIONS)


def test_a_thinned_log_keeps_its_mean():
    steps, values = np.arange(120), np.random.default_rng(0).random(120)
    [places, means] = thinned({"reward/total": (steps, values), "loss/policy": (steps, values)})["reward/total"]
    assert len(places) == len(means) == MAX_POINTS
    assert places[:2] == [1, 3]
    assert np.mean(means) == pytest.approx(values.mean(), abs=1e-3)
    assert thinned({"reward/total": (steps[:2], values[:2])})["reward/total"][0] == [0, 1]


def episode(language, tier, calls):
    question = Question(id="1", dataset="d", language=language, text="?", answers=("1",),
                        extra={"domain": "mathematics", "tier": tier} if tier else {})  # fmt: skip
    empty = np.zeros(0, np.int32)
    counted = dict.fromkeys(("searches", "retrieval_rounds", "policy_tokens", "completion_tokens"), 0)
    return EpisodeRecord(
        question=question, prompt="", turns=(), tokens=empty, by_policy=empty.astype(bool),
        log_probabilities=empty.astype(np.float32), turn=empty, policy_version=0, outcome=Outcome(answer="1"),
        counts=counted | ({} if calls is None else {"tool_calls": calls}), finished=True, episode=0,
    )  # fmt: skip


def test_a_step_s_rates_by_tier():
    records = [episode("en", "high", 0), episode("en", "high", 2), episode("ha", "low", 1), episode("fi", "", 1)]
    earned = {"total": np.array([0.0, 0.5, 1.0, 1.0]), "task": np.array([1.0, 1.0, 0.5, 1.0])}
    assert tool_rates(records, earned) == {
        f"tools/{domain}{tier}/{name}": value
        for domain in ("", "mathematics/")
        for tier, values in {"high": (0.5, 0.5, 1.0), "low": (1.0, 0.0, 0.5)}.items()
        for name, value in zip(("rate", "two_calls", "reward"), values, strict=True)
    }
    assert tool_rates(records[2:3], {"total": np.array([0.25])})["tools/low/reward"] == 0.25
    assert tool_rates([episode("en", "high", None)], {"total": np.zeros(1)}) == {}


def test_a_run_s_own_report_compares_rewards_and_rates_by_domain_and_tier(tmp_path):
    questions = [episode(language, TIERS[language], 0).question for language in ("en", "fi")]
    own = Evaluation(questions=questions, temperatures={"greedy": 0.0}, languages=("en", "fi"), reward=domain_reward())
    for label, calls in (("before", 0), ("after", 2)):
        path = answers_path(tmp_path, label, "greedy")
        path.parent.mkdir(exist_ok=True)
        answered = [_answered(episode(each.language, each.tier, calls), {"total": calls / 2}) for each in questions]
        write_json_lines(path, map(dataclasses.asdict, answered))
    summary, (policies, comparison) = tables(tmp_path, own, 0, "Gated")
    assert comparison.header[1:] == ("reward", "difference", "tool rate", "tool calls")
    lines = {line[0].text: [cell.text for cell in line[1:]] for section in comparison.sections for line in section}
    reward, _, rate, calls = lines["mathematics/low"]
    assert (reward, rate, calls) == ("0.000 → 1.00", "0.000 → 1.00", "0.000 → 2.00")
    assert {"mathematics", "high", "low", "mathematics/high"} <= set(lines)
    assert [line[0].text for line in policies.sections[0]][:2] == ["answered", "reward"]
    assert [line[0].text for line in summary.sections[0]] == ["answered", "reward", "tool rate", "tool calls"]

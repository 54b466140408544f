"""`lcrag report ... --records=FOLDER` and back: the same tables and figures without the folders of the runs."""

import dataclasses
import json
import shutil

import gin
import numpy as np
import pytest
from experiment_parts import assert_mistake
from run_standins import evaluation, training_run

from lcrag import main
from lcrag.commands.report.records import POINTS, QUESTIONS, evaluated, fingerprint, thinned, write_records
from lcrag.evaluation import Answered, read_rows, write_rows
from lcrag.evaluation.trials import Trial

OPTIONS = ("--against=mSearch-R1", "--gin.compare_runs.also=('before',)", "--axis=Method.collections")


def report(*folders, options=OPTIONS, **places):
    gin.clear_config()
    where = [f"--{name}={place}" for name, place in places.items()]
    return main.run(["report", *map(str, folders), *options, *where])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "runs"
    for method, right in (("LcRL", 0.9), ("mSearch-R1", 0.4)):
        for seed in (0, 1):
            training_run(folder / f"{method}-{seed}", method, right, seed=seed, inferences=2, labels={"before": 0.1})
    evaluation(folder / "prompted", "RAG", 0.5)
    rows = read_rows(folder / "prompted" / "evaluation.json")
    evaluation(folder / "prompted", "IRCoT", 0.6)
    write_rows(folder / "prompted" / "evaluation.json", [*rows, *read_rows(folder / "prompted" / "evaluation.json")])
    return folder


@pytest.fixture
def records(runs, tmp_path):
    assert report(runs, records=tmp_path / "records") == 0
    return tmp_path / "records"


def test_records_give_the_report_of_the_runs(runs, records, tmp_path):
    names = sorted(path.name for path in records.iterdir())
    methods = [f"{method}-{seed}.json" for method in ("LcRL", "mSearch-R1") for seed in (0, 1)]
    assert names == sorted([*methods, "prompted-RAG.json", "prompted-IRCoT.json", QUESTIONS])
    assert report(runs, output_dir=tmp_path / "of_runs") == 0
    moved = shutil.move(records, tmp_path / "results")
    assert report(moved, output_dir=tmp_path / "of_records") == 0
    for name in ("report.md", "tables.tex"):
        first, second = ((tmp_path / of / name).read_text() for of in ("of_runs", "of_records"))
        assert first == second, name
    figures = sorted(path.name for path in (tmp_path / "of_runs").glob("*.png"))
    assert figures == sorted(path.name for path in (tmp_path / "of_records").glob("*.png"))
    assert "curves.png" in figures


def test_records_and_runs_can_be_compared(runs, records, tmp_path):
    (records / "mSearch-R1-0.json").unlink()
    (records / "LcRL-0.json").unlink()
    assert report(records, runs / "mSearch-R1-0", output_dir=tmp_path / "report", options=OPTIONS[:1]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| LcRL | 1 / 2 |" in text
    assert "| mSearch-R1 | 2 / 4 |" in text


def rewritten(name, change):
    """Changes a file of JSON."""

    def damage(records):
        content = json.loads((records / name).read_text())
        change(content)
        (records / name).write_text(json.dumps(content))

    return damage


def truncated(records):
    path = records / "LcRL-0.json"
    path.write_text(path.read_text()[:-100])


def of_other_questions(records):
    other = Answered(question_id="x", dataset="toy", language="en", answer="", golds=("a",))
    trial = Trial.of([other], method="m", model="m", dataset="toy", split="held_out", decoding="greedy", run="r",
                     seen_languages=())  # fmt: skip
    rewritten("LcRL-0.json", lambda own: own["answers"][0].update(questions=fingerprint(trial.questions)))(records)


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (truncated, "LcRL-0.json cannot be read as a record"),
        (rewritten("LcRL-0.json", lambda own: own.pop("model")), "LcRL-0.json is damaged (model: Field required)"),
        (rewritten("LcRL-0.json", lambda own: own.update(format=9)), "LcRL-0.json has the format 9"),
        (rewritten(QUESTIONS, lambda own: own.update(format=9)), "questions.json has the format 9"),
        (rewritten(QUESTIONS, lambda own: own["splits"][0]["rows"].append([0, 99, 0])), "is not three known numbers"),
        (of_other_questions, "LcRL-0.json has scores of other questions of toy, held_out"),
        (
            rewritten("LcRL-0.json", lambda own: own["answers"][0]["scores"]["searches"].pop()),
            "LcRL-0.json is damaged: it has 89 scores of searches for 90 questions",
        ),
        (
            rewritten("LcRL-0.json", lambda own: own["config"].update({"train.questions_per_step": "9"})),
            "train.questions_per_step is",
        ),
    ],
)
def test_damaged_records(damage, part, records, tmp_path, capsys):
    damage(records)
    assert report(records, output_dir=tmp_path / "report", options=()) == 2
    assert_mistake(capsys, part)


def test_what_cannot_be_recorded_or_made_of_records(runs, records, tmp_path, capsys):
    other = evaluation(tmp_path / "other" / "RAG", "RAG", 0.5)
    answers = other / "answers" / "RAG_greedy.jsonl"
    answers.write_text("".join(answers.read_text().splitlines(True)[:36]))
    assert report(other, records=records, options=()) == 2
    assert_mistake(capsys, "holds records of other questions of toy, held_out")
    assert not (records / "RAG.json").exists()
    again = evaluation(tmp_path / "other" / "again" / "RAG", "RAG", 0.5)
    assert report(tmp_path / "other" / "RAG", again, records=tmp_path / "mixed", options=()) == 2
    assert_mistake(capsys, "would both be recorded as")
    metrics = ("--gin.compare_runs.metrics=('squad_f1',)",)
    assert report(records, output_dir=tmp_path / "report", options=metrics) == 2
    assert_mistake(
        capsys, "the records hold no squad_f1, only c3_recall_bergen, correct_language, flexible_exact_match"
    )
    assert report(runs, records=records / QUESTIONS, options=()) == 2
    assert_mistake(capsys, "questions.json is a file: give --records the folder")
    assert report(runs, options=()) == 2
    assert_mistake(capsys, "--output_dir=FOLDER")


def test_a_record_is_small(tmp_path):
    """258 questions in 13 languages and four metrics, from a run of a thousand steps."""
    languages = [f"l{number}" for number in range(13)]
    generator = np.random.default_rng(0)
    answered = [
        Answered(question_id=f"fact-{number}", dataset="atlas", language=language, answer="a", golds=("a",),
                 subsets=(("copyable", "translated")[number % 2], ("native_holds", "native_missing")[number % 3 // 2]))
        for number in range(258) for language in languages
    ]  # fmt: skip
    labels = dict(method="LcRL", model="m", dataset="atlas", split="held_out", decoding="greedy", run="run")
    trial = Trial.of(answered, seen_languages=tuple(languages[:8]), **labels)
    right = generator.random(len(answered))
    graded = np.where(right < 0.5, 1, np.where(right < 0.9, 0, generator.random(len(answered))))
    scores = {"c3_recall_bergen": graded, "flexible_exact_match": (right < 0.5) + 0.0,
              "correct_language": np.where(right < 0.6, 1, np.nan), "searches": np.floor(1 + 2 * right)}  # fmt: skip
    training_run(tmp_path / "LcRL-0", "LcRL", 0.5)
    (source, decoding, split), *_ = evaluated([str(tmp_path / "LcRL-0")])
    steps = np.arange(1000)
    log = {name: (steps, generator.random(1000)) for name in ("reward/total", "episode/searches", "seconds/step")}
    own = dataclasses.replace(trial, scores=scores)
    source = dataclasses.replace(source, log=log, trials=lambda decoding, split: [own])
    [path] = write_records([(source, decoding, split)], tmp_path / "records", list(scores))
    assert path.stat().st_size < 40_000
    assert (tmp_path / "records" / QUESTIONS).stat().st_size < 50_000
    [(read, *place)] = evaluated([str(tmp_path / "records")])
    [back] = read.trials(*place)
    assert back.questions == trial.questions
    for name, values in scores.items():
        np.testing.assert_allclose(back.scores[name], values, atol=5.01e-4)
    assert read.log.keys() == {"reward/total", "episode/searches"}


def test_a_thinned_log_keeps_its_mean():
    steps, values = np.arange(120), np.random.default_rng(0).random(120)
    [places, means] = thinned({"reward/total": (steps, values), "loss/policy": (steps, values)})["reward/total"]
    assert len(places) == len(means) == POINTS
    assert places[:2] == [1, 3]
    assert np.mean(means) == pytest.approx(values.mean(), abs=1e-3)
    assert thinned({"reward/total": (steps[:2], values[:2])})["reward/total"][0] == [0, 1]

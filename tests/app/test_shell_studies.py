"""`launch/study.sh` runs every point of a study once, with configurations that can be read, and then its report."""

from pathlib import Path

import pytest
from launched_scripts import launched

from lcrag.app.composition.gin_files import read_bindings, read_file


@pytest.fixture
def study(tmp_path):
    return launched("study.sh", tmp_path)


STUDIES = {"ablations": 6, "data": 8, "training_languages": 16, "collections": 18, "retrieval": 15, "curves": 2}


@pytest.mark.parametrize("name", STUDIES)
def test_every_point_and_a_report(study, name):
    done, calls = study(name, SEEDS="0 1")
    assert done.returncode == 0, done.stderr
    *points, report = calls
    evaluated = name in ("collections", "retrieval")
    measured = [call for call in points if call.command == ("evaluate" if evaluated else "train")]
    assert len(measured) == 2 * STUDIES[name] and len(points) - len(measured) == (2 if evaluated else 0)
    assert len({call.output_dir for call in points}) == len(points)
    for call in points:
        assert [*(statement for file in call.gin_files for statement in read_file(file)), *read_bindings(call.bindings)]
        assert any(binding in ("SEED = 0", "SEED = 1") for binding in call.bindings)
    assert report.command == "report" and report.words == (f"runs/studies/{name}",)


def test_the_tables_have_ablations_and_baselines_alike(study):
    done, calls = study("tables", "--gin.STEPS=3", SEEDS="0 1")
    assert done.returncode == 0, done.stderr
    commands = [call.command for call in calls]
    assert [commands.count(command) for command in ("train", "sft", "evaluate", "report")] == [16, 2, 10, 1]
    assert len({call.output_dir for call in calls}) == len(calls)
    for call in calls[:-1]:
        assert [*(statement for file in call.gin_files for statement in read_file(file)), *read_bindings(call.bindings)]
        assert ("STEPS = 3" in call.bindings) == (call.command == "train")


@pytest.mark.parametrize("name", ["tables", "retrieval"])
def test_several_points_at_once(study, name):
    one_by_one, first = study(name, OUTPUT="first")
    beside, second = study(name, OUTPUT="second", JOBS="3")
    assert one_by_one.returncode == beside.returncode == 0 and second[-1].command == "report"
    renamed = [str(call).replace("second", "first") for call in second]
    assert sorted(renamed) == sorted(map(str, first))


@pytest.mark.parametrize("jobs", ["1", "3"])
@pytest.mark.parametrize("point", ["tables/lcrl-0", "tables/d_rag-2"])
def test_the_first_failure_ends_the_study(study, jobs, point):
    done, calls = study("tables", JOBS=jobs, FAILS=point)
    assert done.returncode != 0 and "failed" in done.stderr and calls[-1].command != "report"
    if jobs == "1":
        assert calls[-1].output_dir == Path("runs/studies") / point


def test_what_is_done_is_not_done_again(study):
    _, first = study("retrieval", SEEDS="0", METHODS="lcrl")
    _, second = study("retrieval", SEEDS="0", METHODS="lcrl")
    assert [call.command for call in first] == ["train", *["evaluate"] * 5, "report"]
    assert [call.command for call in second] == ["report"]
    policies = {binding for call in first[1:-1] for binding in call.bindings if binding.startswith("policy.folder")}
    assert policies == {"policy.folder = 'runs/studies/trained/lcrl-0/policy'"}


def test_a_methods_file_is_the_last_word_and_others_are_passed_on(study):
    _, calls = study("data", "--gin.STEPS=3", SEEDS="0", METHODS="msearch_r1", EXPERIMENT="mine.gin")
    assert calls[0].gin_files == ("mine.gin", "study/data_25.gin", "method/msearch_r1.gin")
    assert all("STEPS = 3" in call.bindings for call in calls[:-1])


def test_an_unknown_study(study):
    done, calls = study("figure_9")
    assert done.returncode == 2 and not calls and done.stderr.startswith("lcrag: error: choose a study")

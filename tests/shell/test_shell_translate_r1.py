"""`launch/translate_r1.sh` makes one cold start, trains every method with every seed from it, and then reports."""

import pytest
from launched_scripts import bound, launched

METHODS = ("none", "free", "flat", "otc", "ungated", "gated")


@pytest.fixture
def script(tmp_path):
    return launched("translate_r1.sh", tmp_path)


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_every_method_begins_with_the_same_policy(script, jobs):
    done, calls = script(OUTPUT="out", JOBS=jobs)
    assert done.returncode == 0, done.stderr
    cold_start, *trained, report = calls
    assert (cold_start.command, cold_start.gin_files) == ("sft", ("translate_r1_atlas_sft.gin",))
    assert {str(call.output_dir) for call in trained} == {
        f"out/study/{method}-{seed}" for method in METHODS for seed in (0, 1, 2)
    }
    for call in trained:
        method, seed = call.output_dir.name.split("-")
        assert call.gin_files == ("translate_r1_atlas.gin", f"ablation/translate_r1_{method}.gin")
        assert bound(call) == {"policy.folder": "out/cold-start/policy", "SEED": int(seed)}
    assert (report.command, *report.words) == ("report", "out/study")


def test_what_is_done_is_not_done_again(script):
    settings = {"METHODS": "free gated", "SEEDS": "0"}
    _, first = script("--gin.STEPS=3", **settings)
    _, second = script("--gin.STEPS=3", **settings)
    assert [call.command for call in first] == ["sft", "train", "train", "report"]
    assert [bound(call).get("STEPS") for call in first[:3]] == [None, 3, 3]
    assert [call.command for call in second] == ["report"]


def test_an_experiment_with_a_policy_of_its_own(script):
    _, calls = script(EXPERIMENT="mine.gin", COLD_START="", METHODS="gated", SEEDS="4")
    [trained, _] = calls
    assert trained.gin_files[0] == "mine.gin" and bound(trained) == {"SEED": 4}


@pytest.mark.parametrize("jobs", ["1", "3"])
@pytest.mark.parametrize("point", ["cold-start", "study/otc-1"])
def test_the_first_failure_ends_the_study(script, jobs, point):
    done, calls = script(JOBS=jobs, FAILS=point)
    assert done.returncode != 0 and "failed" in done.stderr and calls[-1].command != "report"

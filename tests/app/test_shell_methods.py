"""`launch/methods.sh` makes each cold start once, trains every variant with every seed from it, and then reports."""

import pytest
from launched_scripts import bound, launched

COSTS = ("none", "free", "flat", "otc", "ungated", "gated")
VARIANTS = {
    "r_search": {"grpo": ("grpo", None), "ppo": ("grpo", "r_search_ppo"), "without_evidence": (..., "no_evidence")},
    "globalrag": {
        "full": ("full", None),
        "outcome_only": ("full", "globalrag_outcome_only"),
        "constant_weights": ("full", "globalrag_constant_weights"),
    },
    "translate_r1": {cost: ("any", f"translate_r1_{cost}") for cost in COSTS},
    "translate_and_search": {"both": ("both", None), "search_alone": (..., "no_translation")},
}


@pytest.fixture
def script(tmp_path):
    return launched("methods.sh", tmp_path)


def files(experiment, ablation):
    return (experiment, f"ablation/{ablation}.gin") if ablation else (experiment,)


@pytest.mark.parametrize("jobs", ["1", "3"])
@pytest.mark.parametrize("method", VARIANTS)
def test_every_variant_is_trained_from_its_cold_start_with_every_seed(script, method, jobs):
    done, [*calls, report] = script(method, "--gin.STEPS=3", SEEDS="0 4", OUTPUT="out", JOBS=jobs)
    assert done.returncode == 0, done.stderr
    started = {call.output_dir.name: call.gin_files for call in calls if call.command == "sft"}
    trained = {call.output_dir.name: call for call in calls if call.command == "train"}
    assert [call.command for call in calls] == ["sft"] * len(started) + ["train"] * len(trained)
    assert set(trained) == {f"{name}-{seed}" for name in VARIANTS[method] for seed in (0, 4)}
    for folder, call in trained.items():
        name, seed = folder.rsplit("-", 1)
        start, ablation = VARIANTS[method][name]
        start = name if start is ... else start
        assert call.gin_files == files(f"{method}_atlas.gin", ablation)
        assert bound(call) == {"policy.folder": f"out/cold-start/{start}/policy", "SEED": int(seed), "STEPS": 3}
        assert started[start] == files(f"{method}_atlas_sft.gin", ablation if start == name else None)
    assert (report.command, *report.words) == ("report", "out/study")


def test_what_is_done_is_not_done_again_and_what_is_not_asked_is_not_done(script):
    settings = {"VARIANTS": "free gated", "SEEDS": "0"}
    _, first = script("translate_r1", **settings)
    _, second = script("translate_r1", **settings)
    assert [call.command for call in first] == ["sft", "train", "train", "report"]
    assert [call.command for call in second] == ["report"]
    _, [start, *_] = script("r_search", VARIANTS="without_evidence", SEEDS="0")
    assert start.gin_files[1:] == ("ablation/no_evidence.gin",)


def test_another_experiment(script):
    _, calls = script("globalrag", EXPERIMENT="mine", VARIANTS="full", SEEDS="0")
    assert [call.gin_files for call in calls] == [("mine_sft.gin",), ("mine.gin",), ()]


def test_an_experiment_with_a_policy_of_its_own(script):
    _, calls = script("translate_r1", EXPERIMENT="mine", COLD_START="", VARIANTS="gated", SEEDS="4")
    assert [(call.command, call.gin_files[:1]) for call in calls[:-1]] == [("train", ("mine.gin",))]
    assert bound(calls[0]) == {"SEED": 4}


@pytest.mark.parametrize(
    ("words", "settings"), [((), {}), (("graphs",), {}), (("r_search",), {"VARIANTS": "grpo pop"})]
)
def test_what_is_not_there_is_refused(script, words, settings):
    done, calls = script(*words, **settings)
    assert done.returncode == 2 and "r_search" in done.stderr and len(done.stderr.splitlines()) == 1 and not calls


@pytest.mark.parametrize("jobs", ["1", "3"])
@pytest.mark.parametrize("point", ["cold-start/any", "study/otc-1"])
def test_the_first_failure_ends_the_study(script, jobs, point):
    done, calls = script("translate_r1", JOBS=jobs, FAILS=point)
    assert done.returncode != 0 and "failed" in done.stderr and calls[-1].command != "report"

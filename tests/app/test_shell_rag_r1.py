"""`launch/rag_r1.sh` does every stage once, each with what the stages before it made, and then reports."""

from pathlib import Path

import pytest
from launched_scripts import bound, launched

from lcrag.app.composition.gin_files import read_file


@pytest.fixture
def script(tmp_path):
    runs = launched("rag_r1.sh", tmp_path)

    def calls_of(*words, **settings):
        done, calls = runs(*words, **settings)
        assert done.returncode == 0, done.stderr
        return calls

    return calls_of


def name_of(call):
    """The last name that its files give the method."""
    statements = [statement for name in call.gin_files for statement in read_file(name)]
    return [each.value for each in statements if getattr(each, "key", "") == "Method.name"][-1]


def test_the_stages_follow_one_another(script):
    calls = script(SEEDS="0 1", OUTPUT="out")
    commands = [" ".join((call.command, *call.words)) for call in calls]
    assert commands == ["curate demonstrations", "sft", "curate selection", "train", "train", "report out/study"]
    demonstrations, tuned, selection, first, second, _ = calls
    assert [bound(call)["SEED"] for call in (tuned, selection, first, second)] == [0, 0, 0, 1]
    assert bound(tuned)["demonstration_files.files"] == (f"{demonstrations.output_dir}/rows.jsonl",)
    assert bound(selection)["selection.demonstrated"] == str(demonstrations.output_dir)
    assert bound(selection)["policy.folder"] == bound(second)["policy.folder"] == f"{tuned.output_dir}/policy"
    assert bound(second)["train/jsonl_questions.files"] == (f"{selection.output_dir}/train.jsonl",)


def test_the_ablations(script):
    study = [call for call in script("ablations", OUTPUT="out") if call.output_dir.parent.name == "study"]
    called = {call.output_dir.name.removesuffix("-0"): call for call in study}
    assert {name: call.command for name, call in called.items()} == {
        **dict.fromkeys(("several", "single", "without_sft", "without_selection"), "train"),
        "without_rl": "evaluate",
    }
    files = {name: bound(call).get("train/jsonl_questions.files", ("",))[0] for name, call in called.items()}
    assert {name: Path(file).name for name, file in files.items()} == {
        **dict.fromkeys(("several", "single", "without_sft"), "train.jsonl"),
        "without_selection": "unfiltered.jsonl",
        "without_rl": "",
    }
    assert "policy.folder" not in bound(called["without_sft"])
    assert bound(called["without_selection"])["policy.folder"] == bound(called["several"])["policy.folder"]
    assert "made/single" in bound(called["single"])["policy.folder"]
    assert len({name_of(call) for call in study}) == len(study), "every system has a name of its own"


def test_several_trainings_at_once(script):
    one_by_one, beside = script("ablations", SEEDS="0 1"), script("ablations", SEEDS="0 1", JOBS="3", OUTPUT="beside")
    renamed = [str(call).replace("beside", "runs/rag_r1") for call in beside]
    assert sorted(renamed) == sorted(map(str, one_by_one)) and beside[-1].command == "report"


def test_what_is_done_is_not_done_again(script):
    script(OUTPUT="out")
    again = script(OUTPUT="out")
    assert [call.command for call in again] == ["report"]

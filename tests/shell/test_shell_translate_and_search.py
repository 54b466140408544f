"""`launch/translate_and_search.sh` makes both cold starts once, trains every seed from its own, and then reports."""

from launched_scripts import bound, launched


def test_both_variants_begin_with_their_own_cold_start(tmp_path):
    script = launched("translate_and_search.sh", tmp_path)
    done, [*cold, first, second, third, fourth, report] = script("--gin.STEPS=3", SEEDS="0 1", OUTPUT="out")
    assert done.returncode == 0, done.stderr
    assert [call.command for call in cold] == ["sft"] * 2 and report.words == ("out/study",)
    for call, folder, without in zip(
        (first, second, third, fourth), ["out/cold-start", "out/cold-start-without"] * 2, [False, True] * 2, strict=True
    ):
        values = bound(call)
        assert call.command == "train" and values["policy.folder"] == f"{folder}/policy" and values["STEPS"] == 3
        assert ("ablation/no_translation.gin" in call.gin_files) is without
    _, again = script("--gin.STEPS=3", SEEDS="0 1", OUTPUT="out")
    assert [call.command for call in again] == ["report"]

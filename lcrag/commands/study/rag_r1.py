"""RAG-R1's studies, with all stages: demonstrations, SFT, the selection of questions, PPO."""

import dataclasses
from collections.abc import Callable

from lcrag.commands.study.points import RAG, Point, Settings, Study, Variant, policy_of, seeded, untrained_point

MODES = {
    "several": Variant(),
    "single": Variant("RAG-R1, single query", bindings=("rag_r1.queries = 1", "oracle_teacher.queries = 1")),
    # At most twice the steps; the lowest validation loss counts.
    "from_long_sft": Variant("RAG-R1 from long SFT", bindings=("SFT_STEPS = 1200",)),
}
WITHOUT = {
    "without_sft": Variant("RAG-R1 w/o SFT"),
    "without_selection": Variant("RAG-R1 w/o selection"),  # the paper's "w/o Filter"
    "without_rl": Variant("RAG-R1 w/o RL"),
    "long_sft": Variant("long SFT"),
}
MODE_OF = {"long_sft": "from_long_sft", **{mode: mode for mode in MODES}}  # others: several
UNREWARDED = ("without_rl", "long_sft")


def points_of(*usual: str) -> Callable[[Settings], list[Point]]:
    """Points of some systems, each after the stages that it needs, one seed after the other."""

    def points(settings: Settings) -> list[Point]:
        names = settings.chosen((*MODES, *WITHOUT, "rag"), usual)
        mode_of = {name: MODE_OF.get(name, "several") for name in names if name != "rag"}
        found = [untrained_point("rag", RAG, settings)] if "rag" in names else []
        for seed in settings.seeds:
            for mode in MODES:
                found += _stages(settings, mode, seed) if mode in mode_of.values() else []
            found += [_run(settings, name, mode, seed) for name, mode in mode_of.items()]
        return found

    return points


def _stages(settings: Settings, mode: str, seed: int) -> list[Point]:
    """Demonstrations, SFT, and the selection of questions of one seed."""
    made = settings.output / "made" / f"{mode}-{seed}"
    demonstrations, tuned, selection = (made / name for name in ("demonstrations", "sft", "selection"))
    rows = f"demonstration_files.files = ({str(demonstrations / 'rows.jsonl')!r},)"
    choice = (policy_of(tuned), f"selection.demonstrated = {str(demonstrations)!r}")
    bound, last = MODES[mode].bound(), seeded(seed)
    return [
        settings.point(demonstrations, ["curate", "demonstrations"], *bound, last),
        settings.point(tuned, ["sft"], *bound, rows, last, needs=[demonstrations]),
        settings.point(selection, ["curate", "selection"], *bound, *choice, last, needs=[demonstrations, tuned]),
    ]


def _run(settings: Settings, name: str, mode: str, seed: int) -> Point:
    """PPO on the selected questions, or the evaluation of the policy of the SFT as it is."""
    made, folder = settings.output / "made" / f"{mode}-{seed}", settings.output / "study" / f"{name}-{seed}"
    bound = (*MODES[mode].bound(), *WITHOUT.get(name, Variant()).bound())
    start = policy_of(made / "sft")
    if name in UNREWARDED:
        return settings.point(folder, ["evaluate"], *bound, start, seeded(seed), needs=[made / "sft"])
    questions = str(made / "selection" / ("unfiltered.jsonl" if name == "without_selection" else "train.jsonl"))
    point = settings.point(
        folder,
        ["train"],
        *bound,
        *(() if name == "without_sft" else (start,)),
        f"train/jsonl_questions.files = ({questions!r},)",
        "train/jsonl_questions.dataset = 'selected'",
        seeded(seed),
        needs=[made / "sft", made / "selection"],
    )
    return dataclasses.replace(point, gin_files=(*point.gin_files, "data/jsonl_training.gin"))


def _study(summary: str, *names: str) -> Study:
    return Study(
        summary=summary,
        points=points_of(*names),
        experiment="rag_r1/atlas",
        output="runs/rag_r1",
        seeds=(0,),
        report=(
            "--against=RAG-R1",
            "--gin.compare_runs.paired_seeds=True",  # of one SFT
            "--gin.compare_runs.metrics=('squad_exact_match', 'searches', 'retrieval_rounds')",
        ),
    )


STUDIES = {
    "rag_r1": _study("RAG-R1's stages, several queries at once", "several"),
    "rag_r1_single": _study("RAG-R1's stages, one query at a time", "single"),
    "rag_r1_ablations": _study(
        "RAG-R1 both ways, without SFT, RL or selection, from long SFT, and RAG", *MODES, *WITHOUT, "rag"
    ),
}

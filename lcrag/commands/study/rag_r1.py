"""RAG-R1's studies, with all stages: demonstrations, SFT, the selection of questions, PPO."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from lcrag.commands.study.points import (
    CURATED,
    EVALUATED,
    RAG,
    TRAINED,
    Point,
    Settings,
    Study,
    Variant,
    policy_of,
    seeded,
    untrained_point,
)

SINGLE = Variant(name="RAG-R1, single query", bindings=("rag_r1.queries = 1", "oracle_teacher.queries = 1"))
LONG_SFT = ("SFT_STEPS = 1200",)  # at most twice the steps; the lowest validation loss counts
MODES = {
    "several": Variant(),
    "single": SINGLE,
    "from_long_sft": Variant(name="RAG-R1 from long SFT", bindings=LONG_SFT),
}
WITHOUT = {
    "without_sft": Variant(name="RAG-R1 w/o SFT"),
    "without_selection": Variant(name="RAG-R1 w/o selection"),  # the paper's "w/o Filter"
    "without_rl": Variant(name="RAG-R1 w/o RL"),
    "long_sft": Variant(name="long SFT"),
}
MODE_OF = {"long_sft": "from_long_sft", **{mode: mode for mode in MODES}}  # others: several
UNREWARDED = ("without_rl", "long_sft")


@dataclasses.dataclass(frozen=True)
class _Stages:
    """The stages of one seed, which has its own demonstrations, SFT and selection."""

    settings: Settings
    mode: str
    seed: int

    @property
    def folder(self) -> Path:
        return self.settings.output / "made" / f"{self.mode}-{self.seed}"

    def point(self, folder: Path, *command: str, done: str, needs: tuple[str, ...] = (), bindings=()) -> Point:
        """Returns a point with the user's gin files and bindings, which all commands of the study get."""
        return Point(
            folder=folder,
            command=command,
            gin_files=self.settings.files(),
            bindings=(*MODES[self.mode].bound(), *bindings, seeded(self.seed), *self.settings.bindings),
            done=done,
            needs=tuple(self.folder / name for name in needs),
        )

    def made(self) -> list[Point]:
        """Demonstrations, SFT, and the selection of questions."""
        made = self.folder
        rows = f"demonstration_files.files = ({str(made / 'demonstrations' / 'rows.jsonl')!r},)"
        chosen = (policy_of(made / "sft"), f"selection.demonstrated = {str(made / 'demonstrations')!r}")
        return [
            self.point(made / "demonstrations", "curate", "demonstrations", done=CURATED),
            self.point(made / "sft", "sft", done=TRAINED, needs=("demonstrations",), bindings=(rows,)),
            self.point(
                made / "selection",
                *("curate", "selection"),
                done=CURATED,
                needs=("demonstrations", "sft"),
                bindings=chosen,
            ),
        ]

    def run(self, name: str) -> Point:
        """Returns the run of a system."""
        if name in UNREWARDED:
            return self.evaluated(name)
        return self.reinforced(
            name, "unfiltered.jsonl" if name == "without_selection" else "train.jsonl", tuned=name != "without_sft"
        )

    def reinforced(self, name: str, questions: str, *, tuned: bool) -> Point:
        """PPO on a file of the selection."""
        path = str(self.folder / "selection" / questions)
        data = (f"train/jsonl_questions.files = ({path!r},)", "train/jsonl_questions.dataset = 'selected'")
        start = (policy_of(self.folder / "sft"),) if tuned else ()
        point = self.point(
            self.settings.output / "study" / f"{name}-{self.seed}",
            "train",
            done=TRAINED,
            needs=("sft", "selection"),
            bindings=(*WITHOUT.get(name, Variant()).bound(), *start, *data),
        )
        return dataclasses.replace(point, gin_files=(*point.gin_files, "data/jsonl_training.gin"))

    def evaluated(self, name: str) -> Point:
        """The policy of the SFT as it is."""
        return self.point(
            self.settings.output / "study" / f"{name}-{self.seed}",
            "evaluate",
            done=EVALUATED,
            needs=("sft",),
            bindings=(*WITHOUT[name].bound(), policy_of(self.folder / "sft")),
        )


def points_of(*usual: str) -> Callable[[Settings], list[Point]]:
    """Points of some systems, each after the stages that it needs, one seed after the other."""

    def points(settings: Settings) -> list[Point]:
        names = settings.chosen((*MODES, *WITHOUT, "rag"), usual)
        mode_of = {name: MODE_OF.get(name, "several") for name in names if name != "rag"}
        found = [untrained_point("rag", RAG, settings)] if "rag" in names else []
        for seed in settings.seeds:
            stages = {mode: _Stages(settings, mode, seed) for mode in MODES if mode in mode_of.values()}
            found += [point for each in stages.values() for point in each.made()]
            found += [stages[mode].run(name) for name, mode in mode_of.items()]
        return found

    return points


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

"""RAG-R1's studies, with all stages: demonstrations, SFT, the selection of questions, PPO."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from lcrag.app.commands.study.points import CURATED, EVALUATED, Point, Settings, Study, Variant, policy_of, seeded

SINGLE = Variant(name="RAG-R1, single query", bindings=("rag_r1.queries = 1", "oracle_teacher.queries = 1"))
MODES = {"several": Variant(), "single": SINGLE}
WITHOUT = {
    "without_sft": Variant(name="RAG-R1 w/o SFT"),
    "without_selection": Variant(name="RAG-R1 w/o selection"),  # the paper's "w/o Filter"
    "without_rl": Variant(name="RAG-R1 w/o RL"),
}


@dataclasses.dataclass(frozen=True)
class _Stages:
    """The stages before PPO, made once with the first seed."""

    settings: Settings
    mode: str

    @property
    def folder(self) -> Path:
        return self.settings.output / "made" / self.mode

    def point(self, folder: Path, *command: str, done: str, needs: tuple[str, ...] = (), bindings=()) -> Point:
        """Returns a point with the user's gin files and bindings, which all commands of the study get."""
        return Point(
            folder=folder,
            command=command,
            gin_files=self.settings.files(),
            bindings=(*MODES[self.mode].bound(), *bindings, *self.settings.bindings),
            done=done,
            needs=tuple(self.folder / name for name in needs),
        )

    def points(self) -> list[Point]:
        """Demonstrations, SFT, and the selection of questions."""
        made, seed = self.folder, seeded(self.settings.seeds[0])
        rows = f"demonstration_files.files = ({str(made / 'demonstrations' / 'rows.jsonl')!r},)"
        chosen = (seed, policy_of(made / "sft"), f"selection.demonstrated = {str(made / 'demonstrations')!r}")
        return [
            self.point(made / "demonstrations", "curate", "demonstrations", done=CURATED),
            self.point(made / "sft", "sft", done="report.md", needs=("demonstrations",), bindings=(seed, rows)),
            self.point(
                made / "selection",
                *("curate", "selection"),
                done=CURATED,
                needs=("demonstrations", "sft"),
                bindings=chosen,
            ),
        ]

    def reinforced(self, name: str, questions: str = "train.jsonl", *, tuned: bool = True) -> list[Point]:
        """PPO on a file of the selection, with every seed."""
        path = str(self.folder / "selection" / questions)
        data = (f"train/jsonl_questions.files = ({path!r},)", "train/jsonl_questions.dataset = 'selected'")
        start = (policy_of(self.folder / "sft"),) if tuned else ()
        points = [
            self.point(
                self.settings.output / "study" / f"{name}-{seed}",
                "train",
                done="report.md",
                needs=("sft", "selection"),
                bindings=(*WITHOUT.get(name, Variant()).bound(), *start, *data, seeded(seed)),
            )
            for seed in self.settings.seeds
        ]
        return [dataclasses.replace(each, gin_files=(*each.gin_files, "data/jsonl_training.gin")) for each in points]

    def evaluated(self, name: str) -> list[Point]:
        """The policy of the SFT as it is, with every seed."""
        return [
            self.point(
                self.settings.output / "study" / f"{name}-{seed}",
                "evaluate",
                done=EVALUATED,
                needs=("sft",),
                bindings=(*WITHOUT[name].bound(), policy_of(self.folder / "sft"), seeded(seed)),
            )
            for seed in self.settings.seeds
        ]


def points_of(*usual: str) -> Callable[[Settings], list[Point]]:
    """Points of some systems, each after the stages that it needs."""

    def points(settings: Settings) -> list[Point]:
        names = settings.chosen((*MODES, *WITHOUT), usual)
        found: list[Point] = []
        for mode in MODES:
            stages = _Stages(settings, mode)
            own = {mode, *WITHOUT} if mode == "several" else {mode}
            if own & set(names):
                found += stages.points()
            found += stages.reinforced(mode) if mode in names else []
        several = _Stages(settings, "several")
        found += several.reinforced("without_sft", tuned=False) if "without_sft" in names else []
        found += several.reinforced("without_selection", "unfiltered.jsonl") if "without_selection" in names else []
        return found + (several.evaluated("without_rl") if "without_rl" in names else [])

    return points


def _study(summary: str, *names: str) -> Study:
    return Study(
        summary=summary,
        points=points_of(*names),
        experiment="rag_r1/atlas",
        output="runs/rag_r1",
        seeds=(0,),
        report=("--gin.compare_runs.metrics=('squad_exact_match', 'searches', 'retrieval_rounds')",),
    )


STUDIES = {
    "rag_r1": _study("RAG-R1's stages, several queries at once", "several"),
    "rag_r1_single": _study("RAG-R1's stages, one query at a time", "single"),
    "rag_r1_ablations": _study("RAG-R1 both ways, and without SFT, RL or selection", *MODES, *WITHOUT),
}

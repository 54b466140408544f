"""The studies of the papers: rows of a table or points of a figure, as bindings on top of an experiment."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from lcrag.config import packaged_folder
from lcrag.data.questions import LCRL_TRAINING
from lcrag.errors import UserError

# The file of its folder that a command writes last.
WRITTEN_LAST = {"train": "report.md", "sft": "report.md", "evaluate": "evaluation.json", "curate": "report.json"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One command of a study."""

    folder: Path  # its output folder
    command: tuple[str, ...]  # the command and its words
    gin_files: tuple[str, ...]
    bindings: tuple[str, ...] = ()  # statements `name = value`
    needs: tuple[Path, ...] = ()  # folders of the points whose results it reads
    record: Path | None = None  # of its results, from which the report is made; None: it is not reported

    @property
    def finished(self) -> bool:
        """Whether a run of it has finished."""
        return (self.folder / WRITTEN_LAST[self.command[0]]).exists()

    @property
    def log(self) -> Path:
        """What it prints, next to its folder."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def words(self) -> list[str]:
        """The words after `lcrag`."""
        files = [f"--gin_file={name}" for name in self.gin_files]
        bound = [f"--gin.{'='.join(binding.split(' = ', 1))}" for binding in self.bindings]
        # The commands of a study share bindings, and each uses only some of them.
        return [*self.command, *files, *bound, *(("--allow_unused",) if bound else ()), f"--output_dir={self.folder}"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the command line chooses of a study."""

    output: Path
    experiment: str  # the gin file that is studied, without its ending
    seeds: tuple[int, ...]  # of training
    only: tuple[str, ...] = ()  # names of variants or methods; empty: the study's own choice
    cold_start: bool = True  # whether initial policies are trained; otherwise the experiment's own is the start
    gin_files: tuple[str, ...] = ()  # of every point, after the study's own; initial policies have the platforms only
    bindings: tuple[str, ...] = ()  # of every point but the initial policies

    @property
    def platforms(self) -> tuple[str, ...]:
        """The gin files of platforms, which come before the experiment: it may override them."""
        return tuple(name for name in self.gin_files if name.startswith("platform/"))

    @property
    def starts(self) -> bool:
        """Whether initial policies are trained; a paper's experiment that begins with a published model has none."""

        def exists(name: str) -> bool:
            return any((folder / f"{name}.gin").exists() for folder in (Path(), packaged_folder()))

        return self.cold_start and (exists(f"{self.experiment}_sft") or not exists(self.experiment))

    def point(
        self,
        folder: Path,
        command: str,
        *bindings: str,
        files: Sequence[str] = (),
        needs: Iterable[Path] = (),
        tuned: bool = False,
    ) -> Point:
        """Returns a point of the experiment with further files and bindings, and those of every point.

        A method that is fine-tuned on golden answers has the settings of a paper's `paper_sft.gin`, if there is one.
        """
        others = (name for name in self.gin_files if name not in self.platforms)
        experiment = self.experiment
        if tuned and experiment.endswith("/paper") and (packaged_folder() / f"{experiment}_sft.gin").exists():
            experiment += "_sft"
        return Point(
            folder=folder,
            command=tuple(command.split()),
            gin_files=(*self.platforms, f"{experiment}.gin", *files, *others),
            bindings=(*bindings, *self.bindings),
            needs=tuple(needs),
        )

    def chosen(self, known: Iterable[str], usual: Sequence[str] = ()) -> list[str]:
        """Returns the names to run: the requested ones, or the usual ones, or all."""
        names = list(known)
        if unknown := [name for name in self.only if name not in names]:
            raise UserError(f"--only={','.join(self.only)}: there is no {unknown[0]}, only {', '.join(names)}")
        return list(self.only or usual or names)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A study and its defaults."""

    summary: str
    points: Callable[[Settings], list[Point]]  # in sequential order
    experiment: str
    output: str
    bindings: tuple[str, ...] = ()  # of every point but the initial policies, before those of the command line
    seeds: tuple[int, ...] = (0, 1, 2)
    reported: str = "study"  # folder of the runs that the report compares, within `output`
    report: tuple[str, ...] = ()  # arguments of `lcrag report`
    report_folder: str = "report"  # within `output`


def on_atlas(experiment: str) -> bool:
    """Whether an experiment trains the atlas's tiny policy."""
    return experiment == "quickstart" or "atlas" in experiment


class Variant:
    """One row of a table, or one point of a figure, as a difference from the experiment."""

    def __init__(
        self,
        name: str = "",  # in tables; empty: that of the experiment
        *bindings: str,  # statements `name = value`
        files: tuple[str, ...] = (),  # gin files after the experiment's
        command: str = "train",  # "evaluate": the first seed only
        start: str = "",  # name of its initial policy; empty: one with the experiment's own settings
        sft_bindings: tuple[str, ...] = (),  # of SFT, in addition to `bindings`: of its initial policy, or studied
        paper_bindings: tuple[str, ...] = (),  # in addition, where the experiment is a method's paper.gin
        atlas_bindings: tuple[str, ...] = (),  # in addition, on the atlas: sizes of a step, which fit no other
    ):
        self.name, self.bindings, self.files = name, bindings, files
        self.command, self.start, self.sft_bindings = command, start, sft_bindings
        self.paper_bindings, self.atlas_bindings = paper_bindings, atlas_bindings

    def bound(self, experiment: str = "") -> tuple[str, ...]:
        """Its bindings in an experiment, its name in tables included."""
        named = (f"Method.name = {self.name!r}",) if self.name else ()
        paper = self.paper_bindings if experiment.endswith("/paper") else ()
        return (*named, *self.bindings, *paper, *(self.atlas_bindings if on_atlas(experiment) else ()))


def seeded(seed: int) -> str:
    """Returns the statement that sets the seed of a run."""
    return f"SEED = {seed}"


def policy_of(folder: Path) -> str:
    """Returns the statement that makes the policy of a finished run the initial policy."""
    return f"policy.folder = {str(folder / 'policy')!r}"


# A reference for other methods: one search with the question as the query, by the policy that ships with the atlas.
RAG = Variant("", "policy.folder = 'atlas/cold_start'", files=("baselines/rag.gin",), command="evaluate")


def crossed_points(
    study: str,
    variants: Mapping[str, Variant],
    table: Mapping[str, Variant] | None = None,
    *,
    usual: Sequence[str] = (),
    trained_once: bool = False,
) -> Callable[[Settings], list[Point]]:
    """Returns the points of variants at every point of a table, one seed after the other.

    What is not trained has the first seed only.

    Args:
      study: Folder of the points.
      variants: Name -> variant.
      table: Name -> what differs at a point; None: the variants alone.
      usual: Default variants; empty: all.
      trained_once: Each variant is trained once per seed, and that policy is evaluated at every point of the table.

    Raises:
      UserError: a variant begins with a policy of the atlas, and the experiment is another's.
    """

    def points(settings: Settings) -> list[Point]:
        made: list[Point] = []
        for seed in settings.seeds:
            for name in settings.chosen(variants, usual):
                variant, needs = variants[name], []
                if any("'atlas/" in binding for binding in variant.bindings) and not on_atlas(settings.experiment):
                    raise UserError(f"{name} begins with a policy of the atlas: leave it out for {settings.experiment}")
                if variant.command == "evaluate" and seed != settings.seeds[0]:
                    continue
                files, tuned = variant.files, variant.command == "sft"
                if trained_once and variant.command != "evaluate":
                    needs = [settings.output / "trained" / f"{name}-{seed}"]
                    unevaluated = ("sft.evaluation = None",) if tuned else ()
                    bindings = (*variant.bound(settings.experiment), *unevaluated, seeded(seed))
                    made.append(settings.point(needs[0], variant.command, *bindings, files=files, tuned=tuned))
                command = "evaluate" if trained_once else variant.command
                for point, changes in (table or {"": Variant()}).items():
                    folder = settings.output / study / "-".join(filter(None, (name, point, str(seed))))
                    differences = *variant.bound(settings.experiment), *changes.bound(settings.experiment)
                    differences += changes.sft_bindings if command == "sft" else ()
                    bindings = (*differences, *map(policy_of, needs), seeded(seed))
                    made.append(settings.point(folder, command, *bindings, files=files, needs=needs, tuned=tuned))
        return made

    return points


def started_points(variants: Mapping[str, Variant], usual: Sequence[str] = ()) -> Callable[[Settings], list[Point]]:
    """Returns the points of a method's variants: the initial policies they need, then every variant with every seed.

    What variants begin with is evaluated once, instead of in each of their runs, and so is what is not trained.

    Args:
      variants: Name -> variant; one whose `start` is its own name has its own initial policy.
      usual: Default variants; empty: all.
    """

    def points(settings: Settings) -> list[Point]:
        names = settings.chosen(variants, usual)
        trained = {name: variants[name] for name in names if variants[name].command == "train"}
        if not settings.starts:
            trained = {name: trained[name] for name in distinct(variants, settings.only) if name in trained}
        starts = {variant.start: variants.get(variant.start, Variant()) for variant in trained.values()}
        if not settings.starts:
            starts = distinct(starts)
        folders = {start: settings.output / "cold-start" / (start or "any") for start in starts}
        made = []
        for start, variant in starts.items() if settings.starts else ():
            bindings = (*variant.bound(settings.experiment), *variant.sft_bindings) if variant.sft_bindings else ()
            gin_files = (*settings.platforms, f"{settings.experiment}_sft.gin")
            made.append(Point(folder=folders[start], command=("sft",), gin_files=gin_files, bindings=bindings))

        def begun(folder: str, command: str, start: str, *bindings: str, files: Sequence[str] = ()) -> Point:
            needs = [folders[start]] if settings.starts else []
            place, policies = settings.output / "study" / folder, map(policy_of, needs)
            return settings.point(place, command, *bindings, *policies, files=files, needs=needs)

        for start, variant in starts.items():
            label = f"{variant.name}, before training" if variant.name else "before training"
            folder = "-".join(filter(None, ("before", start)))
            made.append(begun(folder, "evaluate", start, *variant.bindings, f"evaluate.label = {label!r}"))
        made += [untrained_point(name, variants[name], settings) for name in names if variants[name].command != "train"]
        for seed in settings.seeds:
            for name, variant in trained.items():
                bindings = (*variant.bound(settings.experiment), "Evaluation.before = False", seeded(seed))
                made.append(begun(f"{name}-{seed}", "train", variant.start, *bindings, files=variant.files))
        return made

    return points


def distinct(variants: Mapping[str, Variant], asked: Sequence[str] = ()) -> dict[str, Variant]:
    """Returns the variants that differ from earlier ones in more than their name and initial policy.

    Raises a UserError for another one that is `asked` for.
    """
    first: dict[tuple[object, ...], str] = {}
    for name, variant in variants.items():
        key = (variant.bindings, variant.paper_bindings, variant.files, variant.command)
        known = first.setdefault(key, name)
        if known != name and name in asked:
            raise UserError(f"{name} differs from {known} in the initial policy alone: none is trained, leave it out")
    return {name: variants[name] for name in first.values()}


def untrained_point(name: str, variant: Variant, settings: Settings) -> Point:
    """Returns the evaluation of a variant that is not trained; off the atlas its policy is the experiment's own."""
    bindings = variant.bound(settings.experiment)
    if not on_atlas(settings.experiment):
        bindings = tuple(binding for binding in bindings if "'atlas/" not in binding)
    return settings.point(settings.output / "study" / name, "evaluate", *bindings, files=variant.files)


METRICS = "--gin.compare_runs.metrics="
# --- LcRL: tables 1 and 2, figures 3 to 6.
ABLATIONS = {
    "no_penalty": Variant("LcRL w/o Lc reward", "language_coupled.weight = 0.0"),
    "exact_match": Variant("LcRL w/o c3Recall", "language_coupled.answer = 'exact_match'"),
    # The samples of one prompt share a baseline, as in plain GRPO.
    "independent_groups": Variant("LcRL w/o Lc rollout", "Method.advantage_group = 'prompt'"),
    "native_only": Variant("LcRL w/o multi-language rollout", "hierarchical_search.route = @native_only"),
    "ppo": Variant("LcRL with PPO", files=("objective/ppo.gin",)),
}
# Not in the paper's table.
MORE_ABLATIONS = {
    # Native, English and a related version of a question, answered in the native language.
    "pivot_coupling": Variant(
        "LcRL, pivot coupling", "Method.coupling = 'pivot'", atlas_bindings=("train.questions_per_step = 32",)
    ),
    # The prompts and samples of `independent_groups` on the atlas, with coupled baselines.
    "two_samples": Variant(
        "LcRL, two samples a prompt",
        "Method.samples = 2",
        atlas_bindings=("train.questions_per_step = 6",),
        paper_bindings=("train.prompts_per_step = 768",),
    ),
    "dapo": Variant("LcRL with DAPO", files=("objective/dapo.gin",)),
    "dr_grpo": Variant("LcRL with Dr. GRPO", files=("objective/dr_grpo.gin",)),
    "from_long_sft": Variant("LcRL from long SFT", "policy.folder = 'atlas/long_sft'"),
}
# The penalty of section 3.3 with and without the floor of the whole reward, by weight.
PENALTIES = {
    f"{'floor' if floor == 0.0 else 'no_floor'}_{weight}": Variant(
        f"LcRL, penalty {weight:g}{'' if floor == 0.0 else ' without floor'}",
        f"language_coupled.weight = {weight}",
        f"language_coupled.floor = {floor}",
    )
    for floor in (0.0, None)
    for weight in (0.02, 0.2, 0.5)
}


def _baselines(command: str, *names: str) -> dict[str, Variant]:
    return {name: Variant(files=(f"baselines/{name}.gin",), command=command) for name in names}


def _at_once(*names: str) -> dict[str, Variant]:
    """Returns prompted baselines that search every collection that a question is given, at once (table 1)."""
    return {
        name: Variant(
            "",
            *(f"{program}.route = @all_at_once" for program in ROUTED.get(name, (name,))),
            files=(f"baselines/{name}.gin",),
            command="evaluate",
        )
        for name in names
    }


ROUTED = {"adaptive_rag": ("rag", "ircot")}  # whose searches are those of other programs
# Fine-tuned on golden answers: SFT on passages of five languages, and D-RAG.
SFT = _baselines("sft", "sft")
TUNED = {**SFT, "d_rag": Variant("D-RAG", files=("baselines/d_rag_sft.gin",), command="sft")}
TRAINED = _baselines("train", "msearch_r1", "search_r1")
PROMPTED = {**_baselines("evaluate", "direct"), **_at_once("rag", "ircot", "search_o1")}
# Not in the paper's table: those with the native collection only, D-RAG untrained, and R-Search's other baselines.
NATIVE = {
    f"{name}_native": Variant(f"{label}, native", files=(f"baselines/{name}.gin",), command="evaluate")
    for name, label in (("rag", "RAG"), ("ircot", "IRCoT"), ("search_o1", "Search-o1"))
}
NATIVE["sft_native"] = Variant(
    "SFT, native", "Method.collections = @native_collection", files=("baselines/sft.gin",), command="sft"
)
PROMPTED_D_RAG = {
    "d_rag_prompted": Variant("D-RAG, not fine-tuned", files=("baselines/d_rag.gin",), command="evaluate")
}
MORE_PROMPTED = _at_once("iter_retgen", "flare", "sure", "adaptive_rag")
# The initial policy and the atlas's long SFT play LcRL's program without reinforcement learning.
BEFORE = Variant("", "evaluate.label = 'LcRL before training'", command="evaluate")
LONG_SFT = Variant("", "evaluate.label = 'long SFT'", "policy.folder = 'atlas/long_sft'", command="evaluate")
ROWS = {"lcrl": Variant(), **ABLATIONS, **TRAINED, **TUNED, "before": BEFORE, **PROMPTED, **NATIVE}
MORE_ROWS = {**MORE_ABLATIONS, "long_sft": LONG_SFT, **PROMPTED_D_RAG, **MORE_PROMPTED}

# Figures 4 and 5 are of methods that learn, figure 6 of those that learn from rewards, figure 3 of those that search.
REWARDED = {"lcrl": Variant(), **TRAINED}
LEARNED = {**REWARDED, **TUNED}
SEARCHED = {
    **LEARNED,
    **MORE_PROMPTED,
    **PROMPTED_D_RAG,
    **_baselines("evaluate", "rag", "ircot", "search_o1", "adaptive_rag"),  # `AT_ONCE` names the routes of their points
}
AT_ONCE = tuple(f"{name}.route = @all_at_once" for name in ("rag", "ircot", "search_o1", "d_rag"))
DATA = {
    f"data_{percent}": Variant(
        "",
        f"train.question_share = {percent / 100}",
        sft_bindings=(f"train/golden_answers.question_share = {percent / 100}",),
    )
    for percent in (25, 50, 75, 100)
}
COLLECTIONS = {
    f"collections_{count}": Variant(
        "",
        *AT_ONCE,
        "Method.collections = @largest_collections",
        f"largest_collections.count = {count}",
    )
    for count in (1, 2, 3, 5, 8, 13)
}
RETRIEVAL = {
    f"retrieval_{name}": Variant("", *AT_ONCE, f"Method.collections = @{collections}", *more)
    for name, collections, *more in (
        ("native", "native_collection"),
        ("english", "english_collection", "hierarchical_search.route = @english_only"),
        ("native_english", "native_and_english"),
        ("native_english_high", "native_english_and_high"),  # one high-resource language more, drawn
    )
}
# An index may hold languages that a data set has not: in the papers' experiments, all are those of the data set.
RETRIEVAL["retrieval_all"] = Variant(
    "",
    *AT_ONCE,
    atlas_bindings=("Method.collections = @every_collection",),
    paper_bindings=("Method.collections = @chosen_collections",),
)
# Samples per prompt and couplings per step, with which a step has about the quickstart's 96 episodes. At paper scale
# `train.prompts_per_step` counts prompts, however many languages a question has.
GROUPS = {1: (8, 12), 2: (4, 12), 3: (2, 16), 4: (2, 12), 5: (1, 19), 6: (1, 16), 7: (1, 14), 8: (1, 12)}
TRAINING_LANGUAGES = {
    f"training_languages_{count}": Variant(
        "",
        f"TRAINING_LANGUAGES = {tuple(LCRL_TRAINING[:count])!r}",
        atlas_bindings=(f"Method.samples = {samples}", f"train.questions_per_step = {couplings}", *independent),
        paper_bindings=independent,
    )
    for count, (samples, couplings) in GROUPS.items()
    for independent in [("Method.coupling = 'independent'",) if count == 1 else ()]  # nothing is coupled: plain GRPO
}


def _lcrl(
    name: str,
    summary: str,
    variants: Mapping[str, Variant],
    table: Mapping[str, Variant] | None = None,
    *,
    usual: tuple[str, ...] = (),
    trained_once: bool = False,
    against: str = "",
    along: tuple[str, str] | None = None,  # a binding, or several with commas, and what tables call it
) -> Study:
    report = (
        (f"--axis={along[0]}", f"--gin.compare_runs.axis_name={along[1]!r}") if along else (f"--against={against}",)
    )
    if {"independent_groups", "two_samples"} <= variants.keys():
        fair = {variants["independent_groups"].name: variants["two_samples"].name}
        report = (*report, f"--gin.compare_runs.references={fair!r}")
    return Study(
        summary=summary,
        points=crossed_points(name, variants, table, usual=usual, trained_once=trained_once),
        experiment="lcrl/atlas_study",
        output="runs/studies",
        reported=name,
        report=report,
        report_folder=f"{name}/report",
    )


SEARCHING, LEARNING = ("lcrl", "rag", "d_rag"), ("lcrl", "msearch_r1", "sft", "d_rag")
LCRL_STUDIES = {
    "lcrl_tables": _lcrl(
        "tables",
        "tables 1 and 2: LcRL, its ablations and the baselines",
        ROWS | MORE_ROWS,
        usual=tuple(ROWS),
        against="LcRL",
    ),
    "lcrl_ablations": _lcrl(
        "ablations",
        "table 2: LcRL without each of its parts, and by PPO",
        {"lcrl": Variant(), **ABLATIONS, **MORE_ABLATIONS},
        usual=("lcrl", *ABLATIONS),
        against="LcRL",
    ),
    "lcrl_penalties": _lcrl(
        "penalties",
        "the penalty against consistency: three weights, with and without the floor of the reward",
        PENALTIES,
        against=PENALTIES["floor_0.02"].name,
    ),
    "lcrl_collections": _lcrl(
        "collections",
        "figure 3: how many languages may be searched",
        SEARCHED,
        COLLECTIONS,
        usual=SEARCHING,
        trained_once=True,
        along=("largest_collections.count", "collections that may be searched"),
    ),
    "lcrl_retrieval": _lcrl(
        "retrieval",
        "figure 3: which languages may be searched",
        SEARCHED,
        RETRIEVAL,
        usual=SEARCHING,
        trained_once=True,
        along=("Method.collections", "collections that may be searched"),
    ),
    "lcrl_data": _lcrl(
        "data",
        "figure 4: 25, 50, 75 and 100 % of the training questions",
        LEARNED,
        DATA,
        usual=LEARNING,
        along=("train.question_share,train/golden_answers.question_share", "share of the training questions"),
    ),
    "lcrl_training_languages": _lcrl(
        "training_languages",
        "figure 5: one to eight training languages",
        LEARNED,
        TRAINING_LANGUAGES,
        usual=LEARNING,
        along=("Evaluation.seen_languages", "training languages"),
    ),
    "lcrl_curves": _lcrl(
        "curves",
        "figure 6: reward and response length over the steps",
        REWARDED,
        {"whole": Variant()},
        usual=("lcrl", "msearch_r1"),
        against="mSearch-R1",
    ),
}

# --- R-Search: GRPO, PPO, without evidence, and references.
SEARCH_R1_REWARD = ("Method.reward = @answer_only()", "answer_only.answer = 'squad_exact_match'")
R_SEARCH = {
    "grpo": Variant(start="grpo"),
    "ppo": Variant("R-Search with PPO", files=("objective/ppo.gin",), start="grpo"),
    "unrewarded": Variant(  # evidence is written and judged, and neither its quality nor its form is rewarded
        "R-Search, evidence not rewarded",
        "r_search_reward.evidence_weight = 0.0",
        "r_search_reward.gamma_evidence = 0.0",
        start="grpo",
    ),
    "answer_only": Variant(  # evidence is written, and only the answer is rewarded
        "R-Search, answer rewarded only",
        "Method.reward = @answer_only()",
        "answer_only.answer = 'mixed_f1'",
        start="grpo",
    ),
    "without_evidence": Variant(  # no evidence is asked for, neither its quality nor its form is rewarded
        "R-Search w/o evidence",
        "r_search.evidence = False",
        "r_search_reward.reader = None",
        start="without_evidence",
        # As many steps as lead to the validation F1 of the initial policy with evidence, 0.29: 140 lead to 0.26, 180 to
        # 0.36.
        sft_bindings=("RandomReasoner.evidence = False", "SFT_STEPS = 155"),
    ),
    # In the collection of the question's language, which for Search-R1 itself is English.
    "search_r1": Variant("Search-R1", "r_search.evidence = False", *SEARCH_R1_REWARD, start="without_evidence"),
    # At most twice the steps; the lowest validation loss counts.
    "from_long_sft": Variant("R-Search from long SFT", start="from_long_sft", sft_bindings=("SFT_STEPS = 1200",)),
    "rag": RAG,
}

# --- GlobalRAG: with and without the rewards of the plan (table 2), against Search-R1 and RAG (table 1).
WEIGHTLESS = {
    reward: f"globalrag_reward.{reward}_weight = 0.0" for reward in ("format", "semantic", "structural", "sub_goal")
}
GLOBALRAG = {
    "full": Variant(start="full"),
    "outcome_only": Variant("GlobalRAG, outcome only", *WEIGHTLESS.values(), start="full"),
    "constant_weights": Variant(
        "GlobalRAG, constant weights", "globalrag_reward.transition_steps = None", start="full"
    ),
    **{
        f"without_{reward}": Variant(f"GlobalRAG w/o {reward.replace('_', '-')} reward", binding, start="full")
        for reward, binding in WEIGHTLESS.items()
    },
    "ppo": Variant(
        "GlobalRAG with PPO", "critic/adamw.learning_rate = 1e-5", files=("objective/ppo.gin",), start="full"
    ),
    "search_r1": Variant(  # the same questions and collection, without plans
        "Search-R1",
        "Method.program = @search_r1",
        *SEARCH_R1_REWARD,
        "Evaluation.reading = 'Training begins with SFT on a player without plans that stops at random.'",
        start="search_r1",
        sft_bindings=("oracle_demonstrations.oracle = @RandomReasoner", "RandomReasoner.evidence = False"),
    ),
    "from_long_sft": Variant("GlobalRAG from long SFT", start="from_long_sft", sft_bindings=("SFT_STEPS = 600",)),
    "rag": RAG,
}

# --- Translate-R1: the costs of a tool call, and translation with search.
TRANSLATE_R1 = {
    # The policy is offered no tool.
    "no_tool": Variant("No tool", "translate_r1.calls = 0", "cost.method = 'none'", paper_bindings=("STEPS = 100",)),
    "free": Variant("Free tool", "cost.method = 'none'"),
    "flat": Variant("Flat cost", "cost.method = 'flat'"),
    "otc": Variant("OTC", "cost.method = 'otc'"),  # optimal tool calls (Wang et al. 2025, arXiv:2504.14870)
    "ungated": Variant("Ungated", "cost.method = 'group_relative'"),
    "gated": Variant("Gated", "cost.method = 'gated'"),
    # Chosen on validation questions by `translate_r1_costs`.
    "gated_at_two": Variant("Gated at two", "cost.method = 'gated'", "cost.minimum_native_correct = 2"),
    "from_long_sft": Variant(
        "Gated from long SFT", "cost.method = 'gated'", start="from_long_sft", sft_bindings=("SFT_STEPS = 1800",)
    ),
}
# Where a hyperparameter is chosen: the gated cost by its strength (the paper tries 0.05 to 0.3) and by its gate.
SWEEP = {
    f"strength_{strength}_gate_{gate}": Variant(
        f"strength {strength:g}, gate {gate}",
        "cost.method = 'gated'",
        f"cost.strength = {strength}",
        f"cost.minimum_native_correct = {gate}",
    )
    for strength in (0.05, 0.1, 0.3)
    for gate in (2, 4, 6)
}
# Figure 5: the strength without the gate.
STRENGTHS = {
    f"ungated_{strength}": Variant(
        f"ungated, strength {strength:g}", "cost.method = 'group_relative'", f"cost.strength = {strength}"
    )
    for strength in (0.05, 0.1, 0.3)
}
WITH_SEARCH = {
    "both": Variant(start="both"),
    "search_alone": Variant(  # no tool is offered, and the initial policy has seen none used
        "Search alone",
        "translate_and_search.calls = 0",
        "cost.method = 'none'",
        start="search_alone",
        sft_bindings=(
            "TranslatingSearcher.calls = 0",
            "train/oracle_demonstrations.questions = @train/home/atlas_questions()",
            "validation/oracle_demonstrations.questions = @validation/home/atlas_questions()",
        ),
    ),
}
TOOL_METRICS = f"{METRICS}('reward', 'tool_rate', 'tool_calls', 'answered')"
ORDER = ("before training", *(variant.name for variant in TRANSLATE_R1.values()))

STARTED_STUDIES = {
    "r_search": Study(
        summary="R-Search by GRPO and PPO, with evidence not rewarded, without evidence, from long SFT, Search-R1, RAG",
        points=started_points(R_SEARCH),
        experiment="r_search/atlas",
        output="runs/methods/r_search",
        report=("--against=R-Search", f"{METRICS}('squad_f1', 'squad_exact_match', 'searches', 'answered')"),
    ),
    "globalrag": Study(
        summary="GlobalRAG with the plan's rewards, without them, with constant weights, from long SFT, Search-R1, RAG",
        points=started_points(
            GLOBALRAG, usual=("full", "outcome_only", "constant_weights", "search_r1", "from_long_sft", "rag")
        ),
        experiment="globalrag/atlas",
        output="runs/methods/globalrag",
        report=("--against=GlobalRAG", f"{METRICS}('squad_exact_match', 'squad_f1', 'searches', 'answered')"),
    ),
    "translate_r1": Study(
        summary="Translate-R1 with every cost of a tool call",
        points=started_points(TRANSLATE_R1),
        experiment="translate_r1/atlas",
        output="runs/methods/translate_r1",
        report=(
            "--gin.compare_runs.title='Translate-R1: what a translator brings, and what it costs'",
            "--against=Gated",
            TOOL_METRICS,
            f"--gin.compare_runs.order={ORDER!r}",
        ),
    ),
    "translate_r1_costs": Study(
        summary="Translate-R1's gated cost by strength and gate, on validation questions",
        points=started_points(SWEEP),
        experiment="translate_r1/atlas",
        output="runs/methods/translate_r1_costs",
        bindings=("held_out/comprehension_questions.split = 'validation'", "Evaluation.split = 'validation'"),
        seeds=(0,),
        report=(TOOL_METRICS,),
    ),
    "translate_r1_strengths": Study(
        summary="figure 5: Translate-R1's cost without a gate, by strength",
        points=started_points(STRENGTHS),
        experiment="translate_r1/atlas",
        output="runs/methods/translate_r1_strengths",
        report=(TOOL_METRICS,),
    ),
    "translate_and_search": Study(
        summary="Translation and search in one episode, and search alone",
        points=started_points(WITH_SEARCH),
        experiment="translate_r1/with_search_atlas",
        output="runs/methods/translate_and_search",
        report=("--against=Translation and search", f"{METRICS}('c3_recall_bergen', 'tool_calls', 'searches')"),
    ),
}

# --- RAG-R1, with all stages: demonstrations, SFT, the selection of questions, PPO.
MODES = {
    "several": Variant(),
    "single": Variant("RAG-R1, single query", "rag_r1.queries = 1", "oracle_teacher.queries = 1"),
    "from_long_sft": Variant("RAG-R1 from long SFT", "SFT_STEPS = 1200", paper_bindings=("sft.epochs = 10",)),
}
WITHOUT = {
    "without_sft": Variant("RAG-R1 w/o SFT"),
    "without_selection": Variant("RAG-R1 w/o selection"),  # the paper's "w/o Filter"
    "without_rl": Variant("RAG-R1 w/o RL"),
    "long_sft": Variant("long SFT"),
}
# The other half of table 4.
SINGLE_WITHOUT = {
    "single_without_sft": Variant("RAG-R1, single query, w/o SFT"),
    "single_without_selection": Variant("RAG-R1, single query, w/o selection"),
    "single_without_rl": Variant("RAG-R1, single query, w/o RL"),
}
STAGES = ("demonstrations", "sft", "selection")
MODE_OF = {"long_sft": "from_long_sft", **{mode: mode for mode in MODES}}  # others: several
MODE_OF |= dict.fromkeys(SINGLE_WITHOUT, "single")


def _rag_r1_points(*usual: str) -> Callable[[Settings], list[Point]]:
    """Returns the points of some systems, each after the stages that it needs, one seed after the other."""

    def points(settings: Settings) -> list[Point]:
        names = settings.chosen((*MODES, *WITHOUT, *SINGLE_WITHOUT, "rag"), usual)
        mode_of = {name: MODE_OF.get(name, "several") for name in names if name != "rag"}
        found = [untrained_point("rag", RAG, settings)] if "rag" in names else []
        for seed in settings.seeds:
            made = {mode: settings.output / "made" / f"{mode}-{seed}" for mode in MODES if mode in mode_of.values()}
            for mode, folder in made.items():
                bound, (rows, tuned, selection) = MODES[mode].bound(settings.experiment), map(folder.joinpath, STAGES)
                files = f"demonstration_files.files = ({str(rows / 'rows.jsonl')!r},)"
                choice = policy_of(tuned), f"selection.demonstrated = {str(rows)!r}"
                found += [
                    settings.point(rows, "curate demonstrations", *bound, seeded(seed)),
                    settings.point(tuned, "sft", *bound, files, seeded(seed), needs=[rows]),
                    settings.point(selection, "curate selection", *bound, *choice, seeded(seed), needs=[rows, tuned]),
                ]
            for name, mode in mode_of.items():
                folder = settings.output / "study" / f"{name}-{seed}"
                _, tuned, selection = map(made[mode].joinpath, STAGES)
                changed = (WITHOUT | SINGLE_WITHOUT).get(name, Variant()).bound()
                bound = (*MODES[mode].bound(settings.experiment), *changed)
                if not name.endswith("without_sft"):
                    bound = (*bound, policy_of(tuned))
                if name.endswith(("without_rl", "long_sft")) and name not in MODES:  # the policy of the SFT as it is
                    found.append(settings.point(folder, "evaluate", *bound, seeded(seed), needs=[tuned]))
                    continue
                questions = selection / ("unfiltered.jsonl" if name.endswith("without_selection") else "train.jsonl")
                point = settings.point(
                    folder,
                    "train",
                    *bound,
                    f"train/jsonl_questions.files = ({str(questions)!r},)",
                    "train/jsonl_questions.dataset = 'selected'",
                    seeded(seed),
                    needs=[tuned, selection],
                )
                found.append(dataclasses.replace(point, gin_files=(*point.gin_files, "data/jsonl_training.gin")))
        return found

    return points


def _rag_r1(summary: str, *names: str) -> Study:
    return Study(
        summary=summary,
        points=_rag_r1_points(*names),
        experiment="rag_r1/atlas",
        output="runs/rag_r1",
        seeds=(0,),
        report=(
            "--against=RAG-R1",
            "--gin.compare_runs.paired_seeds=True",  # of one SFT
            f"{METRICS}('squad_exact_match', 'searches', 'retrieval_rounds')",
        ),
    )


# --- LcRL with real weights on XQuAD, from demonstrations that are learned.
DEMONSTRATED = {"lcrl": "lcrl/demonstrations.gin", "search_r1": "baselines/search_r1_demonstrations.gin"}
SPLITS = {"train": (), "validation": ("split = 'validation'", "limit = 10")}  # questions that are demonstrated
REAL = {
    "untrained": Variant("untrained", command="evaluate"),
    "sft": Variant("SFT", command="evaluate"),
    "rag": Variant("RAG with the SFT", files=("baselines/rag.gin",), command="evaluate"),
    "lcrl": Variant(),
    "msearch_r1": Variant(files=("baselines/msearch_r1.gin",)),
    "search_r1": Variant(files=("baselines/search_r1.gin",)),
    **{name: ABLATIONS[name] for name in ("native_only", "independent_groups", "no_penalty", "exact_match")},
    "lcrl_c3_f": Variant("LcRL with c3 F", "language_coupled.answer = 'c3_f'"),  # these two charge for length
    "lcrl_f1": Variant("LcRL with F1", "language_coupled.answer = 'token_f1'"),
}


def _real_points(programs: Sequence[str], usual: Sequence[str]) -> Callable[[Settings], list[Point]]:
    """Returns the points: demonstrations, one SFT on all of them, what is not trained further, and each training.

    Args:
      programs: Keys of `DEMONSTRATED`.
      usual: Default rows, keys of `REAL`, in their order.
    """

    def points(settings: Settings) -> list[Point]:
        names = settings.chosen(REAL, usual)
        made, found = settings.output / "made", []
        shown = {(program, split): made / f"{program}-{split}" for program in programs for split in SPLITS}
        for (program, split), folder in shown.items():
            asked = (f"demonstrated/xquad_questions.{each}" for each in SPLITS[split])
            found.append(settings.point(folder, "curate demonstrations", *asked, files=(DEMONSTRATED[program],)))
        tuned = made / "sft"
        rows = {split: tuple(str(shown[program, split] / "rows.jsonl") for program in programs) for split in SPLITS}
        files = (f"{split}/demonstration_files.files = {paths!r}" for split, paths in rows.items())
        sft = settings.point(tuned, "sft", "sft.evaluation = None", *files, needs=shown.values())
        experiment = f"{settings.experiment}.gin"
        files = (f"{settings.experiment}_sft.gin" if name == experiment else name for name in sft.gin_files)
        found.append(dataclasses.replace(sft, gin_files=tuple(files)))
        for name in (each for each in names if REAL[each].command == "evaluate"):
            needs = [] if name == "untrained" else [tuned]
            bound: tuple[str, ...] = (f"evaluate.label = {REAL[name].name!r}", *map(policy_of, needs))
            folder = settings.output / "study" / name
            found.append(settings.point(folder, "evaluate", *bound, files=REAL[name].files, needs=needs))
        for seed in settings.seeds:
            for name in (each for each in names if REAL[each].command == "train"):
                bound = (policy_of(tuned), seeded(seed), *REAL[name].bound(settings.experiment))
                folder = settings.output / "study" / f"{name}-{seed}"
                found.append(settings.point(folder, "train", *bound, files=REAL[name].files, needs=[tuned]))
        return found

    return points


STUDIES = {
    **LCRL_STUDIES,
    "smollm2": Study(
        summary="LcRL, mSearch-R1 and Search-R1 from one SFT of SmolLM2-135M on XQuAD, untrained and as RAG",
        points=_real_points(tuple(DEMONSTRATED), ("untrained", "sft", "rag", "lcrl", "msearch_r1", "search_r1")),
        experiment="lcrl/smollm2",
        output="runs/smollm2",
        bindings=("Evaluation.before = False",),
        seeds=(0,),
        report=(
            "--against=LcRL",
            f"{METRICS}('c3_recall', 'exact_match', 'correct_language', 'searches', 'answer_shown', 'answered')",
        ),
    ),
    "gemma_xquad": Study(
        summary="LcRL, its ablations and baselines, and with c3 F, from one SFT of Gemma-3-270M on XQuAD",
        points=_real_points(("lcrl",), tuple(name for name in REAL if name not in ("untrained", "lcrl_f1"))),
        experiment="lcrl/gemma_xquad",
        output="runs/gemma_xquad",
        bindings=("Evaluation.before = False",),
        seeds=(0,),
        report=(
            "--against=LcRL",
            f"{METRICS}('c3_recall', 'c3_f', 'exact_match', 'token_f1', 'correct_language', 'answer_shown', 'searches',"
            " 'answer_length', 'answered')",
        ),
    ),
    **STARTED_STUDIES,
    "rag_r1": _rag_r1("RAG-R1's stages, several queries at once", "several"),
    "rag_r1_single": _rag_r1("RAG-R1's stages, one query at a time", "single"),
    "rag_r1_ablations": _rag_r1(
        "RAG-R1 both ways, without SFT, RL or selection, from long SFT, and RAG", *MODES, *WITHOUT, "rag"
    ),
    "rag_r1_single_ablations": _rag_r1(
        "RAG-R1, one query at a time, without SFT, RL or selection", "single", *SINGLE_WITHOUT
    ),
}

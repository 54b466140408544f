"""LcRL's studies: tables 1 and 2, figures 3 to 6."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lcrag.commands.study.points import Point, Settings, Study, Variant, policy_of, seeded
from lcrag.data.languages import LCRL_TRAINING

ABLATIONS = {
    "no_penalty": Variant("LcRL w/o Lc reward", bindings=("language_coupled.weight = 0.0",)),
    "exact_match": Variant("LcRL w/o c3Recall", bindings=("language_coupled.answer = 'exact_match'",)),
    "independent_groups": Variant(  # the samples of one prompt share a baseline, as in plain GRPO
        "LcRL w/o Lc rollout", bindings=("Method.baseline = 'prompt'",)
    ),
    "native_only": Variant("LcRL w/o multi-language rollout", bindings=("hierarchical_search.route = @native_only",)),
    "ppo": Variant(  # the same prompts, samples, aggregation and KL; advantages come from a value model
        "LcRL with PPO",
        files=("objective/ppo.gin",),
        bindings=("PolicyGradient.aggregation = 'sequence_mean'", "Critic.kl_in_reward = 0.0"),
    ),
}
# Not in the paper's table.
MORE_ABLATIONS = {
    "pivot_coupling": Variant(  # native, English and a related version of a question, answered in the native language
        "LcRL, pivot coupling", bindings=("Method.coupling = 'pivot'", "train.questions_per_step = 32")
    ),
    "two_samples": Variant(  # the prompts and samples of `independent_groups` on the atlas, with coupled baselines
        "LcRL, two samples a prompt", bindings=("Method.samples = 2", "train.questions_per_step = 6")
    ),
    "dapo": Variant("LcRL with DAPO", files=("objective/dapo.gin",)),
    "dr_grpo": Variant("LcRL with Dr. GRPO", files=("objective/dr_grpo.gin",)),
    "from_long_sft": Variant("LcRL from long SFT", bindings=("policy.folder = 'atlas/long_sft'",)),
}
# The rows of the tables that are LcRL or a variant of it.
COMPARED = {"lcrl": Variant(), **ABLATIONS, **MORE_ABLATIONS}
# The penalty of section 3.3 with and without the floor of the whole reward, by weight.
PENALTIES = {
    f"{'floor' if floor == 0.0 else 'no_floor'}_{weight}": Variant(
        f"LcRL, penalty {weight:g}{'' if floor == 0.0 else ' without floor'}",
        bindings=(f"language_coupled.weight = {weight}", f"language_coupled.floor = {floor}"),
    )
    for floor in (0.0, None)
    for weight in (0.02, 0.2, 0.5)
}
TRAINED_METHODS = ("lcrl", "msearch_r1", "search_r1")
PROMPTED_METHODS = ("direct", "rag", "ircot", "search_o1", "d_rag")
MORE_PROMPTED_METHODS = ("iter_retgen", "flare", "sure", "adaptive_rag")  # R-Search's
METHODS = {
    "lcrl": (),
    **{name: (f"baselines/{name}.gin",) for name in (*TRAINED_METHODS[1:], *PROMPTED_METHODS, *MORE_PROMPTED_METHODS)},
}

# Policies without reinforcement learning that play LcRL's program: the initial one, and the atlas's long SFT.
UNREWARDED = {
    "before": ("evaluate.label = 'LcRL before training'",),
    "long_sft": ("evaluate.label = 'long SFT'", "policy.folder = 'atlas/long_sft'"),
}

# The baselines search every collection that a question is given, at once.
AT_ONCE = tuple(f"{name}.route = @all_at_once" for name in ("rag", "ircot", "search_o1", "d_rag"))

DATA = {f"data_{percent}": (f"train.question_share = {percent / 100}",) for percent in (25, 50, 75, 100)}
COLLECTIONS = {
    f"collections_{count}": (
        *AT_ONCE,
        "Method.collections = @largest_collections",
        f"largest_collections.count = {count}",
    )
    for count in (1, 2, 3, 5, 8, 13)
}
RETRIEVAL = {
    "retrieval_native": (*AT_ONCE, "Method.collections = @native_collection"),
    "retrieval_english": (
        *AT_ONCE,
        "Method.collections = @english_collection",
        "hierarchical_search.route = @english_only",
    ),
    "retrieval_native_english": (*AT_ONCE, "Method.collections = @native_and_english"),
    # One high-resource language more, drawn.
    "retrieval_native_english_high": (*AT_ONCE, "Method.collections = @native_english_and_high"),
    "retrieval_all": (*AT_ONCE, "Method.collections = @every_collection"),
}
# Samples per prompt and couplings per step, with which a step has about the quickstart's 96 episodes.
GROUPS = {1: (8, 12), 2: (4, 12), 3: (2, 16), 4: (2, 12), 5: (1, 19), 6: (1, 16), 7: (1, 14), 8: (1, 12)}
TRAINING_LANGUAGES = {
    f"training_languages_{count}": (
        f"TRAINING_LANGUAGES = {tuple(LCRL_TRAINING[:count])!r}",
        f"Method.samples = {samples}",
        f"train.questions_per_step = {couplings}",
        *(("Method.coupling = 'independent'",) if count == 1 else ()),  # nothing is coupled: plain GRPO
    )
    for count, (samples, couplings) in GROUPS.items()
}


def _point(folder: Path, settings: Settings, name: str, seed: int, *bindings: str) -> Point:
    """Returns the training or the evaluation of a method."""
    command = "train" if name in TRAINED_METHODS else "evaluate"
    return settings.point(folder, [command], *bindings, seeded(seed), files=METHODS[name])


def compared_points(
    study: str, variants: Mapping[str, Variant], usual: Sequence[str] = ()
) -> Callable[[Settings], list[Point]]:
    """Returns the function that lists a training of each variant, one seed after the other."""

    def points(settings: Settings) -> list[Point]:
        names, root = settings.chosen(variants, usual), settings.output / study
        return [_variant(root, settings, name, variants[name], seed) for seed in settings.seeds for name in names]

    return points


def _variant(root: Path, settings: Settings, name: str, variant: Variant, seed: int) -> Point:
    return settings.point(root / f"{name}-{seed}", ["train"], *variant.bound(), seeded(seed), files=variant.files)


def table_points(settings: Settings) -> list[Point]:
    """LcRL, its ablations and the baselines, one seed after the other; what is not trained has the first seed only."""
    usual = ("lcrl", *ABLATIONS, *TRAINED_METHODS[1:], "sft", "before", *PROMPTED_METHODS)
    names = settings.chosen((*usual, *MORE_ABLATIONS, "long_sft", *MORE_PROMPTED_METHODS), usual)
    untrained = {*UNREWARDED, *PROMPTED_METHODS, *MORE_PROMPTED_METHODS}
    root, found = settings.output / "tables", []
    for seed in settings.seeds:
        for name in names:
            folder = root / f"{name}-{seed}"
            if seed != settings.seeds[0] and name in untrained:
                continue
            if name == "sft":
                own = dataclasses.replace(settings, experiment=settings.sft_experiment or settings.experiment)
                found.append(own.point(folder, ["sft"], seeded(seed), files=("baselines/sft.gin",)))
            elif name in COMPARED:
                found.append(_variant(root, settings, name, COMPARED[name], seed))
            elif name in UNREWARDED:
                found.append(settings.point(folder, ["evaluate"], *UNREWARDED[name], seeded(seed)))
            else:
                found.append(_point(folder, settings, name, seed))
    return found


def trained_points(study: str, table: Mapping[str, tuple[str, ...]]) -> Callable[[Settings], list[Point]]:
    """Returns the function that lists a training of each method at every point of a table, one seed after the other."""

    def points(settings: Settings) -> list[Point]:
        return [
            settings.point(
                settings.output / study / f"{method}-{name}-{seed}",
                ["train"],
                *bindings,
                seeded(seed),
                files=METHODS[method],
            )
            for seed in settings.seeds
            for method in settings.chosen(METHODS, ("lcrl", "msearch_r1"))
            for name, bindings in table.items()
        ]

    return points


def evaluated_points(study: str, table: Mapping[str, tuple[str, ...]]) -> Callable[[Settings], list[Point]]:
    """Returns the function that lists a training of each method and seed, and its evaluation at every point.

    Methods that are not trained are evaluated with the first seed only.
    """

    def points(settings: Settings) -> list[Point]:
        found: list[Point] = []
        for seed in settings.seeds:
            for method in settings.chosen(METHODS, ("lcrl", "rag", "d_rag")):
                trained = [settings.output / "trained" / f"{method}-{seed}"] if method in TRAINED_METHODS else []
                if not trained and seed != settings.seeds[0]:
                    continue
                found += [_point(folder, settings, method, seed) for folder in trained]
                for name, bindings in table.items():
                    folder, own = settings.output / study / f"{method}-{name}-{seed}", map(policy_of, trained)
                    parts = (*bindings, *own, seeded(seed))
                    found.append(settings.point(folder, ["evaluate"], *parts, files=METHODS[method], needs=trained))
        return found

    return points


def _along(binding: str, name: str) -> tuple[str, str]:
    """Returns the arguments of a report along a binding."""
    return f"--axis={binding}", f"--gin.compare_runs.axis_name={name!r}"


def _study(name: str, summary: str, points: Callable[[Settings], list[Point]], *report: str) -> Study:
    return Study(
        summary=summary,
        points=points,
        experiment="lcrl/atlas_study",
        output="runs/studies",
        reported=name,
        report=report,
        report_folder=f"{name}/report",
    )


STUDIES = {
    "lcrl_tables": _study(
        "tables",
        "tables 1 and 2: LcRL, its ablations and the baselines",
        table_points,
        "--against=LcRL",
    ),
    "lcrl_ablations": _study(
        "ablations",
        "table 2: LcRL without each of its parts, and by PPO",
        compared_points("ablations", COMPARED, ("lcrl", *ABLATIONS)),
        "--against=LcRL",
    ),
    "lcrl_penalties": _study(
        "penalties",
        "the penalty against consistency: three weights, with and without the floor of the reward",
        compared_points("penalties", PENALTIES),
        f"--against={PENALTIES['floor_0.02'].name}",
    ),
    "lcrl_collections": _study(
        "collections",
        "figure 3: how many languages may be searched",
        evaluated_points("collections", COLLECTIONS),
        *_along("largest_collections.count", "collections that may be searched"),
    ),
    "lcrl_retrieval": _study(
        "retrieval",
        "figure 3: which languages may be searched",
        evaluated_points("retrieval", RETRIEVAL),
        *_along("Method.collections", "collections that may be searched"),
    ),
    "lcrl_data": _study(
        "data",
        "figure 4: 25, 50, 75 and 100 % of the training questions",
        trained_points("data", DATA),
        *_along("train.question_share", "share of the training questions"),
    ),
    "lcrl_training_languages": _study(
        "training_languages",
        "figure 5: one to eight training languages",
        trained_points("training_languages", TRAINING_LANGUAGES),
        *_along("Evaluation.seen_languages", "training languages"),
    ),
    "lcrl_curves": _study(
        "curves",
        "figure 6: reward and response length over the steps",
        trained_points("curves", {"whole": ()}),
        "--against=mSearch-R1",
    ),
}

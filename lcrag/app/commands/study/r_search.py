"""R-Search's study: GRPO, PPO, and without evidence."""

from lcrag.app.commands.study.points import Study, Variant, variant_points

VARIANTS = {
    "grpo": Variant(start="grpo"),
    "ppo": Variant(  # as many episodes a step as GRPO, each of another prompt
        name="R-Search with PPO",
        files=("objective/ppo.gin",),
        bindings=("Method.samples = 1", "train.couplings = 128"),
        start="grpo",
    ),
    "without_evidence": Variant(  # no evidence is asked for, neither its quality nor its form is rewarded
        name="R-Search w/o evidence",
        bindings=("r_search.evidence = False", "r_search_reward.reader = None"),
        start="without_evidence",
        sft_bindings=("EvidenceOracle.evidence = False",),
    ),
}

STUDIES = {
    "r_search": Study(
        summary="R-Search by GRPO, by PPO, and without evidence",
        points=variant_points(VARIANTS),
        experiment="r_search/atlas",
        output="runs/methods/r_search",
        report=("--gin.compare_runs.metrics=('squad_f1', 'squad_exact_match', 'searches', 'answered')",),
    )
}

"""Translate-R1's studies: the costs of a tool call, and translation with search."""

from lcrag.commands.study.points import Study, Variant, variant_points

COSTS = {  # cost.method, and the name in tables
    "free": ("none", "Free tool"),
    "flat": ("flat", "Flat cost"),
    "otc": ("otc", "OTC"),  # optimal tool calls (Wang et al. 2025, arXiv:2504.14870)
    "ungated": ("group_relative", "Ungated"),
    "gated": ("gated", "Gated"),
}
VARIANTS = {
    # The policy is offered no tool; the paper trains it for 100 steps.
    "no_tool": Variant(name="No tool", bindings=("translate_r1.calls = 0", "cost.method = 'none'")),
    **{cost: Variant(name=name, bindings=(f"cost.method = {method!r}",)) for cost, (method, name) in COSTS.items()},
    # Chosen on validation questions by `translate_r1_costs`.
    "gated_at_two": Variant(name="Gated at two", bindings=("cost.method = 'gated'", "cost.minimum_native_correct = 2")),
    "from_long_sft": Variant(  # at most twice the steps; the lowest validation loss counts
        name="Gated from long SFT",
        bindings=("cost.method = 'gated'",),
        start="from_long_sft",
        sft_bindings=("SFT_STEPS = 1800",),
    ),
}
# Where a hyperparameter is chosen: the gated cost by its strength (the paper tries .05 to .3) and by its gate.
SWEEP = {
    f"strength_{strength}_gate_{gate}": Variant(
        name=f"strength {strength:g}, gate {gate}",
        bindings=("cost.method = 'gated'", f"cost.strength = {strength}", f"cost.minimum_native_correct = {gate}"),
    )
    for strength in (0.05, 0.1, 0.3)
    for gate in (2, 4, 6)
}
WITH_SEARCH = {
    "both": Variant(start="both"),
    "search_alone": Variant(  # no tool is offered, and the cold start has seen none used
        name="Search alone",
        bindings=("translate_and_search.calls = 0", "cost.method = 'none'"),
        start="search_alone",
        sft_bindings=(
            "TranslatingSearcher.calls = 0",
            "train/oracle_demonstrations.questions = @train/home/atlas_questions()",
            "validation/oracle_demonstrations.questions = @validation/home/atlas_questions()",
        ),
    ),
}
METRICS = "--gin.compare_runs.metrics=('reward', 'tool_rate', 'tool_calls', 'answered')"
ORDER = ("before training", *(variant.name for variant in VARIANTS.values()))

STUDIES = {
    "translate_r1": Study(
        summary="Translate-R1 with every cost of a tool call",
        points=variant_points(VARIANTS),
        experiment="translate_r1/atlas",
        output="runs/methods/translate_r1",
        report=(
            "--gin.compare_runs.title='Translate-R1: what a translator brings, and what it costs'",
            "--against=Gated",
            METRICS,
            f"--gin.compare_runs.order={ORDER!r}",
        ),
    ),
    "translate_r1_costs": Study(
        summary="Translate-R1's gated cost by strength and gate, on validation questions",
        points=variant_points(SWEEP),
        experiment="translate_r1/atlas",
        output="runs/methods/translate_r1_costs",
        bindings=("held_out/comprehension_questions.split = 'validation'", "Evaluation.split = 'validation'"),
        seeds=(0,),
        report=(METRICS,),
    ),
    "translate_and_search": Study(
        summary="Translation and search in one episode, and search alone",
        points=variant_points(WITH_SEARCH),
        experiment="translate_r1/with_search_atlas",
        output="runs/methods/translate_and_search",
        report=(
            "--against=Translation and search",
            "--gin.compare_runs.metrics=('c3_recall_bergen', 'tool_calls', 'searches')",
        ),
    ),
}

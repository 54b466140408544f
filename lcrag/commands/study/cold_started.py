"""The studies of R-Search, GlobalRAG and Translate-R1, whose variants begin with cold starts."""

from lcrag.commands.study.points import RAG, Study, Variant, variant_points

# R-Search: GRPO, PPO, without evidence, and references.
R_SEARCH = {
    "grpo": Variant(start="grpo"),
    "ppo": Variant(  # the same prompts, samples, aggregation and KL; advantages come from a value model
        "R-Search with PPO",
        files=("objective/ppo.gin",),
        bindings=("PolicyGradient.aggregation = 'sequence_mean'", "Critic.kl_in_reward = 0.0"),
        start="grpo",
    ),
    "unrewarded": Variant(  # evidence is written and judged, and neither its quality nor its form is rewarded
        "R-Search, evidence not rewarded",
        bindings=("r_search_reward.evidence_weight = 0.0", "r_search_reward.gamma_evidence = 0.0"),
        start="grpo",
    ),
    "answer_only": Variant(  # evidence is written, and only the answer is rewarded
        "R-Search, answer rewarded only",
        bindings=("Method.reward = @answer_only()", "answer_only.answer = 'mixed_f1'"),
        start="grpo",
    ),
    "without_evidence": Variant(  # no evidence is asked for, neither its quality nor its form is rewarded
        "R-Search w/o evidence",
        bindings=("r_search.evidence = False", "r_search_reward.reader = None"),
        start="without_evidence",
        # As many steps as lead to the validation F1 of the cold start with evidence, .29: 140 lead to .26, 180 to .36.
        sft_bindings=("RandomReasoner.evidence = False", "SFT_STEPS = 155"),
    ),
    "search_r1": Variant(  # in the collection of the question's language, which for Search-R1 itself is English
        "Search-R1",
        bindings=(
            "r_search.evidence = False",
            "Method.reward = @answer_only()",
            "answer_only.answer = 'squad_exact_match'",
        ),
        start="without_evidence",
    ),
    "from_long_sft": Variant(  # at most twice the steps; the lowest validation loss counts
        "R-Search from long SFT", start="from_long_sft", sft_bindings=("SFT_STEPS = 1200",)
    ),
    "rag": RAG,
}

# GlobalRAG: with and without the rewards of the plan (table 2), against Search-R1 and RAG (table 1).
WEIGHTS = ("format", "semantic", "structural", "sub_goal")


def _weightless(*rewards: str) -> tuple[str, ...]:
    """Returns bindings that log these rewards with weight 0."""
    return tuple(f"globalrag_reward.{reward}_weight = 0.0" for reward in rewards)


GLOBALRAG = {
    "full": Variant(start="full"),
    "outcome_only": Variant("GlobalRAG, outcome only", bindings=_weightless(*WEIGHTS), start="full"),
    "constant_weights": Variant(
        "GlobalRAG, constant weights", bindings=("globalrag_reward.transition_steps = None",), start="full"
    ),
    **{
        f"without_{reward}": Variant(
            f"GlobalRAG w/o {reward.replace('_', '-')} reward", bindings=_weightless(reward), start="full"
        )
        for reward in WEIGHTS
    },
    "ppo": Variant(
        "GlobalRAG with PPO",
        files=("objective/ppo.gin",),
        bindings=("critic/adamw.learning_rate = 1e-5",),
        start="full",
    ),
    "search_r1": Variant(  # the same questions and collection, without plans
        "Search-R1",
        bindings=(
            "Method.program = @search_r1",
            "Method.reward = @answer_only()",
            "answer_only.answer = 'squad_exact_match'",
            "Evaluation.reading = 'Training begins with SFT on a player without plans that stops at random.'",
        ),
        start="search_r1",
        sft_bindings=("oracle_demonstrations.oracle = @RandomReasoner", "RandomReasoner.evidence = False"),
    ),
    "from_long_sft": Variant(  # at most twice the steps; the lowest validation loss counts
        "GlobalRAG from long SFT", start="from_long_sft", sft_bindings=("SFT_STEPS = 600",)
    ),
    "rag": RAG,
}
USUAL = ("full", "outcome_only", "constant_weights", "search_r1", "from_long_sft", "rag")

# Translate-R1: the costs of a tool call, and translation with search.
COSTS = {  # cost.method, and the name in tables
    "free": ("none", "Free tool"),
    "flat": ("flat", "Flat cost"),
    "otc": ("otc", "OTC"),  # optimal tool calls (Wang et al. 2025, arXiv:2504.14870)
    "ungated": ("group_relative", "Ungated"),
    "gated": ("gated", "Gated"),
}
TRANSLATE_R1 = {
    # The policy is offered no tool; the paper trains it for 100 steps.
    "no_tool": Variant("No tool", bindings=("translate_r1.calls = 0", "cost.method = 'none'")),
    **{cost: Variant(name, bindings=(f"cost.method = {method!r}",)) for cost, (method, name) in COSTS.items()},
    # Chosen on validation questions by `translate_r1_costs`.
    "gated_at_two": Variant("Gated at two", bindings=("cost.method = 'gated'", "cost.minimum_native_correct = 2")),
    "from_long_sft": Variant(  # at most twice the steps; the lowest validation loss counts
        "Gated from long SFT",
        bindings=("cost.method = 'gated'",),
        start="from_long_sft",
        sft_bindings=("SFT_STEPS = 1800",),
    ),
}
# Where a hyperparameter is chosen: the gated cost by its strength (the paper tries .05 to .3) and by its gate.
SWEEP = {
    f"strength_{strength}_gate_{gate}": Variant(
        f"strength {strength:g}, gate {gate}",
        bindings=("cost.method = 'gated'", f"cost.strength = {strength}", f"cost.minimum_native_correct = {gate}"),
    )
    for strength in (0.05, 0.1, 0.3)
    for gate in (2, 4, 6)
}
WITH_SEARCH = {
    "both": Variant(start="both"),
    "search_alone": Variant(  # no tool is offered, and the cold start has seen none used
        "Search alone",
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
ORDER = ("before training", *(variant.name for variant in TRANSLATE_R1.values()))

STUDIES = {
    "r_search": Study(
        summary="R-Search by GRPO and PPO, with evidence not rewarded, without evidence, from long SFT, Search-R1, RAG",
        points=variant_points(R_SEARCH),
        experiment="r_search/atlas",
        output="runs/methods/r_search",
        report=(
            "--against=R-Search",
            "--gin.compare_runs.metrics=('squad_f1', 'squad_exact_match', 'searches', 'answered')",
        ),
    ),
    "globalrag": Study(
        summary="GlobalRAG with the plan's rewards, without them, with constant weights, from long SFT, Search-R1, RAG",
        points=variant_points(GLOBALRAG, usual=USUAL),
        experiment="globalrag/atlas",
        output="runs/methods/globalrag",
        report=(
            "--against=GlobalRAG",
            "--gin.compare_runs.metrics=('squad_exact_match', 'squad_f1', 'searches', 'answered')",
        ),
    ),
    "translate_r1": Study(
        summary="Translate-R1 with every cost of a tool call",
        points=variant_points(TRANSLATE_R1),
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

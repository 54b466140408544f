"""R-Search's study: GRPO, PPO, without evidence, and references."""

from lcrag.commands.study.points import RAG, Study, Variant, variant_points

VARIANTS = {
    "grpo": Variant(start="grpo"),
    "ppo": Variant(  # the same prompts, samples, aggregation and KL; advantages come from a value model
        name="R-Search with PPO",
        files=("objective/ppo.gin",),
        bindings=("PolicyGradient.aggregation = 'sequence_mean'", "Critic.kl_in_reward = 0.0"),
        start="grpo",
    ),
    "unrewarded": Variant(  # evidence is written and judged, and neither its quality nor its form is rewarded
        name="R-Search, evidence not rewarded",
        bindings=("r_search_reward.evidence_weight = 0.0", "r_search_reward.gamma_evidence = 0.0"),
        start="grpo",
    ),
    "answer_only": Variant(  # evidence is written, and only the answer is rewarded
        name="R-Search, answer rewarded only",
        bindings=("Method.reward = @answer_only()", "answer_only.answer = 'mixed_f1'"),
        start="grpo",
    ),
    "without_evidence": Variant(  # no evidence is asked for, neither its quality nor its form is rewarded
        name="R-Search w/o evidence",
        bindings=("r_search.evidence = False", "r_search_reward.reader = None"),
        start="without_evidence",
        # As many steps as lead to the validation F1 of the cold start with evidence, .29: 140 lead to .26, 180 to .36.
        sft_bindings=("RandomReasoner.evidence = False", "SFT_STEPS = 155"),
    ),
    "search_r1": Variant(  # in the collection of the question's language, which for Search-R1 itself is English
        name="Search-R1",
        bindings=(
            "r_search.evidence = False",
            "Method.reward = @answer_only()",
            "answer_only.answer = 'squad_exact_match'",
        ),
        start="without_evidence",
    ),
    "from_long_sft": Variant(  # at most twice the steps; the lowest validation loss counts
        name="R-Search from long SFT", start="from_long_sft", sft_bindings=("SFT_STEPS = 1200",)
    ),
    "rag": RAG,
}

STUDIES = {
    "r_search": Study(
        summary="R-Search by GRPO and PPO, with evidence not rewarded, without evidence, from long SFT, Search-R1, RAG",
        points=variant_points(VARIANTS),
        experiment="r_search/atlas",
        output="runs/methods/r_search",
        report=(
            "--against=R-Search",
            "--gin.compare_runs.metrics=('squad_f1', 'squad_exact_match', 'searches', 'answered')",
        ),
    )
}

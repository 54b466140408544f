"""R-Search's study: GRPO, PPO, and without evidence."""

from lcrag.app.commands.study.points import Study, Variant, variant_points

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
}

STUDIES = {
    "r_search": Study(
        summary="R-Search by GRPO and PPO, with evidence not rewarded, the answer rewarded only, and without evidence",
        points=variant_points(VARIANTS),
        experiment="r_search/atlas",
        output="runs/methods/r_search",
        report=(
            "--against=R-Search",
            "--gin.compare_runs.metrics=('squad_f1', 'squad_exact_match', 'searches', 'answered')",
        ),
    )
}

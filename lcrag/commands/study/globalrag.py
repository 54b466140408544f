"""GlobalRAG's study: with and without the rewards of the plan (table 2), against Search-R1 and RAG (table 1)."""

from lcrag.commands.study.points import RAG, Study, Variant, variant_points

WEIGHTS = ("format", "semantic", "structural", "sub_goal")


def _weightless(*rewards: str) -> tuple[str, ...]:
    """Returns bindings that log these rewards with weight 0."""
    return tuple(f"globalrag_reward.{reward}_weight = 0.0" for reward in rewards)


VARIANTS = {
    "full": Variant(start="full"),
    "outcome_only": Variant(name="GlobalRAG, outcome only", bindings=_weightless(*WEIGHTS), start="full"),
    "constant_weights": Variant(
        name="GlobalRAG, constant weights", bindings=("globalrag_reward.transition_steps = None",), start="full"
    ),
    **{
        f"without_{reward}": Variant(
            name=f"GlobalRAG w/o {reward.replace('_', '-')} reward", bindings=_weightless(reward), start="full"
        )
        for reward in WEIGHTS
    },
    "ppo": Variant(
        name="GlobalRAG with PPO",
        files=("objective/ppo.gin",),
        bindings=("critic/adamw.learning_rate = 1e-5",),
        start="full",
    ),
    "search_r1": Variant(  # the same questions and collection, without plans
        name="Search-R1",
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
        name="GlobalRAG from long SFT", start="from_long_sft", sft_bindings=("SFT_STEPS = 600",)
    ),
    "rag": RAG,
}
USUAL = ("full", "outcome_only", "constant_weights", "search_r1", "from_long_sft", "rag")

STUDIES = {
    "globalrag": Study(
        summary="GlobalRAG with the plan's rewards, without them, with constant weights, from long SFT, Search-R1, RAG",
        points=variant_points(VARIANTS, usual=USUAL),
        experiment="globalrag/atlas",
        output="runs/methods/globalrag",
        report=(
            "--against=GlobalRAG",
            "--gin.compare_runs.metrics=('squad_exact_match', 'squad_f1', 'searches', 'answered')",
        ),
    )
}

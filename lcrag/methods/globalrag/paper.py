"""The settings of GlobalRAG's run with Qwen2.5-3B-Instruct, and those of globalrag/paper.gin."""

from lcrag.evaluation.paper_settings import LOST, NOT_STATED, PaperSetting

FROM_NOTES = "from notes on the paper, not checked against its formula"

GLOBALRAG: tuple[PaperSetting, ...] = (
    PaperSetting("ENCODER", "E5-base", "3.2.1", "e5-base-v2", "the paper does not say which version"),
    PaperSetting("train.questions_per_step", 256, "E.4"),
    PaperSetting("train.steps", 200, "E.4"),
    PaperSetting("train.checkpoint_every", 10, "E.4"),
    PaperSetting("Method.samples", 5, "E.4"),
    PaperSetting("globalrag.budget", 4, "E.4"),
    PaperSetting("globalrag.passages", 3, "E.4"),
    PaperSetting("globalrag.observation_tokens", NOT_STATED, "", 600, "as LcRL's three passages"),
    PaperSetting(
        "globalrag.invalid_limit", NOT_STATED, "", 3, "without a limit, invalid actions would only end with the context"
    ),
    PaperSetting("Runner.max_tokens", NOT_STATED, "", 500, "Search-R1's, which the paper follows"),
    PaperSetting("Runner.temperature", 1.0, "E.4"),
    PaperSetting("Runner.top_p", 1.0, "E.4"),
    PaperSetting("Sampler.context", 4096, "E.4"),
    PaperSetting("globalrag_reward.answer", "squad_exact_match", "3.2.3"),
    PaperSetting("globalrag_reward.sub_answer", "token_f1", "3.2.2"),
    PaperSetting("globalrag_reward.format_weight", LOST, "E.4", 0.1, FROM_NOTES),
    PaperSetting("globalrag_reward.semantic_weight", LOST, "E.4", 0.5, FROM_NOTES),
    PaperSetting("globalrag_reward.structural_weight", LOST, "E.4", 0.5, FROM_NOTES),
    PaperSetting("globalrag_reward.sub_goal_weight", LOST, "E.4", 0.5, FROM_NOTES),
    PaperSetting("globalrag_reward.transition_steps", 50, "Table 11"),
    PaperSetting("globalrag_reward.transition_width", 10, "3.2.5"),
    PaperSetting("globalrag_reward.threshold", NOT_STATED, "", 0.7, "from notes on the paper, which gives no number"),
    PaperSetting("globalrag_reward.structure", "graded", "3.2.1"),
    PaperSetting("PolicyGradient.clip_low", LOST, "E.4", 0.2, "the usual clip of GRPO"),
    PaperSetting("PolicyGradient.clip_high", LOST, "E.4", 0.2, "the usual clip of GRPO"),
    PaperSetting("PolicyGradient.kl_coefficient", LOST, "E.4", 0.001, FROM_NOTES),
    PaperSetting("adamw.learning_rate", LOST, "E.4", 1e-06, FROM_NOTES),
    PaperSetting("adamw.warmup_share", NOT_STATED, "", 0.0, "no warm-up is mentioned"),
    PaperSetting("golden_trajectory.attempts", 15, "D.3"),
)

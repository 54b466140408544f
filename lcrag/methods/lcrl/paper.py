"""The settings of LcRL's run on MKQA with Qwen2.5-3B-Instruct, and those of lcrl/paper.gin."""

from lcrag.evaluation.paper_settings import NOT_STATED, PaperSetting

LCRL: tuple[PaperSetting, ...] = (
    PaperSetting("ENCODER", "multilingual-e5-base", "A.2"),
    PaperSetting("train/mkqa_questions.languages", ("en", "ar", "fi", "fr", "ja", "it", "ru", "zh"), "Table 3"),
    PaperSetting("train/mkqa_questions.train", 1000, "Table 4"),
    PaperSetting("held_out/mkqa_questions.test", 2000, "Table 4"),
    PaperSetting("train.questions_per_step", 64, "A.2: batches of 512 prompts, 64 questions in 8 languages"),
    PaperSetting("train.updates_per_rollout", 2, "A.2: mini-batches of 256"),
    PaperSetting("Method.coupling", "parallel", "3.2"),
    PaperSetting("Method.baseline", "coupled", "3.2"),
    PaperSetting("Method.samples", 3, "A.2"),
    PaperSetting("train.steps", NOT_STATED, "", 1005, "the authors' code"),
    PaperSetting(
        "hierarchical_search.budget", NOT_STATED, "", 3, "the authors' code; Algorithm 1 has a budget B without a value"
    ),
    PaperSetting("hierarchical_search.passages", 3, "A.2"),
    PaperSetting("hierarchical_search.observation_tokens", NOT_STATED, "", 600, "the authors' code"),
    PaperSetting(
        "Runner.cut_passages",
        NOT_STATED,
        "",
        "matching",
        "the authors' code cuts at the end, which loses most answers of the second search (docs/corpora.md)",
    ),
    PaperSetting(
        "hierarchical_search.invalid_limit",
        NOT_STATED,
        "",
        3,
        "without a limit, invalid actions would only end with the context",
    ),
    PaperSetting("Runner.max_tokens", NOT_STATED, "", 256, "the authors' code"),
    PaperSetting("Runner.temperature", NOT_STATED, "", 1.2, "the authors' code"),
    PaperSetting("language_coupled.answer", "c3_recall", "3.3"),
    PaperSetting("language_coupled.weight", 0.02, "A.2"),
    PaperSetting(
        "language_coupled.threshold", NOT_STATED, "", 0.4, "the authors' code; 3.3 has a threshold without a value"
    ),
    PaperSetting("language_coupled.margin", 0.5, "3.3"),
    PaperSetting("language_coupled.floor", 0.0, "3.3"),
    PaperSetting(
        "language_coupled.short_gold",
        NOT_STATED,
        "",
        "whole",
        "the authors' code never rewards golds of one or two characters",
    ),
    PaperSetting("PolicyGradient.aggregation", "sequence_mean", "3.2"),
    PaperSetting("PolicyGradient.clip_low", NOT_STATED, "", 0.2, "the usual clip of PPO and GRPO"),
    PaperSetting("PolicyGradient.clip_high", NOT_STATED, "", 0.2, "the usual clip of PPO and GRPO"),
    PaperSetting("PolicyGradient.kl_coefficient", NOT_STATED, "", 0.0005, "the authors' code"),
    PaperSetting("adamw.learning_rate", 1e-06, "A.2"),
    PaperSetting("adamw.warmup_share", NOT_STATED, "", 0.285, "the authors' code"),
    PaperSetting("adamw.decay", NOT_STATED, "", "constant", "the authors' code"),
    PaperSetting("adamw.weight_decay", NOT_STATED, "", 0.01, "the authors' code"),
    PaperSetting("adamw.gradient_clip", NOT_STATED, "", 1.0, "the authors' code"),
    PaperSetting("Evaluation.runs", 3, "4.2"),
    PaperSetting(
        "Evaluation.temperatures",
        NOT_STATED,
        "",
        {"sampled": 1.0, "greedy": 0.0},
        "greedy answers need one run and repeat exactly",
    ),
)

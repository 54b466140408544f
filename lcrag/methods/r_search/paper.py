"""The settings of R-Search's GRPO run with Qwen2.5-3B-Instruct, and those of r_search/paper.gin."""

from lcrag.evaluation.paper_settings import NOT_STATED, PaperSetting

R_SEARCH: tuple[PaperSetting, ...] = (
    PaperSetting("ENCODER", "E5", "4.1", "e5-base-v2", "the paper does not say which E5; its corpora are English"),
    PaperSetting("train/english_questions.dataset", "2wikimultihopqa", "4.3"),
    PaperSetting("train.questions_per_step", 256, "4.3"),
    PaperSetting("train.steps", 195, "4.3"),
    PaperSetting("Method.samples", 5, "4.3"),
    PaperSetting("r_search.budget", NOT_STATED, "", 4, "Search-R1's, which the paper follows"),
    PaperSetting("r_search.passages", 3, "4.3"),
    PaperSetting("r_search.observation_tokens", NOT_STATED, "", 1800, "the authors' code"),
    PaperSetting(
        "r_search.invalid_limit", NOT_STATED, "", 3, "without a limit, invalid actions would only end with the context"
    ),
    PaperSetting("Runner.max_tokens", NOT_STATED, "", 500, "Search-R1's, which the paper follows"),
    PaperSetting("Runner.temperature", NOT_STATED, "", 1.0, "Search-R1's, which the paper follows"),
    PaperSetting("Sampler.context", NOT_STATED, "", 8192, "a prompt and most episodes of four searches"),
    PaperSetting("r_search_reward.answer", "token_f1", "3.2.2"),
    PaperSetting("r_search_reward.gamma_evidence", 0.2, "4.3"),
    PaperSetting("r_search_reward.gamma_answer", 0.2, "4.3"),
    PaperSetting("local_model.folder", "Llama-3.2-3B-Instruct", "4.2"),
    PaperSetting("EvidenceReader.temperature", NOT_STATED, "", 0.1, "as in evaluation"),
    PaperSetting("EvidenceReader.max_tokens", NOT_STATED, "", 512, "longer than any answer"),
    PaperSetting("PolicyGradient.kl_coefficient", 0.001, "4.3"),
    PaperSetting("PolicyGradient.clip_low", NOT_STATED, "", 0.2, "the usual clip of PPO and GRPO"),
    PaperSetting("PolicyGradient.clip_high", NOT_STATED, "", 0.2, "the usual clip of PPO and GRPO"),
    PaperSetting("adamw.learning_rate", 1e-06, "4.3"),
    PaperSetting("adamw.warmup_share", 0.95, "4.3"),
    PaperSetting("Evaluation.program_settings", {"passages": 5}, "4.3"),
    PaperSetting("Evaluation.temperatures", {"sampled": 0.1}, "A.3"),
    PaperSetting(
        "held_out/english_questions.dataset",
        "seven sets",
        "A.1",
        "2wikimultihopqa",
        "data/seven_sets.gin after it tests on all seven",
    ),
)

"""The settings of Translate-R1's gated run with Qwen3-4B, and those of translate_r1/paper.gin."""

from lcrag.evaluation.paper_settings import LOST, NOT_STATED, PaperSetting

TRANSLATE_R1: tuple[PaperSetting, ...] = (
    PaperSetting("train.questions_per_step", 768, "C"),
    PaperSetting("train.steps", 250, "C"),
    PaperSetting("Method.samples", 8, "4.3, C"),
    PaperSetting("Method.normalise_std", False, "4.3"),
    PaperSetting("translate_r1.calls", 2, "5.2"),
    PaperSetting(
        "translate_r1.response_tokens", NOT_STATED, "", 2048, "the limit of the translator in the paper's pipeline (L)"
    ),
    PaperSetting("translate_r1.text_characters", NOT_STATED, "", 8000, "longer than any prompt of the paper's data"),
    PaperSetting("Runner.max_tokens", 8192, "C"),
    PaperSetting("Runner.temperature", 1.0, "C"),
    PaperSetting("Runner.top_p", 1.0, "C"),
    PaperSetting(
        "Sampler.context",
        NOT_STATED,
        "",
        16384,
        "a prompt, two translations and two generations that are not all at their limit",
    ),
    PaperSetting("cost.method", "gated", "4.3"),
    PaperSetting("cost.strength", LOST, "4.3", 0.1, "the paper scans 0.05 to 0.3 without the gate (5.3)"),
    PaperSetting("cost.minimum_native_correct", 6, "6.3"),
    PaperSetting("cost.correct_threshold", NOT_STATED, "", 0.5, "for domains whose rewards are graded"),
    PaperSetting("PolicyGradient.ratio", "sequence", "4.3"),
    PaperSetting("PolicyGradient.clip_low", NOT_STATED, "", 0.0003, "GSPO (arXiv:2507.18071, 5.1)"),
    PaperSetting("PolicyGradient.clip_high", NOT_STATED, "", 0.0004, "GSPO (arXiv:2507.18071, 5.1)"),
    PaperSetting("PolicyGradient.kl_coefficient", 0.0, "C"),
    PaperSetting("adamw.learning_rate", 1e-06, "C"),
    PaperSetting("adamw.decay", "constant", "C"),
    PaperSetting("adamw.warmup_share", 0.0, "C"),
    PaperSetting("Evaluation.temperatures", NOT_STATED, "", {"sampled": 1.0}, "as in training"),
)

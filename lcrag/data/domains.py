"""The domains of questions, which are answered and judged in different ways (Translate-R1, section 3.1).

`Question.domain` is one of them; `lcrag.rewards.domains` holds their rewards.
"""

MATHEMATICS = "mathematics"
MULTIPLE_CHOICE = "multiple_choice"
INSTRUCTION_FOLLOWING = "instruction_following"
SUMMARISATION = "summarisation"
TRANSLATION = "translation"
DOMAINS: tuple[str, ...] = (MATHEMATICS, MULTIPLE_CHOICE, INSTRUCTION_FOLLOWING, SUMMARISATION, TRANSLATION)

r"""Multiple choice: the option's letter (Translate-R1, section 4.5).

The letter is looked for in the last `\boxed{}`, or in the whole answer without one. It is that of an option where the
text, signs around it and markup aside, is the letter alone (`B`, `(b)`, `**B**`) or begins with the letter and `.`, `:`
or `)` (`B. Paris`) and no other option's follows in this way; otherwise where exactly one option's letter stands in
parentheses or behind the English words "answer", "option" or "choice". An answer that names two options names none.
"""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from lcrag.rewards.domains.boxed import boxed

LETTERS = "ABCD"
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_MARKUP = re.compile(r"[*_`$]")


def multiple_choice(answers: Sequence[str | None], golds: Sequence[Sequence[str]]) -> Float[np.ndarray, " answers"]:
    """1 where the chosen option is a golden answer's, else 0.

    Args:
      answers: Answers.
      golds: Letters.
    """
    chosen = [option(answer or "") for answer in answers]
    wanted = [{gold.strip().upper() for gold in own} for own in golds]
    return np.array([letter in own for letter, own in zip(chosen, wanted, strict=True)], float)


def option(text: str, letters: str = LETTERS) -> str | None:
    """The letter of the option that a text chooses, by the rules above; None if it chooses none or several.

    Args:
      text: An answer.
      letters: Of the options.
    """
    content = boxed(text)
    plain = _MARKUP.sub("", _TEXT.sub(r"\1", text if content is None else content))
    plain = unicodedata.normalize("NFKC", plain).strip()
    if whole := re.fullmatch(
        rf"\W*([{letters}{letters.lower()}])(?:\W*|[.:)](?!.*\b[{letters}][.:)]).*)", plain, re.DOTALL
    ):
        return whole[1].upper()
    named = re.findall(rf"\(([{letters}])\)|\b(?i:answer|option|choice)\b\W*(?:is\b\W*)?([{letters}])\b", plain)
    found = {first or second for first, second in named}
    return found.pop() if len(found) == 1 else None

"""Stage 5, the judge: does the back-translation keep what matters of the original (Translate-R1, Appendix L)?"""

from collections.abc import Mapping

from lcrag.methods.translate_r1.pipeline.asking import Ask
from lcrag.methods.translate_r1.pipeline.domains import Domain
from lcrag.methods.translate_r1.pipeline.patience import Patience
from lcrag.methods.translate_r1.pipeline.prompts import judge_prompt
from lcrag.methods.translate_r1.pipeline.rendering import AskModel
from lcrag.methods.translate_r1.pipeline.verdicts import Verdict, verdict_in

JUDGE = "judge"
RETRIES = 3
_MAX_TOKENS = 2048  # of which a model that thinks needs most


class Judge:
    """Compares original and back-translation.

    Args:
      ask: Asks the model that has the role `judge`.
    """

    def __init__(self, ask: AskModel):
        self._ask = ask
        self._patience = Patience("the judge says neither SAME nor DIFFERENT")

    async def __call__(self, original: Mapping[str, str], back: Mapping[str, str], domain: Domain) -> Verdict:
        """SAME or DIFFERENT, or "neither" when no answer is one of them: the first is asked again three times.

        A back-translation that is the original letter by letter is SAME, and nobody is asked.

        Raises:
          UserError: the model is away, or never gives a verdict.
        """
        if original == back:
            return "SAME"
        prompt = judge_prompt(original, back, domain)
        for number in range(1 + RETRIES):
            said = await self._ask(Ask(role=JUDGE, prompt=prompt, max_tokens=_MAX_TOKENS, number=number))
            verdict = verdict_in(said)
            self._patience.saw(said, usable=verdict != "neither")
            if verdict != "neither":
                return verdict
        return "neither"
